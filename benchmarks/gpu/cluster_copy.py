"""The copy kernel in clusters: thread blocks that start together, on whole TPCs, and share one tile of runs."""

from __future__ import annotations

import torch

from sparda_core.errors import ConfigError
from sparda_core.kernels.device import INTERPRETED
from sparda_core.kernels.gather.gpu import block_words, copy_options, gather_kernel

#: Thread blocks of a cluster that a copy is measured with.
SIZES = (2, 4)


def cluster_gather(
    source: torch.Tensor, target: torch.Tensor, source_ids: torch.Tensor, target_ids: torch.Tensor,
    count: torch.Tensor, *, clusters: int, size: int, in_flight_bytes: int = 128 * 2**10,
) -> None:  # fmt: skip
    """As `gather_blocks` for plain blocks, by `clusters` clusters of `size` thread blocks.

    in_flight_bytes  of each thread block: a cluster's tile is `size` times as large
    Raises ConfigError for a size that is none of SIZES. By the interpreter a cluster is one program.
    """
    if size not in SIZES:
        raise ConfigError(f"size={size} must be one of {', '.join(map(str, SIZES))} thread blocks of a cluster")
    options = copy_options(source, target, in_flight_bytes)
    options["ROWS"] *= size
    words, slots = block_words(source), block_words(target)
    together = {} if INTERPRETED else {"num_ctas": size}
    gather_kernel[(clusters,)](
        words, slots, words, source_ids, target_ids, count, source_ids.shape[0], words.stride(0), slots.stride(0),
        WARM=0, **together, **options,
    )  # fmt: skip

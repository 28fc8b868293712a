"""What a checkpoint says of its blocks, read without its weights."""

from __future__ import annotations

from pathlib import Path

import attrs

from sparda_core.models.safetensors_dir import read_directory
from sparda_core.shapes import BlockSpec


@attrs.frozen(kw_only=True)
class OwnBlocks:
    """Of a checkpoint's sparse_config; None for what it does not name.

    spec           blocks, entries and budget
    select_blocks  of a NOSA model: blocks beside sink and local that go by the query
    """

    spec: BlockSpec | None = None
    select_blocks: int | None = None


def own_blocks(model: str | Path) -> OwnBlocks:
    """Of a checkpoint directory; nothing of any other model. Raises WeightsError for one that is no checkpoint."""
    path = Path(model)
    if not path.is_dir():
        return OwnBlocks()
    config = read_directory(path)[0]
    return OwnBlocks(spec=config.block_spec, select_blocks=config.select_blocks)

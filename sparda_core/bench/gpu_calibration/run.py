"""The sections of a calibration, one after another; each is kept when it is done, so that a killed run goes on."""

from __future__ import annotations

import contextlib
import functools
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from sparda_core.bench.gpu_calibration import contention, copies, forked, host_lists, launches, machine, sequence
from sparda_core.bench.gpu_calibration.pool import Pool
from sparda_core.bench.gpu_calibration.sizes import Sizes
from sparda_core.bench.gpu_clock import finish, has_gpu
from sparda_core.simulator.gpu_fit.samples import SECTIONS, Row, SampleFile

#: Called with (what, done, total).
Report = Callable[[str, int, int], None]
#: Bytes of slots on the device: the largest copy by the engine, each way.
_SLOTS = 2


class Measuring:
    """Measures what a file of samples lacks. Pinned memory is taken when it is first needed, and given back."""

    def __init__(self, sizes: Sizes, report: Report, *, shrink: int = 1) -> None:
        self.sizes, self._report, self._shrink = sizes, report, shrink
        self._pool: Pool | None = None

    @property
    def pool(self) -> Pool:
        """Pinned memory, for all sections."""
        if self._pool is None:
            told = functools.partial(self._report, "pinning host memory, bytes")
            slots = max(_SLOTS * max(self.sizes.sizes), 2 * self.sizes.list_bytes)
            self._pool = Pool(self.sizes.pool_bytes, slots, told)
        return self._pool

    def run(self, kept: SampleFile, only: Sequence[str] = SECTIONS) -> None:
        """Every section that is missing, or those of `only` that are, in order; the file is whole after each."""
        for name in [name for name in kept.missing if name in only]:
            with _settled():
                began = time.monotonic()
                rows = self._section(name)
                finish()
            kept.keep(name, rows, seconds=time.monotonic() - began)
            self._report("calibration: sections", len(SECTIONS) - len(kept.missing), len(SECTIONS))

    def _section(self, name: str) -> list[Row]:
        sizes = self.sizes
        tell = functools.partial(self._report, f"calibration: {name}")
        table: dict[str, Callable[[], list[Row]]] = {
            "machine": lambda: [*machine.measure(sizes), *self._all_gpus()],
            "launches": lambda: launches.measure(sizes),
            "copy-engine": lambda: copies.by_engine(sizes, self.pool),
            "gather": lambda: copies.by_gather(sizes, self.pool),
            "host lists": lambda: host_lists.measure(sizes, self.pool),
            "grids": lambda: contention.grids(sizes, shrink=self._shrink),
            "products": lambda: contention.products_alone(sizes, shrink=self._shrink),
            "beside products": lambda: contention.beside_products(sizes, self.pool, tell, shrink=self._shrink),
            "kernels": lambda: contention.alone(sizes, tell),
            "sequence": lambda: sequence.measure(sizes),
            "elasticity": lambda: contention.elasticity(sizes, self.pool, tell),
            "forked": lambda: forked.measure(sizes, self.pool, tell),
        }
        return table[name]()


    def _all_gpus(self) -> list[Row]:
        """Copies of all GPUs at once; pins nothing yet where there is one."""
        several = has_gpu() and torch.cuda.device_count() > 1
        return copies.by_all_gpus(self.sizes, self.pool) if several else []


@contextlib.contextmanager
def _settled() -> Iterator[None]:
    """A section begins with the device's memory free of the one before, and on a stream that graphs can be made on."""
    gc.collect()
    if has_gpu():
        torch.cuda.empty_cache()
    yield


def identity_of(sizes: Sizes) -> dict[str, Any]:
    """What must be the same for samples of two runs to be of one calibration."""
    from sparda_core.bench.gpu_machine import gpu

    about = gpu() or {"name": "none", "torch": torch.__version__}
    return {
        **{name: about.get(name) for name in ("name", "sms", "driver", "cuda", "torch", "triton", "host_threads")},
        "pool_gib": sizes.pool_bytes / 2**30, "context": sizes.context,
    }

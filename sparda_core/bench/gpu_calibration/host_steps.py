"""Steps of products between copies whose list the host must see, run by what runs those of a session.

A layer is some products, then a list of misses as a session's diff leaves it. Lists are new in every step.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from sparda_core.bench.gpu_calibration.pool import Pool
from sparda_core.bench.gpu_calibration.session_lists import SessionLists, layout_of
from sparda_core.bench.gpu_calibration.sizes import Sizes
from sparda_core.bench.gpu_clock import finish, has_gpu, new_mark
from sparda_core.device_view import Choice
from sparda_core.kernels.inference import in_inference
from sparda_core.kernels.tables import DeviceDiff, DeviceSlots, Paged
from sparda_core.plan import Kind, Op
from sparda_core.runtimes.gpu.engines import HostListEngine
from sparda_core.runtimes.gpu.executor import Issue, Piece, pieces_of
from sparda_core.runtimes.gpu.graphs import Captured, Eager, Replays, StepKey
from sparda_core.runtimes.gpu.lanes import Lanes, SerialLanes, StreamLanes
from sparda_core.runtimes.gpu.options import CopySize
from sparda_core.runtimes.gpu.tier import LayerTier
from sparda_core.simulator.gpu_fit.host_steps import LAYERS, ROWS, plan_of

#: Products of a layer: about a quarter of a millisecond at the 8B shape, as a layer of its steps.
PRODUCTS = 4
_KEY = StepKey(1)
_SIZE = CopySize(ctas=1, in_flight_bytes=16384, source="no copy kernel runs")


class TimedStreams(StreamLanes):
    """Of a GPU. `heard` gets the host seconds of each wait for a list."""

    def __init__(self, device: torch.device, heard: list[float]) -> None:
        super().__init__(device)
        self._heard = heard

    def hear(self, name: str) -> None:
        """Wait, and keep how long."""
        began = time.perf_counter()
        super().hear(name)
        self._heard.append(time.perf_counter() - began)


class _Thread(SerialLanes):
    """Where there is no GPU."""

    def __init__(self, heard: list[float]) -> None:
        self._heard = heard

    def hear(self, name: str) -> None:
        self._heard.append(0.0)


class HostSteps:
    """Steps by one engine, each of whose layers moves `count` blocks.

    heard, moved  host seconds of each wait for a list, and of each gathering and submitting, of the last step
    """

    def __init__(
        self, sizes: Sizes, pool: Pool, engine: HostListEngine, count: int, *, early: bool, copies: bool = True
    ) -> None:
        self._pool, self._engine, self._count = pool, engine, count
        self._plan = plan_of(
            LAYERS if has_gpu() else 2, engine=engine.name, early=early, copies=copies
        )  # fmt: skip
        self.layers = len([op for op in self._plan if op.kind == Kind.DIFF])
        self._x, self._w, self._y = _operands(sizes, pool)
        self._source, self._target = pool.cut(sizes.block_kib)
        layout = layout_of(sizes, self._source.shape[0], self._target.shape[0], self.layers)
        self._drawn = SessionLists(sizes, layout, layers=self.layers, count=count)
        # A list comes to the host as long as it is, into room for the longest.
        self._room = layout.rows * layout.heads * layout.slots
        self._fresh = [self._list() for _ in range(self.layers)]
        self._tiers = [self._tier() for _ in range(self.layers)]
        self.heard: list[float] = []
        self.moved: list[float] = []
        self._lanes = self._made_lanes()
        eager = Eager(lambda _: self._pieces(copies=copies))
        self._replays: Replays = Captured(eager, self._lanes) if isinstance(self._lanes, StreamLanes) else eager
        for _ in range(2):  # the first compiles, the second captures
            self.step()

    def step(self) -> tuple[float, float]:
        """One step on lists that no step had; (microseconds on the device, host seconds of issuing it)."""
        for kept, new in zip(self._fresh, self._drawn.step(), strict=True):
            kept[:2, : self._count].copy_(torch.from_numpy(np.stack(new)))
        self.heard.clear()
        self.moved.clear()
        start, end = new_mark(), new_mark()
        finish()

        def issue() -> float:
            start.record()
            began = time.perf_counter()
            self._replays.run(_KEY)
            took = time.perf_counter() - began
            end.record()
            return took

        issued = in_inference(lambda: self._lanes.step(issue))
        finish()
        return float(start.elapsed_time(end)) * 1e3, issued

    def close(self) -> None:
        """Destroy the graphs."""
        finish()
        self._replays.close()

    def check(self) -> None:
        """Raise AssertionError unless the last layer's last list, and no other block, arrived."""
        finish()
        tier = self._tiers[-1]
        assert tier.diff is not None
        count = int(tier.diff.count.cpu())
        assert count == self._count, f"the list of {self._count} blocks says {count}"
        source, target = tier.diff.source[:count].long().cpu(), tier.diff.target[:count].long()
        same = torch.equal(self._target[target].cpu(), self._source[source])
        assert same, f"{self._engine.name}: other blocks arrived than the {count} that were listed"

    def _made_lanes(self) -> Lanes:
        return TimedStreams(self._pool.device, self.heard) if has_gpu() else _Thread(self.heard)

    def _pieces(self, *, copies: bool) -> tuple[Piece, ...]:
        return pieces_of(self._plan, self._table(), self._lanes, host_lists=copies, tell=self._tell)

    def _table(self) -> Mapping[str, Issue]:
        return {
            Kind.EMBED: lambda _: self._y.zero_(), Kind.MLP: self._products, Kind.DIFF: self._diff,
            Kind.FETCH: self._fetch, Kind.ATTEND: lambda _: self._y.zero_(),
        }  # fmt: skip

    def _products(self, _: Op) -> None:
        for _again in range(PRODUCTS):
            torch.mm(self._x, self._w, out=self._y)

    def _diff(self, op: Op) -> None:
        diff = self._tiers[op.layer].diff
        assert diff is not None
        for kept, new in zip((diff.source, diff.target), self._fresh[op.layer], strict=False):
            kept[: self._count].copy_(new)
        diff.count.copy_(self._fresh[op.layer][2, :1])

    def _tell(self, op: Op) -> None:
        self._engine.tell(self._tiers[op.layer])

    def _fetch(self, op: Op) -> None:
        tier = self._tiers[op.layer]
        began = time.perf_counter()
        ids = self._engine.listed(tier)
        told = time.perf_counter()
        self._engine.take_up(tier, *ids)
        self.heard[-1] += told - began
        self.moved.append(time.perf_counter() - told)

    def _list(self) -> torch.Tensor:
        """Room for blocks, slots and length of a list, the length written."""
        made = torch.zeros(3, max(1, self._count), dtype=torch.int32, device=self._pool.device)
        made[2] = self._count
        return made

    def _tier(self) -> LayerTier:
        """What an engine looks at, and nothing else."""
        most = max(self._count, self._room)
        ints = torch.zeros(3, most, dtype=torch.int32, device=self._pool.device)
        no = ints[:0]
        return LayerTier(
            entries=no, ring=no, scores=no, choice=Choice(blocks=no, counts=no), device=None,
            slots=DeviceSlots(array=self._target, held=no, used=no, where=no),
            host=Paged(array=self._source, table=no, page_blocks=1),
            diff=DeviceDiff(
                physical=no, tail=no, source=ints[0], target=ints[1], count=ints[2, :1], misses=no, opened=no
            ),
        )  # fmt: skip


def _operands(sizes: Sizes, pool: Pool) -> tuple[Any, Any, Any]:
    shape, dtype = sizes.shape, getattr(torch, sizes.dtype)
    made = [(ROWS, shape.hidden), (shape.hidden, 2 * shape.ffn), (ROWS, 2 * shape.ffn)]
    return tuple(torch.zeros(size, dtype=dtype, device=pool.device) for size in made)  # type: ignore[return-value]

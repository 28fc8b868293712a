"""Transfer engines of a GPU: how the blocks of a list of misses get from host memory into their slots."""

from __future__ import annotations

import abc
import weakref
from typing import ClassVar

import torch

from sparda_core.errors import ConfigError, UnknownNameError
from sparda_core.kernels.early import AT_END
from sparda_core.kernels.gather.gpu import gather_blocks
from sparda_core.kernels.gather.gpu_layers import copy_layers
from sparda_core.kernels.tables import DeviceDiff, LayerLists, Paged
from sparda_core.runtimes.gpu.alias import as_words
from sparda_core.runtimes.gpu.block_copies import copy_blocks
from sparda_core.runtimes.gpu.host_list import HostList, Ints, Staging
from sparda_core.runtimes.gpu.options import CopySize
from sparda_core.runtimes.gpu.tier import LayerTier
from sparda_core.segments import STAGED


class Engine(abc.ABC):
    """Moves the misses of a layer, on the stream that is current.

    name             as in plans and profiles
    needs_host_list  whether the host must know the list in mid-step. Such a step cannot be one graph: it runs as
                     pieces, cut at each copy
    narrow           whether it can widen a float8 host copy on the way
    whole_step       whether `fetch_all` can move the lists of all layers
    """

    name: ClassVar[str]
    needs_host_list: ClassVar[bool] = False
    narrow: ClassVar[bool] = False
    whole_step: ClassVar[bool] = False

    @abc.abstractmethod
    def fetch(self, tier: LayerTier, size: CopySize) -> None:
        """Issue the copies of `tier.diff`'s list."""

    def fetch_all(self, host: Paged, lists: LayerLists, size: CopySize, *, programs: int, load: bool = False) -> None:
        """Issue, under capture, what moves the lists of all layers, each when `programs` of its diff have arrived.

        load  only load the kernel: before the capture
        """
        raise ConfigError(f"engine={self.name!r} copies layer by layer; choose engine='uva' or copy_launch='layer'")


class Uva(Engine):
    """A kernel of few thread blocks that reads list, count and host memory by itself."""

    name = "uva"
    narrow = True
    whole_step = True

    def fetch(self, tier: LayerTier, size: CopySize) -> None:
        """One launch, whatever the list holds."""
        assert tier.host is not None
        assert tier.slots is not None
        assert tier.diff is not None
        gather_blocks(
            tier.host.array, tier.slots.array, tier.diff.source, tier.diff.target, tier.diff.count,
            ctas=size.ctas, in_flight_bytes=size.in_flight_bytes, scales=tier.host.scales,
        )  # fmt: skip

    def fetch_all(self, host: Paged, lists: LayerLists, size: CopySize, *, programs: int, load: bool = False) -> None:
        """One launch a step."""
        copy_layers(
            host.array, lists, programs=programs, layers=0 if load else None, ctas=size.ctas,
            in_flight_bytes=size.in_flight_bytes, scales=host.scales,
        )  # fmt: skip


class HostListEngine(Engine):
    """Reads the list on the host first. Narrow hook: `move`."""

    needs_host_list = True

    def __init__(self) -> None:
        # By what a diff leaves, for as long as a step is bound to it.
        self._lists: weakref.WeakKeyDictionary[DeviceDiff, HostList] = weakref.WeakKeyDictionary()

    def tell(self, tier: LayerTier, *, early: int = AT_END) -> None:
        """Issue what writes list and length to the host's memory, behind the diff. Its first call takes that memory,
        so it must not be under capture.
        """
        assert tier.diff is not None
        self._list(tier.diff).tell(tier.diff, early=early)

    def fetch(self, tier: LayerTier, size: CopySize) -> None:
        """Move what a list says that was told; the host must have waited for it."""
        self.take_up(tier, *self.listed(tier))

    def listed(self, tier: LayerTier) -> tuple[Ints, Ints]:
        """The list that was told: (blocks of host memory, slots). LaneError where none was."""
        assert tier.diff is not None
        return self._list(tier.diff).told()

    def take_up(self, tier: LayerTier, source_ids: Ints, target_ids: Ints) -> None:
        """Move what a list says, if anything."""
        if source_ids.size:
            self.move(tier, source_ids, target_ids)

    def _list(self, diff: DeviceDiff) -> HostList:
        found = self._lists.get(diff)
        if found is None:
            found = self._lists[diff] = HostList(diff)
        return found

    @abc.abstractmethod
    def move(self, tier: LayerTier, source_ids: Ints, target_ids: Ints) -> None:
        """Issue the copies of blocks `source_ids` of host memory into slots `target_ids`, the first of `tier.diff`'s
        list.
        """


class CopyEngine(HostListEngine):
    """The device's copy engine, a block a piece: no thread block is taken from compute."""

    name = "copy-engine"

    def move(self, tier: LayerTier, source_ids: Ints, target_ids: Ints) -> None:
        """As few calls as keep the copy engine busy meanwhile."""
        assert tier.host is not None
        assert tier.slots is not None
        copy_blocks(tier.host.array, tier.slots.array, source_ids, target_ids)


class CpuGather(HostListEngine):
    """Threads of the host gather the blocks into one piece of pinned memory, one copy moves it, a kernel scatters."""

    name = "cpu-gather"

    def __init__(self) -> None:
        super().__init__()
        self._staging, self._turn = [Staging() for _ in range(STAGED)], 0

    def move(self, tier: LayerTier, source_ids: Ints, target_ids: Ints) -> None:
        """Gather, copy, scatter."""
        assert tier.host is not None
        assert tier.slots is not None
        assert tier.diff is not None
        rows, slots = (as_words(part.view(part.shape[0], -1)) for part in (tier.host.array, tier.slots.array))
        self._turn = (self._turn + 1) % STAGED
        staging = self._staging[self._turn]
        gathered, arrived = staging.room(len(source_ids), rows, slots.device)
        torch.index_select(rows, 0, torch.from_numpy(source_ids), out=gathered)
        arrived.copy_(gathered, non_blocking=True)
        staging.reads()
        # The list that the device has: the host's would have to go there first.
        slots.index_copy_(0, tier.diff.target[: len(target_ids)].long(), arrived)


ENGINES: dict[str, type[Engine]] = {engine.name: engine for engine in (Uva, CopyEngine, CpuGather)}


def make_engine(name: str) -> Engine:
    """An engine by name; the runtimes' default "thread", the CPU's, stands for "uva" on a GPU."""
    if name == "thread":
        name = Uva.name
    if name not in ENGINES:
        raise UnknownNameError(what="engine", name=name, known=ENGINES)
    return ENGINES[name]()


def require_one_graph(engine: Engine) -> None:
    """Raise ConfigError where a step with this engine cannot be one graph."""
    if engine.needs_host_list:
        raise ConfigError(
            f"engine={engine.name!r} cannot be captured as one graph: the host must read each layer's list of misses "
            "in mid-step; such steps run as graph segments, cut at each copy. Choose engine='uva' for one graph"
        )


def check_engine(engine: Engine, *, host_dtype: str, copy_launch: str) -> None:
    """Raise ConfigError where an engine cannot do what a session asks of it."""
    if host_dtype == "fp8" and not engine.narrow:
        raise ConfigError(
            f"host_dtype='fp8' needs an engine that widens blocks while it copies, engine={engine.name!r} "
            "moves them as they are; choose engine='uva' or host_dtype='same'"
        )
    if copy_launch == "step" and not engine.whole_step:
        raise ConfigError(
            f"copy_launch='step' needs an engine that moves every layer's list by one launch, "
            f"engine={engine.name!r} copies layer by layer; choose engine='uva' or copy_launch='layer'"
        )

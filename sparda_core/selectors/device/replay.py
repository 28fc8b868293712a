"""GPU half of `replay`, and a wrapper that lets a trace decide after a selector has done its work."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sparda_core.device_view import DeviceView
from sparda_core.errors import ConfigError, RecordingError
from sparda_core.kernels.listed.gpu import play_position, play_step
from sparda_core.selector import BoundSelector, DeviceRoom, DeviceSelector
from sparda_core.selectors.declaration import SELECT
from sparda_core.selectors.device.scored import ListedDevice
from sparda_core.selectors.recording import Recording
from sparda_core.selectors.tensors.replay import BoundReplay


class DeviceReplay(ListedDevice):
    """Looks selections up by recorded row and position, on the device.

    A place plays the recorded row that the CPU half gave to its row (`adopt`); until then the one of its own number,
    or the only one. Where a position was not recorded nothing is selected: a step cannot raise. The next change of
    rows raises RecordingError instead.
    """

    def __init__(self, recording: Recording, *, source: str, room: DeviceRoom) -> None:
        """Raises RecordingError where the recording is wider than the budget."""
        super().__init__(room)
        width = recording.selections.shape[-1]
        if width > room.spec.budget:
            raise RecordingError(
                f"{source}: selections are {width} wide and budget={room.spec.budget}: raise budget to {width}"
            )
        self._source = source
        steps, self._first = recording.steps_by_position()
        device = torch.device(room.device)
        self._trace = torch.from_numpy(recording.selections).to(device)
        self._steps = torch.from_numpy(steps).to(device)
        columns = [0 if recording.rows == 1 else place for place in range(room.places)]
        known = [column if column < recording.rows else -1 for column in columns]
        self._column = torch.tensor(known, dtype=torch.int32, device=device)
        self._unserved = torch.zeros(1, dtype=torch.int32, device=device)
        self.used_bytes = self._trace.nbytes + self._steps.nbytes + self._column.nbytes

    def fill(self, view: DeviceView) -> None:
        """One lookup a place."""
        column = self._column[: view.position.shape[0]]
        play_position(
            self._trace, view.layer, self._steps, column, self._first, view.position, view.choice, self._unserved,
            early=self.early,
        )  # fmt: skip

    def adopt(
        self, place: int, bound: BoundSelector, row: int, tokens: int,
        keys: Callable[[int], torch.Tensor] | None = None,
    ) -> None:  # fmt: skip
        """Play what the CPU half plays for the row; raises RecordingError where it has no row left to give."""
        assert isinstance(bound, BoundReplay), f"the CPU half is a {type(bound).__name__}"
        self.require_served()
        self._column[place] = bound.column_of(row)

    def place_forked(self, source: int, copy: int) -> None:
        """The copy plays what its source plays."""
        self.require_served()
        self._column[copy] = self._column[source]

    def place_moved(self, source: int, target: int) -> None:
        """The row plays on in its new place."""
        self.require_served()
        self._column[target] = self._column[source]

    def require_served(self) -> None:
        """Raise RecordingError if a place had a position that was not recorded; waits for the device."""
        if int(self._unserved):
            self._unserved.zero_()
            raise RecordingError(
                f"{self._source}: a step asked for positions that were not recorded, and selected nothing there: "
                "record them, or prefill up to where the recording starts"
            )


class Replaced(DeviceSelector):
    """The inner selector's kernels in full, then a trace's choice in place of its own: for benchmarks.

    So scores and top-k cost what they cost, while misses follow a locality. One small launch a layer more.
    """

    def __init__(
        self, inner: DeviceSelector, trace: torch.Tensor, counter: torch.Tensor, *, first: int = 0, early: int = 0
    ) -> None:
        """trace int32 [T, L, R, Hk, V] and counter int32 [1] on the device; step counter - first is played.

        Place b plays row b of the trace; outside of its steps nothing is selected. `counter` is read at every replay.
        """
        if trace.dtype != torch.int32 or trace.ndim != 5:
            raise ConfigError(f"trace is {trace.dtype} {list(trace.shape)}; want int32 [T, L, R, Hk, V]")
        self._inner, self._trace, self._counter, self._first = inner, trace.contiguous(), counter, first
        self._early = early
        self.used_bytes = inner.used_bytes + self._trace.nbytes

    def run(self, kind: str, view: DeviceView) -> None:
        """As the inner selector; after `select`, the trace's blocks stand in view.choice."""
        self._inner.run(kind, view)
        if kind == SELECT:
            play_step(
                self._trace, view.layer, self._counter, self._first, view.position, view.choice, early=self._early
            )

    def observe(self, view: DeviceView) -> None:
        """As the inner selector."""
        self._inner.observe(view)

    def adopt(
        self, place: int, bound: BoundSelector, row: int, tokens: int,
        keys: Callable[[int], torch.Tensor] | None = None,
    ) -> None:  # fmt: skip
        """As the inner selector."""
        self._inner.adopt(place, bound, row, tokens, keys)

    def place_forked(self, source: int, copy: int) -> None:
        """As the inner selector."""
        self._inner.place_forked(source, copy)

    def place_cropped(self, place: int, tokens: int) -> None:
        """As the inner selector."""
        self._inner.place_cropped(place, tokens)

    def place_moved(self, source: int, target: int) -> None:
        """As the inner selector."""
        self._inner.place_moved(source, target)

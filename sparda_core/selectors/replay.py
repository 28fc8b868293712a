"""replay: selections played back from a recording, so that two runs differ in nothing but what is studied."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

import attrs

from sparda_core.errors import ConfigError, RecordingError
from sparda_core.selector import BoundSelector, DeviceRoom, DeviceSelector, DeviceSizes
from sparda_core.selectors.declaration import ListingDeclaration
from sparda_core.selectors.recording import Recording, load
from sparda_core.shapes import BlockSpec, ModelShape


def _path(value: str | os.PathLike[str]) -> Path:
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"path={value!r} must name a file made by `sparda record`")
    return Path(value)


@attrs.frozen(kw_only=True)
class Replay(ListingDeclaration):
    """Plays a recording (sparda_core/selectors/recording.py), found by the position of the query.

    Recorded rows are given out in order: the first row that asks plays the first one, and keeps it
    however the batch is reordered; a fork plays what its source plays. A recording of one row serves
    every row. Where a position was recorded twice, the later step is played.
    """

    name: ClassVar[str] = "replay"
    lead = None

    path: Path = attrs.field(converter=_path)

    def bind(self, *, shape: ModelShape, spec: BlockSpec) -> BoundSelector:
        """The tensor half; reads and validates the file, and raises RecordingError where it does not fit."""
        from sparda_core.selectors.tensors.replay import BoundReplay

        return BoundReplay(self._fitting(shape, spec), source=str(self.path))

    def device_bytes(self, sizes: DeviceSizes) -> int:
        """The recording's selections, when each was recorded, and who plays which row."""
        recording = self._fitting(sizes.shape, sizes.spec)
        steps, _ = recording.steps_by_position()
        return recording.selections.nbytes + steps.nbytes + 4 * sizes.places

    def bind_device(self, room: DeviceRoom) -> DeviceSelector:
        """The GPU half, which keeps the whole recording on the device; raises RecordingError like `bind`."""
        from sparda_core.selectors.device.replay import DeviceReplay

        return DeviceReplay(self._fitting(room.shape, room.spec), source=str(self.path), room=room)

    def _fitting(self, shape: ModelShape, spec: BlockSpec) -> Recording:
        recording = load(self.path)
        for name, recorded, wanted in (
            ("layers", recording.layers, shape.layers),
            ("kv_heads", recording.kv_heads, shape.kv_heads),
            ("block", recording.spec.block, spec.block),
            ("sink", recording.spec.sink, spec.sink),
            ("local", recording.spec.local, spec.local),
        ):
            if recorded != wanted:
                raise RecordingError(
                    f"{self.path}: recorded with {name}={recorded} (model {recording.model!r}), "
                    f"but this session has {name}={wanted}: record again, or choose the recording's model and spec"
                )
        return recording

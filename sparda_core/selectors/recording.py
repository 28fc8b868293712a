"""Recordings: the selections of a run, in a file that `replay` plays and studies of locality read. Torch-free.

One .npz file (a zip of .npy arrays, no pickled objects), written whole or not at all:

    meta        uint8, JSON: format, model, layers, kv_heads, selector, spec (every field of BlockSpec)
    selections  int32 [steps, L, B, Hk, budget]: ascending logical blocks, -1 last
    positions   int64 [steps, B]: absolute position of each row's query; negative where the row sat out
    facts       uint8, JSON: one StepFacts a step, or an empty list (optional)
    scored      int16 [steps, 3, L, B, Hk]: misses under policy "score" in pools of 1, 2, 4 selections (optional)
"""

from __future__ import annotations

import io
import json
import lzma
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from sparda_core.errors import ConfigError, RecordingError
from sparda_core.facts import StepFacts
from sparda_core.fields import require
from sparda_core.files import parse_json, whole_file
from sparda_core.policy import SCORED_POOLS
from sparda_core.selection import NO_BLOCK, Selection
from sparda_core.selectors.shipped import path_of
from sparda_core.shapes import BlockSpec, ModelShape

#: Raised by one whenever an older reader could misread a newer file.
FORMAT = 1
#: Largest recording that is read, in bytes once unpacked: 5,000 steps of the 8B shape at batch 32.
MAX_BYTES = 4 * 2**30

#: Most places of the table from positions to steps: 64 rows of four million tokens.
_MOST_PLACES = 2**28
#: What archives, arrays and documents that are none raise; an encrypted archive raises RuntimeError.
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, tokenize.TokenError, SyntaxError, EOFError,
    ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError,
)  # fmt: skip

_ARRAYS = {
    "meta": ("|u1", 1), "selections": ("<i4", 5), "positions": ("<i8", 2), "facts": ("|u1", 1), "scored": ("<i2", 5),
}  # fmt: skip
_OPTIONAL = ("facts", "scored")
#: When every member of a file was written, so that equal recordings are equal files.
_NO_TIME = (1980, 1, 1, 0, 0, 0)
_same = attrs.cmp_using(eq=np.array_equal)


@attrs.frozen(kw_only=True)
class Recording:
    """Lawful selections of every layer and row of some steps; raises RecordingError otherwise.

    selections  int32 [steps, L, B, Hk, budget]
    positions   int64 [steps, B]
    facts       one a step, or none at all
    scored      int16 [steps, 3, L, B, Hk]: misses under policy "score" in pools of SCORED_POOLS selections, empty but
                for each row's partial block before the first step; None where no scores were seen
    notes       where it is from, in words: texts, weights, command
    """

    model: str
    selector: str
    spec: BlockSpec
    selections: Selection = attrs.field(eq=_same)
    positions: npt.NDArray[np.int64] = attrs.field(eq=_same)
    facts: tuple[StepFacts, ...] = ()
    scored: npt.NDArray[np.int16] | None = attrs.field(default=None, eq=_same)
    notes: Mapping[str, str] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        shape = self.selections.shape
        if self.selections.dtype != np.int32 or len(shape) != 5 or 0 in shape:
            raise RecordingError(
                f"selections have dtype={self.selections.dtype}, shape={shape}; "
                "want int32 [steps, L, B, Hk, budget], nothing empty"
            )
        if self.positions.dtype != np.int64 or self.positions.shape != (shape[0], shape[2]):
            raise RecordingError(
                f"positions have dtype={self.positions.dtype}, shape={self.positions.shape}; "
                f"want int64 [steps={shape[0]}, B={shape[2]}]"
            )
        if shape[-1] != self.spec.budget:
            raise RecordingError(f"selections are {shape[-1]} wide but the spec's budget={self.spec.budget}")
        if len(self.facts) not in (0, shape[0]):
            raise RecordingError(f"{len(self.facts)} facts for {shape[0]} steps; want one a step, or none")
        self._check_scored()
        for step in range(shape[0]):
            fault = _fault(self.selections[step], self.positions[step], self.spec)
            if fault:
                raise RecordingError(f"step {step}: selection {fault}")

    def _check_scored(self) -> None:
        if self.scored is None:
            return
        steps, layers, rows, heads, _ = self.selections.shape
        if self.scored.dtype != np.int16 or self.scored.shape != (steps, len(SCORED_POOLS), layers, rows, heads):
            raise RecordingError(
                f"scored has dtype={self.scored.dtype}, shape={self.scored.shape}; want int16 "
                f"[steps={steps}, {len(SCORED_POOLS)}, L={layers}, B={rows}, Hk={heads}]"
            )
        selected = (self.selections != NO_BLOCK).sum(-1)
        if (self.scored < 0).any() or (self.scored > selected[:, None]).any():
            raise RecordingError("scored holds misses below 0, or more of them than blocks were selected")

    @property
    def steps(self) -> int:
        """Steps recorded."""
        return int(self.selections.shape[0])

    @property
    def layers(self) -> int:
        """Layers, L."""
        return int(self.selections.shape[1])

    @property
    def rows(self) -> int:
        """Rows, B."""
        return int(self.selections.shape[2])

    @property
    def kv_heads(self) -> int:
        """KV heads, Hk."""
        return int(self.selections.shape[3])

    def steps_by_position(self) -> tuple[npt.NDArray[np.int32], int]:
        """int32 [B, P], the step at which each row had position first + p, -1 for never; and `first`. The last wins.

        Raises RecordingError where positions lie too far apart for such a table.
        """
        seen = self.positions[self.positions >= 0]
        first = int(seen.min()) if seen.size else 0
        span = int(seen.max()) - first + 1 if seen.size else 1
        if self.rows * span > _MOST_PLACES:
            raise RecordingError(
                f"positions of {self.rows} rows span {span} tokens; rows x tokens must be <= {_MOST_PLACES}"
            )
        steps = np.full((self.rows, span), -1, np.int32)
        for step in range(self.steps):
            for row in np.flatnonzero(self.positions[step] >= 0):
                steps[row, self.positions[step, row] - first] = step
        return steps, first

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file; it appears whole, under its own name, or not at all."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "selections": self.selections, "positions": self.positions, "meta": _as_bytes(self._meta()),
        }  # fmt: skip
        if self.facts:
            arrays["facts"] = _as_bytes([json.loads(fact.to_json()) for fact in self.facts])
        if self.scored is not None:
            arrays["scored"] = self.scored
        with whole_file(Path(path)) as part, zipfile.ZipFile(part, "w") as archive:
            for name, array in arrays.items():
                # LZMA finds a selection again many steps later: half the size of what deflate makes of it.
                member = zipfile.ZipInfo(f"{name}.npy", _NO_TIME)
                member.compress_type = zipfile.ZIP_LZMA
                archive.writestr(member, _npy(array))

    def _meta(self) -> dict[str, Any]:
        return {
            "format": FORMAT, "model": self.model, "layers": self.layers, "kv_heads": self.kv_heads,
            "selector": self.selector, "spec": attrs.asdict(self.spec),
            **({"notes": dict(self.notes)} if self.notes else {}),
        }  # fmt: skip


class Recorder:
    """Collects a run, step by step; `recording` gives what was collected."""

    def __init__(self, *, shape: ModelShape, spec: BlockSpec, selector: str) -> None:
        self._shape, self._spec, self._selector = shape, spec, selector
        self._selections: list[Selection] = []
        self._positions: list[npt.NDArray[np.int64]] = []
        self._facts: list[StepFacts] = []
        self._scored: list[npt.NDArray[np.int16]] = []

    def add(self, positions: npt.ArrayLike, selections: npt.ArrayLike) -> None:
        """Add what one run of a plan selected; the arrays are copied.

        positions   int [B, T], or [B] for a decode step
        selections  int [L, B, Hk, T, width], or [L, B, Hk, width]; width <= budget, padded to it
        A chunk of T tokens becomes T steps. Raises RecordingError for arrays that do not fit the run.
        """
        where = np.asarray(positions, np.int64)
        ids = np.asarray(selections, np.int32)
        if where.ndim == 1 and ids.ndim == 4:
            where, ids = where[:, None], ids[..., None, :]
        if where.ndim != 2:
            raise RecordingError(f"positions have shape {where.shape}; want [B, T], or [B] with [L, B, Hk, width]")
        rows = self._positions[0].shape[0] if self._positions else where.shape[0]
        want = (self._shape.layers, rows, self._shape.kv_heads, where.shape[1])
        if ids.ndim != 5 or ids.shape[:4] != want or ids.shape[4] > self._spec.budget or where.shape[0] != rows:
            raise RecordingError(
                f"step has selections {ids.shape} at positions {where.shape}; this recording takes "
                f"[L={want[0]}, B={rows}, Hk={want[2]}, T, width <= {self._spec.budget}]"
            )
        full = np.full((*ids.shape[:4], self._spec.budget), NO_BLOCK, np.int32)
        full[..., : ids.shape[4]] = ids
        self._selections += [full[:, :, :, t] for t in range(where.shape[1])]
        self._positions += [where[:, t].copy() for t in range(where.shape[1])]

    def add_facts(self, facts: StepFacts) -> None:
        """Facts of the step just added; give them at every step or at none."""
        self._facts.append(facts)

    def add_scored(self, misses: npt.ArrayLike) -> None:
        """Misses [3, L, B, Hk] under policy "score" in the step just added (ScorePools); at every step or at none."""
        self._scored.append(np.asarray(misses, np.int16))

    def recording(self) -> Recording:
        """Everything added so far, validated; raises RecordingError where nothing was."""
        if not self._selections:
            raise RecordingError("nothing was recorded: add at least one step")
        return Recording(
            model=self._shape.name, selector=self._selector, spec=self._spec, selections=np.stack(self._selections),
            positions=np.stack(self._positions), facts=tuple(self._facts),
            scored=np.stack(self._scored) if self._scored else None,
        )  # fmt: skip


def load(path: str | os.PathLike[str]) -> Recording:
    """Read and validate a recording, of a file or of the name of one that is shipped (`shipped.recording_names`).

    Raises RecordingError for what is not a sound one.
    """
    try:
        with zipfile.ZipFile(path_of(path)) as archive:
            arrays = _read(archive)
        meta = parse_json(arrays["meta"].tobytes())
        if not isinstance(meta, dict) or meta.get("format") != FORMAT:
            raise RecordingError(f"format={meta.get('format') if isinstance(meta, dict) else meta!r} must be {FORMAT}")
        require(meta, "meta", model=str, selector=str, layers=int, kv_heads=int, spec=dict)
        facts = parse_json(arrays["facts"].tobytes()) if "facts" in arrays else []
        recording = Recording(
            model=meta["model"], selector=meta["selector"], spec=BlockSpec(**meta["spec"]),
            selections=arrays["selections"], positions=arrays["positions"],
            facts=tuple(StepFacts.from_json(json.dumps(fact)) for fact in facts), scored=arrays.get("scored"),
            notes={str(name): str(value) for name, value in dict(meta.get("notes", {})).items()},
        )  # fmt: skip
        for name, value in (("layers", recording.layers), ("kv_heads", recording.kv_heads)):
            if meta[name] != value:
                raise RecordingError(f"meta says {name}={meta[name]!r}, the selections have {value}")
    except OSError as wrong:
        reason = wrong.strerror or wrong
        raise RecordingError(f"{path}: cannot be read: {reason}; give a file made by `sparda record`") from wrong
    except _DAMAGE as wrong:
        what = wrong if isinstance(wrong, ConfigError) else f"{type(wrong).__name__}: {wrong}"
        raise RecordingError(f"{path}: not a sound recording: {what}; record it again with `sparda record`") from wrong
    return recording


def _read(archive: zipfile.ZipFile) -> dict[str, npt.NDArray[Any]]:
    """Every array, none read before its size and type are known to be right."""
    sizes = {info.filename: info.file_size for info in archive.infolist()}
    known = {f"{name}.npy" for name in _ARRAYS}
    optional = {f"{name}.npy" for name in _OPTIONAL}
    if not known - optional <= sizes.keys() <= known or len(sizes) != len(archive.infolist()):
        want = f"{sorted(known)}, of which {sorted(optional)} may be missing"
        raise RecordingError(f"holds {sorted(sizes)}; want {want}")
    if sum(sizes.values()) > MAX_BYTES:
        raise RecordingError(f"unpacks to {sum(sizes.values())} bytes; at most {MAX_BYTES} are read")
    return {Path(name).stem: _read_array(archive, name, size) for name, size in sizes.items()}


def _read_array(archive: zipfile.ZipFile, name: str, size: int) -> npt.NDArray[Any]:
    dtype, axes = _ARRAYS[Path(name).stem]
    with archive.open(name) as file:
        if np.lib.format.read_magic(file) != (1, 0):
            raise RecordingError(f"{name} is written in another .npy version than 1.0")
        shape, fortran, found = np.lib.format.read_array_header_1_0(file)
        count = int(np.prod(shape, dtype=object))
        if found != np.dtype(dtype) or len(shape) != axes or fortran:
            raise RecordingError(f"{name} is {found} {shape}; want {np.dtype(dtype)} with {axes} axes, row by row")
        if min(shape, default=0) < 0 or count * found.itemsize + file.tell() != size:
            raise RecordingError(f"{name} says {shape} but has {size} bytes")
        return np.frombuffer(bytearray(file.read()), found).reshape(shape)


def _npy(array: npt.NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)
    return file.getvalue()


def _as_bytes(value: Any) -> npt.NDArray[np.uint8]:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def _fault(ids: Selection, positions: npt.NDArray[np.int64], spec: BlockSpec) -> str | None:
    """What is unlawful in one step, ids [L, B, Hk, budget] and positions [B]; None where nothing is."""
    current = np.where(positions < 0, -1, positions // spec.block)[None, :, None]
    left, right = ids[..., :-1], ids[..., 1:]
    disordered = (right != NO_BLOCK) & ((right <= left) | (left == NO_BLOCK))
    if (ids < NO_BLOCK).any() or disordered.any():
        return "is not ascending without repeats, -1 last"
    if (ids.max(-1) > current).any():
        return "holds a block after the query's own, or blocks of a row that sat out"
    return _forced_fault(ids, np.broadcast_to(current, ids.shape[:-1]), spec)


def _forced_fault(ids: Selection, current: npt.NDArray[np.int64], spec: BlockSpec) -> str | None:
    """Which forced block is missing somewhere. Ids ascend without repeats: where a run's far end is right, all is."""
    count = (ids != NO_BLOCK).sum(-1)
    sinks = np.minimum(spec.sink, np.maximum(current - spec.local, 0))
    band = np.minimum(spec.local, current)  # blocks before the query's own; -1 where there is no query

    def at(place: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        return np.take_along_axis(ids, np.maximum(place, 0)[..., None], -1)[..., 0]

    for place in np.argwhere((sinks > 0) & (at(sinks - 1) != sinks - 1))[:1]:
        listed = set(ids[tuple(place)].tolist())
        return f"lacks sink block {next(b for b in range(int(sinks[tuple(place)])) if b not in listed)}"
    for place in np.argwhere((band >= 0) & ((count <= band) | (at(count - 1 - band) != current - band)))[:1]:
        listed, own = set(ids[tuple(place)].tolist()), int(current[tuple(place)])
        back = next(b for b in range(int(band[tuple(place)]) + 1) if own - b not in listed)
        return f"lacks the local block {back} before the query's own"
    return None

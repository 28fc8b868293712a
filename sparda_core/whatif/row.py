"""Row: what became of one point of a grid: a prediction, a shortage of memory, or the reason why it is impossible."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from sparda_core.errors import CapacityError, RecordingError, SpardaError
from sparda_core.files import parse_json
from sparda_core.whatif.grid import Grid


class Status(enum.StrEnum):
    """What a row holds: a time, the memory that is missing, or a reason."""

    FITS = "fits"
    NO_MEMORY = "out-of-memory"
    IMPOSSIBLE = "impossible"


@attrs.frozen(kw_only=True)
class Row:
    """One point. Times are seconds per step, None unless it fits; memory is None where it is impossible.

    point         number in the grid
    labels        axis -> label
    misses        blocks moved per step, of one GPU; late_blocks: those that had not arrived when they were wanted
    bound         what most of the critical path is spent for
    device_bytes  needed on the device, pool_bytes of them for slots; host_bytes: for the host store
    short_of      the memory that is too small, with what it needs and has, bytes
    reason        why there is no time
    """

    point: int
    labels: dict[str, Any]
    status: Status
    step_s: float | None = None
    tokens_per_s: float | None = None
    transfer_s: float | None = None
    hidden_s: float | None = None
    exposed_s: float | None = None
    misses: float | None = None
    late_blocks: float | None = None
    bound: str | None = None
    device_bytes: float | None = None
    pool_bytes: float | None = None
    host_bytes: float | None = None
    short_of: str | None = None
    need_bytes: int | None = None
    have_bytes: int | None = None
    extrapolated: str | None = None
    reason: str | None = None

    @property
    def fits(self) -> bool:
        """Whether it has a time."""
        return self.status == Status.FITS

    @property
    def exposed_share(self) -> float | None:
        """Share of the step in which the compute lane waited for a transfer."""
        return None if self.exposed_s is None or self.step_s is None else self.exposed_s / self.step_s


#: Columns of a table of rows after the axes, in order.
FIGURES = tuple(field.name for field in attrs.fields(Row) if field.name not in ("point", "labels"))


def evaluate(grid: Grid, points: Sequence[int]) -> list[Row]:
    """Rows of some points. What is wrong with one point becomes its row; a defect of ours is raised."""
    return [_row(grid, point) for point in points]


def _row(grid: Grid, point: int) -> Row:
    labels = grid.labels(point)
    try:
        got = grid.scenario(point).predict()
    except CapacityError as wrong:
        return Row(point=point, labels=labels, status=Status.NO_MEMORY, **_shortage(wrong))
    except (SpardaError, OSError) as wrong:
        return Row(point=point, labels=labels, status=Status.IMPOSSIBLE, reason=" ".join(str(wrong).split()))
    need = got.need
    memory: dict[str, Any] = {
        "device_bytes": float(need.device), "pool_bytes": float(need.pools), "host_bytes": float(need.host)
    }  # fmt: skip
    if got.problem is not None:
        return Row(point=point, labels=labels, status=Status.NO_MEMORY, **memory, **_shortage(got.problem))
    times = {name: getattr(got, name) for name in ("step_s", "tokens_per_s", "transfer_s", "hidden_s", "exposed_s")}
    row = Row(
        point=point, labels=labels, status=Status.FITS, misses=float(got.misses), late_blocks=float(got.late_blocks),
        bound=got.bound, extrapolated=got.provenance.get("extrapolated") or None, **times, **memory,
    )  # fmt: skip
    assert all(math.isfinite(v) for v in attrs.astuple(row) if isinstance(v, float)), row
    return row


def _shortage(wrong: CapacityError) -> dict[str, Any]:
    return {"short_of": wrong.tier, "need_bytes": wrong.need, "have_bytes": wrong.free, "reason": str(wrong)}


def to_line(row: Row) -> str:
    """A row as one line of JSON, without what it does not have."""
    plain = {name: value for name, value in attrs.asdict(row).items() if value is not None}
    return json.dumps(plain, allow_nan=False)


_TEXTS = frozenset({"status", "bound", "short_of", "extrapolated", "reason"})


def _check(row: Row) -> None:
    """Raise TypeError where a figure is no finite number, or a text none."""
    for name in FIGURES:
        value = getattr(row, name)
        if value is None:
            continue
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not (isinstance(value, str) if name in _TEXTS else is_number):
            raise TypeError(f"{name} is of the wrong kind")
    if isinstance(row.point, bool) or not isinstance(row.point, int):
        raise TypeError("point is no number of one")


def from_line(line: str | bytes, grid: Grid) -> Row:
    """The row of a line; raises RecordingError where it is damaged or no row of this grid."""
    try:
        plain: Mapping[str, Any] = parse_json(line)
        row = Row(**{**plain, "status": Status(plain["status"])})
        _check(row)
        right = 0 <= row.point < len(grid) and row.labels == grid.labels(row.point)
    except (KeyError, OverflowError, TypeError, ValueError) as wrong:
        raise RecordingError(f"it is damaged ({wrong})") from wrong
    if not right or row.fits != (row.step_s is not None):
        raise RecordingError("it is no row of this study")
    return row

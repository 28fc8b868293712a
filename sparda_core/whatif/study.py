"""Study: a grid with its rows; `run_grid` makes one, in parallel, and goes on where an earlier run stopped."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from sparda_core import __version__
from sparda_core.errors import ConfigError, SpardaError
from sparda_core.whatif.backends import Pool, serial
from sparda_core.whatif.grid import Grid
from sparda_core.whatif.row import Row, Status, evaluate
from sparda_core.whatif.store import Store, check_folder, write_study

#: Rows that a worker computes and hands back together: a fraction of a second's work, and little to lose.
CHUNK = 16
#: Format of study.json and rows.jsonl.
FORMAT = 1

Report = Callable[[str, int, int], None]


@attrs.frozen(kw_only=True)
class Study:
    """Rows of every point of a grid, in its order, and what they rest on (version, digests of profiles and files)."""

    grid: Grid
    rows: tuple[Row, ...]
    identity: dict[str, Any]

    @property
    def counts(self) -> dict[str, int]:
        """Rows by status."""
        return {str(status): sum(row.status == status for row in self.rows) for status in Status}

    def document(self) -> dict[str, Any]:
        """What it is and what became of it, without its rows, as plain values."""
        return {**self.identity, "finished": True, "counts": self.counts}


def run_grid(
    grid: Grid, *, pool: Pool = serial, folder: Path | None = None, resume: bool = False, report: Report | None = None
) -> Study:
    """Predict every point of a grid.

    pool      where; see `open_pool`. Rows do not depend on it
    folder    keeps rows as they are finished; `resume` computes only those that it lacks
    report    called with (what, done, total)
    An interruption (KeyboardInterrupt) says how many rows are safe.
    raises    before the run where every point is impossible; see also Store
    """
    identity = identity_of(grid)
    if folder is None:
        rows = _rows(grid, some_row(grid), range(len(grid)), pool, report)
        return Study(grid=grid, rows=tuple(rows), identity=identity)
    check_folder(folder, identity, resume=resume)
    first = some_row(grid)
    with Store(folder, grid, identity, resume=resume) as store:
        return _stored(grid, first, store, pool, report)


def _stored(grid: Grid, first: Row, store: Store, pool: Pool, report: Report | None) -> Study:
    missing = [point for point in range(len(grid)) if point not in store.rows]
    ready: list[Row] = []
    try:
        for row in _rows(grid, first, missing, pool, report):
            ready.append(row)
            if len(ready) >= CHUNK:
                store.add(ready)
                ready = []
    except KeyboardInterrupt:
        store.add(ready)
        raise KeyboardInterrupt(
            f"interrupted; {len(store.rows)} of {len(grid)} rows are in {store.folder}: --resume goes on"
        ) from None
    store.add(ready)
    study = Study(grid=grid, rows=tuple(store.rows[point] for point in range(len(grid))), identity=store.identity)
    store.write_table()
    write_study(store.folder, study.document())
    return study


def _rows(grid: Grid, first: Row, points: Sequence[int], pool: Pool, report: Report | None) -> Iterator[Row]:
    """Rows of `points` in order. Neighbours share most of their knobs, so a worker gets runs of them."""
    size = min(CHUNK, max(1, len(points) // 8))
    chunks = [points[at : at + size] for at in range(0, len(points), size)]
    done = 0
    for rows in pool(functools.partial(evaluate, grid), chunks):
        for row in rows:
            if row.point == first.point and row != first:
                raise ConfigError(
                    f"point {row.point} comes out otherwise where the workers are than here: they must have the same "
                    "version of this package, and the same profiles and localities"
                )
            yield row
        done += len(rows)
        if report is not None:
            report("points", done, len(points))


def some_row(grid: Grid) -> Row:
    """The row of a point that is possible; raises the error of the first point where none is."""
    first = None
    for point in grid.spread_out():
        (row,) = evaluate(grid, [point])
        if row.status != Status.IMPOSSIBLE:
            return row
        first = first or row
    assert first is not None
    _raise_again(grid, first.point)
    raise ConfigError(f"every one of {len(grid)} points is impossible; {first.labels}: {first.reason}")


def _raise_again(grid: Grid, point: int) -> None:
    """Raise what the point raises, as it is: it names the knob, the value and the way out."""
    try:
        grid.scenario(point).predict()
    except SpardaError as wrong:
        if len(grid) == 1:
            raise
        raise ConfigError(f"every one of the grid's {len(grid)} points is impossible; one of them: {wrong}") from wrong


def identity_of(grid: Grid) -> dict[str, Any]:
    """What makes two runs the same study: format, version, grid, and a digest of each profile and file it names."""
    described = grid.described()
    values = list(described["base"].items())
    values += [item for axis in described["axes"].values() for one in axis for item in one.items()]
    digests = {str(value): digest for name, value in values if (digest := _digest(name, value)) is not None}
    return {
        "format": FORMAT, "version": __version__, **described, "points": len(grid),
        "digests": dict(sorted(digests.items())),
    }  # fmt: skip


def _digest(name: str, value: Any) -> str | None:
    """Of a profile its own digest, of a recording and of a locality's file its content's; None for what is neither."""
    from sparda_core.selectors.shipped import path_of
    from sparda_core.simulator.profile_file import load_profile

    try:
        if name == "profile":
            return load_profile(value).digest
        if name == "locality" and isinstance(value, str) and value.endswith(".toml"):
            return hashlib.sha256(Path(value).read_bytes()).hexdigest()[:12]
        if name == "recording" and value is not None:
            return hashlib.sha256(path_of(value).read_bytes()).hexdigest()[:12]
    except (SpardaError, OSError):
        return "unreadable"  # its points say why
    return None


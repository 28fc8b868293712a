"""The table, published against predicted: errors, winners, memory, and what the result hangs on."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence

import attrs

from sparda_core.errors import ConfigError
from sparda_core.published.cells import Assumptions, CellResult, predict_cell
from sparda_core.published.inverse import root, step_s
from sparda_core.published.kernels import Paces
from sparda_core.published.table import Cell, Mode, cells

Progress = Callable[[], None]

#: The cell that the host's time of a launch may be fitted to: its step is the host's alone.
FITTED = (4, Mode.PREFETCH)
#: Between these the time of a launch is looked for, in seconds.
_LAUNCH_S = (1e-6, 60e-6)


@attrs.frozen(kw_only=True)
class Ranking:
    """The modes of one batch that have a published and a predicted time, fastest first."""

    batch: int
    published: tuple[Mode, ...]
    predicted: tuple[Mode, ...]

    @property
    def winner_right(self) -> bool:
        """Whether the fastest is the fastest."""
        return self.published[0] == self.predicted[0]

    @property
    def pairs(self) -> tuple[int, int]:
        """Pairs of modes in the right order, and pairs."""
        every = list(itertools.combinations(self.published, 2))
        place = self.predicted.index
        return sum(place(first) < place(second) for first, second in every), len(every)


@attrs.frozen(kw_only=True)
class Report:
    """All cells under one set of assumptions.

    fitted  the cell that one number was fitted to; it counts in no error below
    """

    assumed: Assumptions
    results: tuple[CellResult, ...]
    fitted: tuple[int, Mode] | None = None

    @property
    def errors(self) -> dict[tuple[int, Mode], float]:
        """Error of each cell that has a published and a predicted time, the fitted one left out."""
        found = {(r.cell.batch, r.cell.mode): r.error for r in self.results}
        judged = {key: error for key, error in found.items() if error is not None and key != self.fitted}
        if not judged:
            raise ConfigError(
                f"profile={self.assumed.profile!r}: no cell with a published time fits into its memory; "
                "the table was measured on an 80 GB GPU, take one as large"
            )
        return judged

    @property
    def median_error(self) -> float:
        """Median of the absolute errors."""
        return statistics.median(map(abs, self.errors.values()))

    @property
    def max_error(self) -> float:
        """Largest absolute error."""
        return max(map(abs, self.errors.values()))

    @property
    def rankings(self) -> tuple[Ranking, ...]:
        """By batch, of the cells that have a published and a predicted time; a batch with one such cell is left out."""
        return tuple(self._rankings())

    def _rankings(self) -> Iterator[Ranking]:
        for batch, group in itertools.groupby(self.results, key=lambda result: result.cell.batch):
            timed = [r for r in group if r.error is not None]
            if len(timed) > 1:
                # Modes are sorted by name first, so that equal times have one order.
                timed.sort(key=lambda r: r.cell.mode)
                yield Ranking(
                    batch=batch,
                    published=tuple(r.cell.mode for r in sorted(timed, key=lambda r: -(r.cell.tokens_per_s or 0))),
                    predicted=tuple(r.cell.mode for r in sorted(timed, key=lambda r: -(r.tokens_per_s or 0))),
                )

    @property
    def memory_wrong(self) -> tuple[CellResult, ...]:
        """Cells that fit where the paper ran out of memory, or the other way round."""
        return tuple(
            r for r in self.results
            if (r.cell.out_of_memory or r.cell.tokens_per_s) and r.cell.out_of_memory != (r.problem is not None)
        )  # fmt: skip

    def ratio(self, fast: tuple[int, Mode], slow: tuple[int, Mode]) -> tuple[float | None, float | None]:
        """Tokens/s of one cell over another's: published, predicted; None where one of the two has no time."""
        found = {(r.cell.batch, r.cell.mode): r for r in self.results}
        one, other = found[fast], found[slow]
        return _over(one.cell.tokens_per_s, other.cell.tokens_per_s), _over(one.tokens_per_s, other.tokens_per_s)


def make_report(
    assumed: Assumptions, *, progress: Progress | None = None, fitted: tuple[int, Mode] | None = None
) -> Report:
    """Predict every cell; `progress` is called after each."""
    results = []
    for cell in cells(too_large=True):
        results.append(predict_cell(cell, assumed))
        if progress is not None:
            progress()
    return Report(assumed=assumed, results=tuple(results), fitted=fitted)


def fit_launch(assumed: Assumptions) -> Assumptions:
    """The same with the host's time of a launch set so that the cell FITTED comes out as published.

    Raises ConfigError where no time between 1 and 60 us does, or where the cell does not fit into memory.
    """
    cell = _cell(*FITTED)
    problem = predict_cell(cell, assumed).problem
    if problem is not None:
        raise ConfigError(
            f"profile={assumed.profile!r}: batch {cell.batch} of {cell.mode} does not fit ({problem}), so no launch "
            "time can be fitted to it; give --launch-us or --no-fit"
        )

    def excess_s(launch_s: float) -> float:
        return step_s(cell, attrs.evolve(assumed, launch_s=launch_s)) - (cell.step_s or 0.0)

    launch_s = root(excess_s, *_LAUNCH_S)
    if launch_s is None:
        raise ConfigError(
            f"launch_s: no time between {_LAUNCH_S[0]:g} and {_LAUNCH_S[1]:g} s makes batch {cell.batch} of "
            f"{cell.mode} take {cell.step_s:.4g} s; lower churn, give --launch-us, or --no-fit"
        )
    return attrs.evolve(assumed, launch_s=launch_s)


@attrs.frozen(kw_only=True)
class Sensitivity:
    """The result with one assumption changed."""

    what: str
    report: Report


def sensitivity(
    assumed: Assumptions, *, progress: Progress | None = None, fitted: tuple[int, Mode] | None = None
) -> tuple[Sensitivity, ...]:
    """One report for each assumption changed alone; `progress` as in make_report."""
    return tuple(
        Sensitivity(what=what, report=make_report(other, progress=progress, fitted=fitted))
        for what, other in variations(assumed)
    )


def variations(assumed: Assumptions) -> Sequence[tuple[str, Assumptions]]:
    """What `sensitivity` tries."""
    evolve = attrs.evolve
    ours = load_figure(assumed)
    paces = assumed.paces
    return (
        *((f"churn {churn:.0%}", evolve(assumed, churn=churn)) for churn in (0.05, 0.11, 0.15, 0.20)),
        *((f"launch {us} us", evolve(assumed, launch_s=us * 1e-6)) for us in (5, 6, 7, 12, 18)),
        *((f"uva {gb:.3g} GB/s", evolve(assumed, uva_bytes_per_s=gb * 1e9)) for gb in (35.2, ours)),
        *((f"scoring tile {us} us", evolve(assumed, paces=evolve(paces, tile=us * 1e-6))) for us in (1.2, 1.4, 1.6)),
        *((f"pooling {us} us", evolve(assumed, paces=evolve(paces, pool=us * 1e-6))) for us in (0.8, 1.5, 2.4)),
        *((f"list walk {us} us", evolve(assumed, paces=evolve(paces, walk=us * 1e-6))) for us in (0.15, 0.3, 0.5)),
        ("no slow grids", evolve(assumed, paces=Paces(**dict.fromkeys(attrs.fields_dict(Paces), 1e-9)))),
    )


def load_figure(assumed: Assumptions) -> float:
    """GB/s that the profile itself gives kernels which read host memory."""
    uva = attrs.evolve(assumed, uva_bytes_per_s=None).machine().uva
    assert uva is not None
    return uva.ceiling_bytes_per_s.value / 1e9


def _cell(batch: int, mode: Mode) -> Cell:
    return next(cell for cell in cells() if (cell.batch, cell.mode) == (batch, mode))


def _over(fast: float | None, slow: float | None) -> float | None:
    return None if fast is None or slow is None else fast / slow

"""The error budget: what the model leaves out or tells too simply, and how large each was seen to be. Torch-free."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

import attrs

from sparda_core.bench.verdict.judged import Judged, Verdict
from sparda_core.bench.verdict.table import Table, percent

#: Shares of a cell's step that a cause takes, predicted minus measured: below zero the prediction is too short.
Seen = Callable[[Judged], float | None]


@attrs.frozen(kw_only=True)
class Cause:
    """One thing that is not modelled, or too simply.

    what   in a few words
    shows  in which cells
    seen   its share of a cell's step; None where the cell does not show it
    known  what is known of it
    """

    what: str
    shows: str
    seen: Seen
    known: str


def _step(cell: Judged) -> float | None:
    """The whole error, as a share of the measured step."""
    if cell.measured_s is None or cell.predicted_s is None:
        return None
    return cell.predicted_s / cell.measured_s - 1


def _where(holds: Callable[[Judged], bool]) -> Seen:
    return lambda cell: _step(cell) if holds(cell) else None


def _part(*names: str) -> Seen:
    """What some parts, timed alone, are off, as a share of the measured step."""

    def seen(cell: Judged) -> float | None:
        off = [part.predicted - part.measured for part in cell.parts if part.name in names and part.unit == "s"]
        return sum(off) / cell.measured_s if off and cell.measured_s and cell.of.selector != "dense" else None

    return seen


def _dense(cell: Judged) -> float | None:
    off = [part.predicted - part.measured for part in cell.parts if part.name == "attend, alone"]
    return sum(off) / cell.measured_s if off and cell.measured_s and cell.of.selector == "dense" else None


#: Every cause that measured cells can size.
CAUSES = (
    Cause(
        what="kernels launched one by one from Python", shows="`eager` steps",
        seen=_where(lambda cell: cell.of.launches == "eager"),
        known="a launch is told as one of many in a row; a step's own Python around them takes longer, and its "
        "times vary by half. Steps that are quoted run as graphs",
    ),
    Cause(
        what="the host's way to a list and back in mid-step", shows="engines `copy-engine` and `cpu-gather`",
        seen=_where(lambda cell: cell.of.engine in ("copy-engine", "cpu-gather") and cell.of.launches != "eager"),
        known="a wait for every layer, and how fast the host is: the same submission took 1.35 times as long within "
        "a day, a gather twice",
    ),
    Cause(
        what="attention to everything", shows="`dense`, resident", seen=_dense,
        known="rounds of thread blocks cost what they cost beside a budget's lists; where few of the last round keep "
        "few multiprocessors busy with long pieces, they cost more",
    ),
    Cause(
        what="copies beside compute", shows="steps that the link binds and that overlap",
        seen=_where(lambda cell: cell.stratum == "link" and cell.overlaps),
        known="beside attention of which some SM holds three thread blocks copies crawl, beside that of two they do "
        "not: told so, by copies that a graph forks, with one rate for all grids of three; a quarter of what these do "
        "is left unsaid. Two copy blocks beside products of up to 24 rows are faster in a step that misses the same "
        "blocks again and again than in any calibration: 16 and 20 rows are told 6 % too slow, why is not known",
    ),
    Cause(
        what="feed-forward", shows="every step", seen=_part("mlp, alone"),
        known="told by rows, of one session; memory gives 2 to 3 % more or less in another",
    ),
    Cause(
        what="output's product", shows="every step", seen=_part("output, alone"),
        known="told by rows: the library changes its tiles with them",
    ),
    Cause(
        what="norm, product, rotary and append of `project`", shows="every step", seen=_part("project, alone"),
        known="told by rows, three kernels in turn as a step launches them; rows between those timed are interpolated",
    ),
    Cause(
        what="what a step begins with", shows="every step", seen=_part("embed, alone"),
        known="a kernel that counts steps and clears lists, and the embedding: told as two launches. Timed as "
        "a graph of its own, so that a graph's launch is in it",
    ),
    Cause(
        what="choice and diff", shows="steps that choose",
        seen=_part("select and diff, alone"),
        known="told by rows and by how many candidates are searched; how many blocks are missed is not looked at",
    ),
    Cause(
        what="scoring", shows="steps that choose", seen=_part("score, alone"),
        known="one rate for Forecast, query and proxy: the proxy's kernel is slower by 3 to 10 %, few rows take less",
    ),
    Cause(
        what="attention of a budget", shows="steps that choose", seen=_part("attend, alone"),
        known="told by rows, at the usual budget; pages of a resident layer, looked up in a table, cost 1 to 2 % more",
    ),
    Cause(
        what="InfiniGen's proxy query", shows="`infinigen`", seen=_part("proxy, alone"),
        known="told by rows, with what keeps a few channels of its query and of the new keys",
    ),
)  # fmt: skip


def budget_table(verdict: Verdict) -> Table:
    """One line a cause that some cell shows, the largest first."""
    lines = sorted(_lines(verdict), key=lambda line: -line[0])
    head = ("what is left out, or told too simply", "where it shows", "cells", "of a step, median", "of a step, most",
            "what is known of it")  # fmt: skip
    return Table(title="Error budget", head=head, lines=[line[1] for line in lines])


def _lines(verdict: Verdict) -> Iterator[tuple[float, tuple[str, ...]]]:
    for cause in CAUSES:
        seen = [share for cell in verdict.measured if (share := cause.seen(cell)) is not None]
        if seen:
            most = max(seen, key=abs)
            told = (str(len(seen)), percent(statistics.median(seen)), percent(most))
            yield abs(most), (cause.what, cause.shows, *told, cause.known)

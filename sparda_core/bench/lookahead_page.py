"""Tables and first lines of docs/lookahead.md, filled from the study's results and from measured steps. Torch-free."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sparda_core.bench.lookahead_data import MEDIAN, Steps, shares, table_of
from sparda_core.bench.lookahead_measured import measured_gains
from sparda_core.bench.lookahead_words import answer, left, short
from sparda_core.errors import ConfigError
from sparda_core.selectors.recording import load
from sparda_core.selectors.shipped import recording_names
from sparda_core.simulator.trace_facts import recorded_facts
from sparda_core.whatif.figures import axis_label
from sparda_core.whatif.lookahead import HEADLINE, PAYS

_PLACE = re.compile(r"(<!-- (?:table|text): ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_HEADLINE_CONTEXT = 2**17
#: Title of the table of gains step by step, which the study itself has not.
BURSTS = "Recorded steps one after the other beside their mean"


def filled(page: str, study: Mapping[str, Any], steps: Steps) -> str:
    """The page with every place as the data make it.

    study  what `sparda whatif --study lookahead --out DIR` leaves as DIR/study.json, with or without its points
    steps  what runs of `sparda bench decode` left as decode.json
    Raises ConfigError for a place that is not known.
    """

    def fill(found: re.Match[str]) -> str:
        if found[2] not in PLACES:
            raise ConfigError(f"place={found[2]!r} is unknown; known: {', '.join(PLACES)}")
        return f"{found[1]}{PLACES[found[2]](study, steps)}\n{found[3]}"

    return _PLACE.sub(fill, page)


def shares_table(study: Mapping[str, Any], _: Steps) -> str:
    """One line a trace and pool, over all cells."""
    columns = ("pays (5% or more)", "share", MEDIAN, "times as fast", "blocks moved per row")
    head = ("trace", "slots", "pays", "share", MEDIAN, "least to most", "blocks moved a row and step")
    return _table(head, ([row["trace"], row["pool"], *(_cell(row[name]) for name in columns)] for row in shares(study)))


def _across(study: Mapping[str, Any], _: Steps, *, by: str) -> str:
    """Traces and pools down, what is varied across: the share of cells in which it pays, and the median gain."""
    rows = shares(study, by)
    labels = list(dict.fromkeys(row[by] for row in rows))
    cells = {(row["trace"], row["pool"], row[by]): row for row in rows}
    lines = dict.fromkeys((row["trace"], row["pool"]) for row in rows)
    return _table(
        ("trace", "slots", *(_short(label) for label in labels)),
        ([*line, *(_share(cells.get((*line, label))) for label in labels)] for line in lines),
    )


def _share(row: Mapping[str, Any] | None) -> str:
    if row is None or row["share"] is None:
        return "-"
    return f"{row['share']:.0%}, {row[MEDIAN]:.2f}"


def _by_batch(study: Mapping[str, Any], _: Steps, *, start: str) -> str:
    """Gains on the H200 at 128K tokens, batches across."""
    rows = [
        row for row in table_of(study, start)
        if row["machine"] == HEADLINE and row["context"] == _HEADLINE_CONTEXT
    ]  # fmt: skip
    batches = [name for name in rows[0] if name.startswith("batch ")]
    lines = ([row["trace"], row["pool"], *(_cell(row[name]) for name in batches)] for row in rows)
    return _table(("trace", "slots", *batches), lines)


def instead_table(study: Mapping[str, Any], _: Steps) -> str:
    """One line a trace and pool: where slots alone beat lookahead on the last selection."""
    rows = table_of(study, "Slots in place of lookahead")
    columns = ("slots are faster", "share", MEDIAN, "times as fast")
    head = ("trace", "slots", *columns[:-1], "least to most")
    return _table(head, ([row["trace"], row["pool"], *(_cell(row[name]) for name in columns)] for row in rows))


def changes_table(study: Mapping[str, Any], _: Steps) -> str:
    """Where lookahead begins and stops to pay on the H200 at 128K tokens: along the link with 16 rows, along rows."""
    start = f"Where lookahead gains {PAYS - 1:.0%} or more over the same selector without it, as "
    told = "changes (within 1 %)"
    along_link = table_of(study, start + axis_label("link_gb_s"))
    along_batch = {(row["trace"], row["pool"]): row[told] for row in table_of(study, start + axis_label("batch"))}
    return _table(
        ("trace", "slots", "as the link goes from slow to fast, GB/s (16 rows)", "as rows go from 1 to 64"),
        (
            [row["trace"], row["pool"], row[told], along_batch[row["trace"], row["pool"]]]
            for row in along_link if row["batch"] == 16
        ),
    )  # fmt: skip


def measured_table(_: Mapping[str, Any], steps: Steps) -> str:
    """One line a load that was measured with and without lookahead: both steps, the gain, and what is predicted."""
    return _table(
        ("trace", "cell", "without, ms", "with, ms", "gain, measured", "gain, predicted"),
        (
            [_trace(run), _load(one.after), _ms(one.before), _ms(one.after), f"{one.gain:.2f}", f"{one.predicted:.2f}"]
            for run in steps for one in measured_gains(run)
        ),
    )  # fmt: skip


def _trace(run: Mapping[str, Any]) -> str:
    settings = run["settings"]
    return str(settings.get("recording") or settings["locality"]).removeprefix("smollm2/")


def _ms(row: Mapping[str, Any]) -> str:
    return f"{1e3 * row['step_s']:.2f}"


def _load(row: Mapping[str, Any]) -> str:
    return f"{row['batch']} x {_short(row['context'])}, churn {row['churn']:.0%}, {row['slots']:g}x {row['policy']}"


def bursts_table(study: Mapping[str, Any], _: Steps) -> str:
    """One line a pool: the gain of the mean step and of steps one after the other, batches across."""
    rows = table_of(study, BURSTS)
    batches = list(dict.fromkeys(row["batch"] for row in rows))
    cells = {(row["pool"], row["batch"]): f"{row['mean step']:.2f}, {row['step by step']:.2f}" for row in rows}
    lines = ([pool, *(cells[pool, batch] for batch in batches)] for pool in dict.fromkeys(row["pool"] for row in rows))
    return _table(("slots", *(f"batch {batch}" for batch in batches)), lines)


def recordings_table(*_: Any) -> str:
    """One line a shipped recording: what it holds, and what it misses in pools of 1, 2 and 4 selections."""
    head = ("recording", "blocks", "rows x steps", "1x", "2x lru", "4x lru", "2x score", "4x score")
    return _table(head, (_recording(name) for name in recording_names()))


@functools.cache
def _recording(name: str) -> tuple[str, ...]:
    one = load(name)
    spec = one.spec
    pools = ((1, "last-selection"), (2, "lru"), (4, "lru"), (2, "score"), (4, "score"))
    missed = [f"{_missed(one, times * spec.budget, policy):.1%}" for times, policy in pools]
    cut = f"{spec.budget} ({spec.sink} sink, {spec.local} local)"
    return f"`{name}`", cut, f"{one.rows} x {one.steps}", *missed


def _missed(recording: Any, slots: int, policy: str) -> float:
    facts = recorded_facts(recording, slots=slots, policy=policy, skip=recording.steps // 2)
    return float(sum(int(one.misses.sum()) for one in facts) / sum(int(one.selected.sum()) for one in facts))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _short(label: Any) -> str:
    if not isinstance(label, int):
        return str(label)
    return f"{label >> 20}M" if label % (1 << 20) == 0 else f"{label >> 10}K"


def _table(head: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


PLACES: Mapping[str, Callable[[Mapping[str, Any], Steps], str]] = {
    "short": short,
    "left": left,
    "answer": answer,
    "shares": shares_table,
    "machines": functools.partial(_across, by="machine"),
    "contexts": functools.partial(_across, by="context"),
    "batches": functools.partial(_by_batch, start="The same by batch"),
    "instead": instead_table,
    "instead-batches": functools.partial(_by_batch, start="Slots instead of lookahead"),
    "changes": changes_table,
    "bursts": bursts_table,
    "measured": measured_table,
    "recordings": recordings_table,
}

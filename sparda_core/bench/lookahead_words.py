"""What docs/lookahead.md says in words, from the study's shares. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparda_core.bench.lookahead_data import MEDIAN, Steps, shares
from sparda_core.whatif.lookahead import LOCALITY, MACHINE, PAPER, PAYS

#: Machines of the fastest host links.
FASTEST = ("H200, PCIe 6", "GH200")


def short(study: Mapping[str, Any], _: Steps) -> str:
    """The answer in a sentence or two: shares and medians over the recorded traces, and over the published curve."""
    told = _told(study)
    twice, four = (_range([100 * row["share"] for row in _of_recordings(told, pool)]) for pool in ("2x lru", "4x lru"))
    return (
        "**Where the device keeps the last selection alone, as in the paper, almost everywhere. With two to four times "
        "the slots it depends on how\nblocks come back: if they do as on the small model that was recorded, in "
        f"{twice} % of cells with twice the slots and in {four} % with\nfour times, where it brings "
        f"{_gain_range(told, '4x lru')} % at the median; if they come back as late as published for a cache of tokens, "
        f"still in {100 * told[LOCALITY, '4x lru']['share']:.0f} %.**"
    )


def left(study: Mapping[str, Any], _: Steps) -> str:
    """What lookahead still adds once there are slots."""
    told = _told(study)
    fastest = [
        row for row in shares(study, MACHINE)
        if row["machine"] in FASTEST and row["pool"] == "4x lru" and row["trace"] != LOCALITY and row[MEDIAN]
    ]  # fmt: skip
    edges = _range([100 * (row[MEDIAN] - 1) for row in fastest])
    return (
        f"Median gains on recorded traces: {_gain_range(told, '2x lru')} % with twice the slots, "
        f"{_gain_range(told, '4x lru')} % with four times, and there {edges} %\non the fastest links tried "
        f"({', '.join(FASTEST)}). Under `{LOCALITY}`: {_percent(told[LOCALITY, '2x lru'])} and "
        f"{_percent(told[LOCALITY, '4x lru'])} %."
    )


def _told(study: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["trace"], row["pool"]): row for row in shares(study)}


def _of_recordings(told: Mapping[tuple[str, str], dict[str, Any]], pool: str) -> list[dict[str, Any]]:
    return [row for (trace, name), row in told.items() if name == pool and trace != LOCALITY]


def _gain_range(told: Mapping[tuple[str, str], dict[str, Any]], pool: str) -> str:
    return _range([100 * (row[MEDIAN] - 1) for row in _of_recordings(told, pool)])


def _percent(row: Mapping[str, Any]) -> str:
    return f"{100 * (row[MEDIAN] - 1):.0f}"


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    return low if low == high else f"{low} to {high}"


def answer(study: Mapping[str, Any], _: Steps) -> str:
    """Shares of cells in words."""
    told = shares(study)
    traces = list(dict.fromkeys(row["trace"] for row in told))
    at = {(row["trace"], row["pool"]): row for row in told}
    lines = []
    for pool, words in ((PAPER, "the last selection alone"), ("2x lru", "twice as many"), ("4x lru", "four times")):
        each = ", ".join(
            f"{100 * at[trace, pool]['share']:.0f} % (median {at[trace, pool]['times as fast, median']:.2f} times)"
            for trace in traces
        )
        lines.append(f"- {words} (`{pool}`): {each};")
    lines[-1] = f"{lines[-1][:-1]}."
    cells = at[traces[0], PAPER]["cells"]
    names = ", ".join(f"`{trace}`" for trace in traces)
    head = (
        f"Of {cells} cells (six machines, 32K to 1M tokens, 1 to 64 rows) lookahead makes steps "
        f"{100 * PAYS - 100:.0f} % faster or more, under {names} and with these slots, in\n\n"
    )
    return head + "\n".join(lines)

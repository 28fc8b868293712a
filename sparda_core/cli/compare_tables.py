"""The tables of a comparison: what was read, quality, step times, prediction on GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.text import Text

from sparda_core.cli.screen import console, seconds, show_table, size

if TYPE_CHECKING:
    from sparda_core.bench.report import CompareReport

Row = Mapping[str, Any]


def show_report(report: CompareReport) -> None:
    """Print a comparison; every figure says what it was measured on."""
    machine = report.provenance["machine"]
    text = report.text
    out = console()
    out.print(Text(f"Text: {text['name']}, {text['tokens']} of {text['total']} tokens: {text['opening']} ..."))
    out.print(Text(f"Model: {report.config['model']}. Machine: {machine['cpu']}, {machine['cores']} cores.\n"))
    _quality(report)
    _transfers(report)
    _step_times(report)
    _hiding(report)
    _gpus(report)
    for pair, reason in report.refused.items():
        out.print(Text(f"Left out: {pair}: {reason}."))
    for note in report.notes:
        out.print(Text(f"Note: {note}."))
    out.print(Text(f"Took {sum(report.phases_s.values()):.0f} s. Files:"))
    for name, path in report.files.items():
        out.print(Text(f"  {name:<16} {path}"))


def _quality(report: CompareReport) -> None:
    columns = (
        "selector", "next token as dense", "KL, nats", "perplexity", "passkey", "copy, nats", "recall of query",
        "of oracle", "chance", "all, query", "all, oracle", "churn", "churn, all",
    )  # fmt: skip
    rows = [
        (
            row["label"], share(row["agreement"]), figure(row["kl"], 4), figure(row["perplexity"], 2),
            word(row["passkey"], "found", "lost"), figure(row["copy_nll"], 3), figure(row["recall_query"], 3),
            figure(row["recall_oracle"], 3), figure(row["chance_query"], 3), figure(row["recall_query_all"], 3),
            figure(row["recall_oracle_all"], 3), share(row["churn"]), share(row["churn_all"]),
        )
        for row in report.quality
    ]  # fmt: skip
    spec = report.config["spec"]
    scored = max(row["tokens"] for row in report.quality)
    show_table(
        f"Quality: {scored} tokens of the text, budget {spec['budget']} blocks of {spec['block']} tokens",
        columns, rows,
        notes=[
            "Recall: share of the free blocks of query (or oracle) that are chosen too; `all` counts forced ones too.",
            "Chance: the recall of a random choice of free blocks.",
            *(f"{row['label']}: {row['note']}, budget {row['budget']}." for row in report.quality),
        ],
    )  # fmt: skip


def _transfers(report: CompareReport) -> None:
    columns = ("selector", "runtime", "link", "hit, free", "hit, all", "late", "wasted", "moved a step")
    rows = [
        (
            row["label"], row["runtime"], link(row), share(row["hit_rate_free"]), share(row["hit_rate"]),
            part(row["late"], row["misses"]), part(row["wasted"], row["misses"]), size(row["moved_bytes_per_step"]),
        )
        for row in report.timing
        if row["link"] is not None
    ]  # fmt: skip
    show_table(
        "Blocks that moved", columns, rows,
        notes=["Late: share of the misses that attention waited for. Wasted: share moved and evicted unread."],
    )  # fmt: skip


def _step_times(report: CompareReport) -> None:
    columns = (
        "selector", "runtime", "link", "steps", "step, measured", "quartiles", "predicted", "error",
        "exposed, predicted",
    )  # fmt: skip
    rows = [
        (
            row["label"], row["runtime"], link(row), row["steps"], seconds(row["step_s"]),
            f"{seconds(row['step_low_s'])} to {seconds(row['step_high_s'])}", seconds(row.get("predicted_step_s")),
            signed(row.get("predicted_error")), seconds(row.get("predicted_exposed_s")),
        )
        for row in report.timing
    ]  # fmt: skip
    chosen = {"configured": "as asked for", "measured": "chosen from a measurement"}[report.link["chosen"]]
    show_table(
        f"Step time on this machine, batch {report.config['batch']}, median", columns, rows,
        notes=[
            f"The emulated link moves {size(report.link['bytes_per_s'])}/s, {chosen}: no real link is meant.",
            "Rows of one selector and link were measured in turns. Error: predicted / measured - 1.",
            "Resident keeps every block in the fast tier; the other two keep the slots of each head there.",
        ],
    )  # fmt: skip


def _hiding(report: CompareReport) -> None:
    columns = ("selector", "link", "resident", "offload-sync", "offload-prefetch", "hidden")
    rows = [
        (
            row["label"], link(row), *(seconds(row.get(f"{name}_s")) for name in columns[2:5]),
            share(row["hidden_share"]),
        )
        for row in report.hiding
        if _moved(report, row)
    ]  # fmt: skip
    runs = report.timelines["runs"]
    waits = "; ".join(f"{name} {seconds(run['exposed_s'])}" for name, run in runs.items())
    told = "; ".join(f"{name} {seconds(run.get('predicted_exposed_s'))}" for name, run in runs.items())
    show_table(
        "What prefetching hides: (sync - prefetch) / (sync - resident), paired runs", columns, rows,
        notes=[
            f"{report.timelines['label']}, exposed wait a step: {waits}. Predicted: {told}.",
            f"Compute beside the copy takes {report.timelines['compute_slowdown']:.3f} x the time it takes alone.",
        ],
    )  # fmt: skip


def _moved(report: CompareReport, hiding: Row) -> bool:
    """Whether there was anything to hide: a selection that never changes (`window`) moves nothing."""
    return any(
        row["misses"]
        for row in report.timing
        if (row["label"], row["link"], row["runtime"]) == (hiding["label"], hiding["link"], "offload-sync")
    )


def _gpus(report: CompareReport) -> None:
    if not report.gpus:
        return
    first = report.gpus[0]
    columns = (
        "machine", "batch", "churn", "selector", "runtime", "engine", "step", "tokens/s", "hidden", "exposed",
        "bound by",
    )  # fmt: skip
    rows = [
        (
            row["profile"], row["batch"], share(row["churn"]), row["selector"], row["runtime"],
            None if row["runtime"] == "resident" else row["engine"],
            *(
                ("does not fit", None, None, None, None) if row["problem"] else (
                    seconds(row["step_s"]), f"{row['tokens_per_s']:.4g}", seconds(row["hidden_s"]),
                    seconds(row["exposed_s"]), row["bound"],
                )
            ),
        )
        for row in report.gpus
    ]  # fmt: skip
    rests = {row["profile"]: row["rests_on"] for row in report.gpus}
    show_table(
        f"Predicted, not measured: {first['shape']} at {first['context']:,} tokens, budget {first['budget']} blocks",
        columns, rows,
        notes=[
            "Churn: share of each selection that has to be moved. Hidden, exposed: transfer a step.",
            *(f"The profile {name} rests on: {numbers} numbers." for name, numbers in rests.items()),
        ],
    )  # fmt: skip


def share(value: float | None) -> str:
    """A share in percent."""
    return "-" if value is None else f"{value:.1%}"


def signed(value: float | None) -> str:
    """A relative error in percent, with its sign."""
    return "-" if value is None else f"{value:+.1%}"


def figure(value: float | None, digits: int) -> str:
    """A number with a fixed number of digits."""
    return "-" if value is None else f"{value:.{digits}f}"


def word(value: bool | None, yes: str, no: str) -> str:  # noqa: FBT001 - a figure of the report, shown as a word
    """A truth value as one of two words."""
    return "-" if value is None else (yes if value else no)


def part(count: int, whole: int) -> str:
    """`count` as a share of `whole`."""
    return share(count / whole) if whole else "-"


def link(row: Row) -> str:
    """The link of a row in words."""
    rate = row["link_bytes_per_s"]
    if row["link"] is None:
        return "-"
    return "unlimited" if rate is None else f"{rate / 1e9:.2g} GB/s, emulated"

"""The quality phase of a comparison: one contender, judged once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from sparda_core.bench.contenders import REFERENCES, Contender, combine
from sparda_core.bench.workbench import Workbench
from sparda_core.evaluate.quality import JUDGE_EVERY, Quality, Run, evaluate_selector, judge_dense
from sparda_core.evaluate.tasks import Task
from sparda_core.registry import SELECTORS
from sparda_core.selectors.recording import Recorder


def judge(bench: Workbench, contender: Contender, dense: Contender, recording: Path) -> dict[str, Any]:
    """Quality of one contender as plain figures; the contender `query` leaves its selections in `recording`."""
    logits = bench.dense(dense)
    if contender is dense:
        return quality_row(contender, judge_dense(bench.passages, logits, bench.config.spec))
    passages = bench.windows if contender.replays else bench.passages
    combination = combine(
        bench.decoder, contender, "resident", bench.config, recording=recording, threads=bench.reading_threads
    )
    run = evaluate_selector(
        combination, passages, logits[: len(passages)], spec=bench.config.spec,
        references={name: SELECTORS.make(name) for name in REFERENCES},
        progress=lambda done, total: bench.progress(f"quality {contender.label}, steps", done, total),
    )  # fmt: skip
    if contender.label == "query":
        record(run, bench, contender, recording)
    return quality_row(contender, run.quality)


def judging_notes(tasks: Sequence[Task]) -> tuple[str, ...]:
    """What the figures of quality were asked of, in sentences without a full stop."""
    asked = "; ".join(f"{t.name}: {t.note}, {len(t.answer)} tokens after a prompt of {len(t.prompt):,}" for t in tasks)
    every = ", ".join(f"{name} at every {steps}th step" for name, steps in JUDGE_EVERY.items())
    return (
        f"tasks, one of each: {asked}; found: greedy decoding gives all of it",
        f"recall was judged against {every}; so few tokens rank no two selectors that lie close together",
    )


def record(run: Run, bench: Workbench, contender: Contender, path: Path) -> None:
    """Write the selections of the document's rows as those of one row, which serves any batch."""
    recorder = Recorder(shape=bench.decoder.shape, spec=contender.spec, selector=contender.selector)
    for position, ids in zip(run.positions, run.selections, strict=True):
        recorder.add(position[None], ids[:, None])
    recorder.recording().save(path)


def quality_row(contender: Contender, quality: Quality) -> dict[str, Any]:
    """A flat row: None where something was not judged. Losses in nats per token."""
    row: dict[str, Any] = {
        "label": contender.label, "selector": contender.selector, "options": contender.options, "note": contender.note,
        "budget": contender.spec.budget, **attrs.asdict(quality.document),
    }  # fmt: skip
    passkey, copied = quality.tasks.get("passkey"), quality.tasks.get("copy")
    row |= {
        "passkey": passkey and passkey.exact, "passkey_nll": passkey and passkey.nll,
        "copy_nll": copied and copied.nll, "copy_accuracy": copied and copied.accuracy,
    }  # fmt: skip
    for name in REFERENCES:
        recall = quality.recall.get(name)
        row |= {
            f"recall_{name}": recall and recall.free,
            f"recall_{name}_all": recall and recall.all,
            f"recall_{name}_corrected": recall and recall.corrected,
            f"chance_{name}": recall and recall.chance,
            f"recall_{name}_by_layer": [layer.free for layer in quality.layers[name]] if recall else None,
        }
    return row | {"churn": quality.churn.free, "churn_all": quality.churn.all}

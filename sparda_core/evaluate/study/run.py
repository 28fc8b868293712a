"""Runs a study: every window and task under every method, part by part, each kept as soon as it is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch

from sparda_core.errors import ConfigError, RecordingError
from sparda_core.evaluate.far_tasks import draw_task
from sparda_core.evaluate.study.config import StudyConfig
from sparda_core.evaluate.study.figures import Values, miss_values, task_values, window_values
from sparda_core.evaluate.study.judge import channels_of, judge_choices, judge_path, judge_task
from sparda_core.evaluate.study.methods import Method
from sparda_core.evaluate.study.path import run_dense
from sparda_core.evaluate.study.scores import Scorer
from sparda_core.evaluate.study.store import Rows
from sparda_core.evaluate.study.windows import Window
from sparda_core.evaluate.tasks import Encoder, Task
from sparda_core.fields import require
from sparda_core.models.decoder import Decoder

#: Called with (what, parts done, parts in all).
Report = Callable[[str, int, int], None]
Row = dict[str, Any]


@attrs.frozen(kw_only=True, eq=False)
class Study:
    """All that a study runs on.

    decoder   the frozen model, where it is to run
    scorer    with the weights of every Forecast that `methods` name
    windows   of config.window tokens each
    encoder, filler  the tokenizer, and ids of the text that tasks hide things in; unused without samples
    """

    decoder: Decoder
    methods: tuple[Method, ...]
    scorer: Scorer
    config: StudyConfig
    windows: tuple[Window, ...]
    encoder: Encoder | None = None
    filler: tuple[int, ...] = ()

    def __attrs_post_init__(self) -> None:
        context, config = self.decoder.shape.context, self.config
        wanted = {"window": config.window}
        if config.samples and config.tasks:
            wanted["task_tokens"] = config.task_tokens
        for name, tokens in wanted.items():
            if tokens > context:
                raise ConfigError(f"{name}={tokens} must be <= context={context} of the model: lower it")
        short = [window.name for window in self.windows if len(window.ids) != config.window]
        if short:
            raise ConfigError(f"windows {short} must have exactly window={config.window} tokens")
        if self.decoder.shape.layers < 2:
            raise ConfigError("layers=1: figures are over layers 1 and up; take a deeper model")

    @property
    def device(self) -> torch.device:
        """Where the model lies."""
        return self.decoder.device


def run_study(
    study: Study, rows: Rows, *, share: tuple[int, int] = (0, 1), progress: Report | None = None
) -> tuple[list[Row], list[Row]]:
    """Do what `rows` does not hold yet of this share; returns its rows of windows and of tasks.

    share     (i, n): windows and prompts i, i + n, i + 2n, ...; n processes that take one each share out the work

    An interruption loses the part under way: one window's choices, or one method's path at one budget.
    """
    first, step = share
    assert 0 <= first < step
    mine, prompts = study.windows[first::step], list(_samples(study.config))[first::step]
    parts = 1 + len(study.methods) * len(study.config.path_budgets)
    total = len(mine) * parts + len(prompts)
    done = 0

    def tick(what: str, by: int = 1) -> None:
        nonlocal done
        done += by
        if progress:
            progress(what, done, total)

    windows = [_window(study, rows, window, tick) for window in mine]
    tasks = [_task(study, rows, name, sample, tick) for name, sample in prompts]
    return windows, tasks


def _samples(config: StudyConfig) -> Iterator[tuple[str, int]]:
    # Sample by sample, so that an interrupted study has something of every task.
    return ((name, sample) for sample in range(config.samples) for name in config.tasks)


def _window(study: Study, rows: Rows, window: Window, tick: Callable[..., None]) -> Row:
    row, config = _kept(rows, window.name, window_values, miss_values), study.config
    wanted = [(m, b) for m in study.methods for b in config.path_budgets]
    open_ = [(m, b) for m, b in wanted if str(b) not in row.get("path", {}).get(m.name, {})]
    tick(f"window {window.name}", len(wanted) - len(open_) + ("choice" in row))
    if row and not open_:
        return row
    ids = torch.tensor(window.ids, device=study.device)
    start = time.perf_counter()
    if "choice" in row:  # the dense state is kept in no file: a window that is gone on with is read again
        dense = run_dense(
            study.decoder, ids, first=config.first, spec=config.spec, channels=channels_of(study.methods)
        )
    else:
        dense, found = judge_choices(study.decoder, ids, study.methods, config, study.scorer)
        row = {
            "window": window.name, "document": window.document, "offset": window.offset, **found, "path": {},
            "choice_s": time.perf_counter() - start,
        }  # fmt: skip
        rows.put(window.name, row)
        tick(f"window {window.name}")
    for method, budget in open_:
        found = judge_path(study.decoder, dense, method, budget, config=config, scorer=study.scorer)
        row["path"].setdefault(method.name, {})[str(budget)] = found
        rows.put(window.name, row)
        tick(f"window {window.name}, {method.name} at {budget}")
    return row


def _kept(rows: Rows, name: str, *readings: Callable[[Sequence[Row]], Values]) -> Row:
    """The row as far as it is done; raises RecordingError where its figures cannot be read."""
    row = rows.get(name)
    try:
        for read in readings if row else ():
            for values in read([row]).values():
                _ = sum(values)
        require(row, "row", **({"document": str} if row else {}))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as wrong:
        raise RecordingError(
            f"row {name!r} of the study is damaged ({wrong!r}); remove {rows.place(name)}, and it is done again"
        ) from wrong
    return row


def _task(study: Study, rows: Rows, name: str, sample: int, tick: Callable[..., None]) -> Row:
    label = f"task-{name}.{sample}"
    row = _kept(rows, label, task_values)
    if not row:
        task = _draw(study, name, sample)
        found = judge_task(
            study.decoder, task, study.methods, config=study.config, scorer=study.scorer, device=study.device
        )
        row = {
            "task": name, "sample": sample, "document": label, "note": task.note, "tokens": len(task.prompt), **found,
        }  # fmt: skip
        rows.put(label, row)
    tick(f"task {name}")
    return row


def _draw(study: Study, name: str, sample: int) -> Task:
    if study.encoder is None:
        raise ConfigError("tasks need a tokenizer, and the model came without one; ask for 0 samples")
    config = study.config
    return draw_task(
        name, study.encoder, study.filler, tokens=config.task_tokens - 96, seed=1000 * config.seed + sample
    )


def identity(study: Study, *, model: str, forecasts: Mapping[str, str], extra: Mapping[str, Any]) -> dict[str, Any]:
    """What makes two studies the same: everything that decides a figure.

    forecasts  label -> digest of the file
    """
    return {
        "model": model,
        "config": attrs.asdict(study.config),
        "methods": [attrs.asdict(method) for method in study.methods],
        "forecasts": dict(forecasts),
        "windows": {window.name: window.sha256 for window in study.windows},
        "filler": len(study.filler),
        "dtype": str(study.decoder.dtype).removeprefix("torch."),
        "device": study.device.type,
        **extra,
    }


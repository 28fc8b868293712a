"""Loss and recall of a run as CSV, as a figure and, where asked for, for TensorBoard."""

from __future__ import annotations

import io
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sparda_core.distill.history import Evaluation, History, Step
from sparda_core.errors import ConfigError
from sparda_core.files import csv_text, write_whole


def write_csv(path: Path, history: History) -> None:
    """A row a step: loss (nats), learning rate, gradient norm, recall where it was measured, loss by layer."""
    write_whole(path, csv_text(history.rows()))


def write_figure(path: Path, history: History, title: str) -> None:
    """Loss above, recall below, over steps, as PNG; raises ConfigError where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("a figure needs the extra: pip install 'sparda[plot]'") from error
    recalls = history.evaluations
    figure = Figure(figsize=(7, 6 if recalls else 3.5), layout="constrained")
    axes = figure.subplots(2 if recalls else 1, 1, sharex=True, squeeze=False)[:, 0]
    steps = [told.step for told in history.told]
    axes[0].plot(steps, history.losses, color="0.75", linewidth=0.8, label="each step")
    axes[0].plot(steps, smoothed(history.losses), color="C0", label="mean of the last 20")
    axes[0].set_ylabel("KL (nats)")
    axes[0].set_title(title)
    axes[0].legend()
    if recalls:
        at = [one.step for one in recalls]
        axes[1].plot(at, [one.oracle for one in recalls], "o-", color="C1", label="against the oracle")
        axes[1].plot(at, [one.query for one in recalls], "s-", color="C2", label="against query-driven")
        axes[1].set_ylabel("recall of free blocks, held-out text")
        axes[1].legend()
    axes[-1].set_xlabel("optimiser step")
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=150, metadata={"Software": None})
    write_whole(path, out.getvalue())


def smoothed(values: list[float], width: int = 20) -> list[float]:
    """Mean of each value and those before it, at most `width`."""
    return [sum(part) / len(part) for i in range(len(values)) if (part := values[max(0, i + 1 - width) : i + 1])]


def require_tensorboard() -> Any:
    """The class that writes a log; raises ConfigError where tensorboard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError("--tensorboard needs the extra: pip install 'sparda[tensorboard]'") from error
    return SummaryWriter


class Board:
    """A TensorBoard log of a run; does nothing where no folder is given."""

    def __init__(self, folder: Path | None) -> None:
        """Raises ConfigError where tensorboard is not installed."""
        self._writer: Any = None if folder is None else require_tensorboard()(str(folder))

    def step(self, told: Step) -> None:
        """Loss, learning rate and gradient norm of a step."""
        if self._writer is not None:
            for name, value in (("loss", told.loss), ("lr", told.lr), ("gradient_norm", told.norm)):
                self._writer.add_scalar(name, value, told.step)

    def evaluation(self, found: Evaluation) -> None:
        """Recall on held-out text."""
        if self._writer is not None:
            self._writer.add_scalar("recall/oracle", found.oracle, found.step)
            self._writer.add_scalar("recall/query", found.query, found.step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._writer is not None:
            self._writer.close()

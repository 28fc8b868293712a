"""How every figure of a study looks: one style, PNG and SVG, nothing in them that changes from run to run."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from sparda_core.errors import ConfigError, UnknownNameError
from sparda_core.files import write_whole
from sparda_core.whatif.row import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Colours that stay apart for colour-blind readers and in grey (Okabe and Ito's palette), and what goes with them.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#000000", "#8C8C8C")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DOTS_PER_INCH = 130
#: Units of knobs, for labels of axes.
UNITS = {
    "link_gb_s": "host link, GB/s each way", "pcie": "PCIe generation", "batch": "batch, rows",
    "context": "context, tokens", "budget": "budget, blocks", "churn": "churn, share of a selection",
    "slots": "slots, blocks", "slot_factor": "slots, multiples of the budget", "ctas": "copy CTAs",
    "in_flight_kib": "in flight per copy CTA, KiB", "gpus": "GPUs on one host", "hbm_gb_s": "device memory, GB/s",
    "tflop_s": "dense products, TFLOP/s", "host_gb": "host memory, GB", "lead": "lead, layers",
}  # fmt: skip


@attrs.frozen(kw_only=True)
class Value:
    """Something of a row that can be drawn."""

    label: str
    of: Callable[[Row], float | None]


VALUES = {
    "tokens_per_s": Value(label="tokens/s", of=lambda row: row.tokens_per_s),
    "step_ms": Value(label="step, ms", of=lambda row: _times(row.step_s, 1e3)),
    "exposed_ms": Value(label="exposed transfer, ms per step", of=lambda row: _times(row.exposed_s, 1e3)),
    "exposed_share": Value(label="exposed share of a step", of=lambda row: row.exposed_share),
    "transfer_ms": Value(label="transfer, ms per step", of=lambda row: _times(row.transfer_s, 1e3)),
    "device_gb": Value(label="device memory, GB", of=lambda row: _times(row.device_bytes, 1e-9)),
    "host_gb": Value(label="host memory, GB", of=lambda row: _times(row.host_bytes, 1e-9)),
}


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def value_named(name: str) -> Value:
    """What to draw, by name; raises UnknownNameError with the nearest one."""
    if name not in VALUES:
        raise UnknownNameError(what="value", name=name, known=VALUES)
    return VALUES[name]


def require_matplotlib() -> None:
    """Raise ConfigError naming the extra where no figure can be drawn: before a long run, not after it."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("figures need matplotlib, which is not installed; run `pip install 'sparda[study]'`")


def new_figure(width: float = 8.0, height: float = 5.2) -> Figure:
    """An empty figure that needs no display."""
    require_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained")


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """Write STEM.png and STEM.svg, each all or nothing; the same figure gives the same bytes."""
    from matplotlib import rc_context

    written = []
    metadata: dict[str, dict[str, Any]] = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
    for form, about in metadata.items():
        buffer = io.BytesIO()
        with rc_context({"svg.hashsalt": "sparda", "hatch.linewidth": 0.6}):
            figure.savefig(buffer, format=form, metadata=about)
        written.append(stem.with_name(f"{stem.name}.{form}"))
        write_whole(written[-1], buffer.getvalue())
    return written


def axis_label(name: str) -> str:
    """What stands under an axis: the knob with its unit."""
    return UNITS.get(name, name)


def told(labels: dict[str, Any]) -> str:
    """Labels in words: `batch 8, churn 0.03`."""
    return ", ".join(f"{name} {short(label)}" for name, label in labels.items())


def short(label: Any) -> str:
    """A label as it is read: five figures of a number, thousands of tokens in full."""
    return f"{label:.5g}" if isinstance(label, float) else str(label)

"""The recall table as JSON, with what is needed to make it again."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import attrs
import torch

from sparda_core import __version__
from sparda_core.distill.recall import RecallConfig, RecallTable
from sparda_core.distill.train import TrainResult
from sparda_core.errors import ConfigError
from sparda_core.files import write_whole
from sparda_core.models.forecast_weights import ForecastWeights


def machine(device: str = "cpu") -> dict[str, Any]:
    """Processor, cores and versions, and the GPU's name where `device` is one; no host name."""
    software = {"python": platform.python_version(), "sparda": __version__}
    for name in ("torch", "tokenizers"):
        try:
            software[name] = version(name)
        except PackageNotFoundError:
            software[name] = "unknown"
    known: dict[str, Any] = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "software": software,
    }
    if torch.device(device).type == "cuda":
        known["gpu"] = torch.cuda.get_device_name(device)
    return known


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _means(table: RecallTable, config: RecallConfig, *, first_layer: int) -> dict[str, dict[str, float]]:
    """Recall by method and budget; empty where the model has no such layer."""
    if table.layers <= first_layer:
        return {}
    return {
        method: {
            str(budget): round(table.mean(method, budget, first_layer=first_layer), 4) for budget in config.budgets
        }
        for method in table.by_layer
    }


def write_report(
    path: Path,
    *,
    table: RecallTable,
    config: RecallConfig,
    documents: Sequence[str],
    forecast: ForecastWeights,
    result: TrainResult,
    device: str = "cpu",
) -> None:
    """Write in one step; `device` is where it was measured. Raises ConfigError where that is impossible."""
    content = {
        "what": "recall of the query-driven selector's free blocks; mean over KV heads, positions and windows",
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "machine": machine(device),
        "training": dict(forecast.metadata),
        "training_wall_s": round(result.wall_s, 1),
        "losses_nats": [round(loss, 5) for loss in result.losses],
        "conditions": {
            "spec": attrs.asdict(config.spec),
            "window_tokens": config.window,
            "positions": f"every {config.every}th from {config.first} on",
            "windows": list(documents),
            "lead": table.lead,
            "layers": f"{table.lead} and up; those before select by their own Forecast and are in by_layer only",
        },
        "recall": _means(table, config, first_layer=table.lead),
        "recall_without_layer_1": _means(table, config, first_layer=max(2, table.lead)),
        "by_layer": {
            method: {str(budget): [round(value, 4) for value in layers] for budget, layers in rows.items()}
            for method, rows in table.by_layer.items()
        },
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise ConfigError(f"results={str(path)!r} cannot be written ({error}); choose another folder") from error

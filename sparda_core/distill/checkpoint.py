"""Checkpoints of a training run: weights and optimiser as safetensors, all else as JSON in the same file.

One file, so that it is replaced in one step. Random draws depend on the seed and a running number alone
(rows.Draw), so the count of steps is their state.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch

from sparda_core.distill.config import TrainConfig
from sparda_core.distill.history import History
from sparda_core.errors import ConfigError, WeightsError
from sparda_core.files import parse_json
from sparda_core.models.files import read_tensors, write_tensors

FORMAT = "sparda-training-1"
_MOMENTS = ("exp_avg", "exp_avg_sq")


@attrs.frozen(kw_only=True, eq=False)
class Checkpoint:
    """Everything a run needs to go on; `run` identifies it (its config, its tokens, its base model).

    tensors  weight.L, exp_avg.L and exp_avg_sq.L by forecast layer
    history  what was told of every step and evaluation so far; its length is the number of steps done
    """

    run: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]
    history: History
    wall_s: float

    @classmethod
    def take(
        cls,
        run: Mapping[str, Any],
        weights: Sequence[torch.Tensor],
        optimiser: torch.optim.Optimizer,
        history: History,
        wall_s: float,
    ) -> Checkpoint:
        """Gather the state after the steps of `history`, which took wall_s."""
        tensors = {}
        for layer, weight in enumerate(weights):
            tensors[f"weight.{layer}"] = weight.detach()
            for moment in _MOMENTS:
                tensors[f"{moment}.{layer}"] = optimiser.state[weight][moment]
        return cls(run=run, tensors=tensors, history=history, wall_s=wall_s)

    def restore(self, weights: Sequence[torch.Tensor], optimiser: torch.optim.Optimizer) -> History:
        """Put weights and optimiser back in place; returns what was told so far."""
        for layer, weight in enumerate(weights):
            with torch.no_grad():
                weight.copy_(self.tensors[f"weight.{layer}"])
            optimiser.state[weight] = {
                "step": torch.tensor(float(self.history.steps)),
                **{name: self.tensors[f"{name}.{layer}"].to(weight.device, copy=True) for name in _MOMENTS},
            }
        return self.history


def identity(config: TrainConfig, data_sha256: str, base_model: str) -> dict[str, Any]:
    """What makes two runs the same run."""
    # A run in one stage is the one that it was before there were two.
    told = attrs.asdict(config, filter=lambda field, value: field.name != "select_blocks" or bool(value))
    known = {**told, "data_sha256": data_sha256, "base_model": base_model}
    return dict(parse_json(json.dumps(known)))


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write beside `path`, then rename; raises ConfigError when there is no room or permission."""
    about = {
        "format": FORMAT,
        "step": checkpoint.history.steps,
        "base_model": checkpoint.run["base_model"],
        "block_spec": checkpoint.run["spec"],
        "objective": checkpoint.run["objective"],
        "data_sha256": checkpoint.run["data_sha256"],
        "run": checkpoint.run,
        "history": checkpoint.history.as_json(),
        "wall_s": checkpoint.wall_s,
    }
    try:
        tensors = {name: tensor.cpu() for name, tensor in checkpoint.tensors.items()}
        write_tensors(path, tensors, {"format": "pt", "sparda": json.dumps(about)})
    except OSError as error:
        raise ConfigError(f"checkpoint={str(path)!r} cannot be written ({error}); choose another folder") from error


def read_checkpoint(path: Path, run: Mapping[str, Any], shapes: Sequence[torch.Size]) -> Checkpoint:
    """Read a checkpoint of this very run, whose weights have these shapes.

    raises  ConfigError if it is damaged, or of another config, text or model; names what differs.
    """
    try:
        tensors, metadata = read_tensors(path)
        about = parse_json(metadata["sparda"])
        history = History.from_json(about["history"])
        checkpoint = Checkpoint(run=about["run"], tensors=tensors, history=history, wall_s=float(about["wall_s"]))
        known = dict(checkpoint.run)
    except (WeightsError, ArithmeticError, AttributeError, OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"checkpoint={str(path)!r} cannot be read ({error}); remove it to start anew") from error
    differs = sorted(key for key in run.keys() | known.keys() if run.get(key) != known.get(key))
    if differs:
        raise ConfigError(
            f"checkpoint={str(path)!r} belongs to another run: {', '.join(differs)} differ; "
            "use the same options, or remove it to start anew"
        )
    want = {f"{name}.{layer}": shape for layer, shape in enumerate(shapes) for name in ("weight", *_MOMENTS)}
    held = {name: tensor.shape for name, tensor in tensors.items()}
    wrong = sorted(name for name in want.keys() | held.keys() if want.get(name) != held.get(name))
    if wrong:
        raise ConfigError(f"checkpoint={str(path)!r} lacks or misshapes {', '.join(wrong)}; remove it to start anew")
    return checkpoint

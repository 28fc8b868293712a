"""Checkpoints of a training run: weights, optimiser and losses, written in one step.

Random draws depend on the seed and the step alone (train.draw), so the step count is their state.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import torch

from sparda_core.distill.config import TrainConfig
from sparda_core.errors import ConfigError
from sparda_core.files import whole_file


@attrs.frozen(kw_only=True, eq=False)
class Checkpoint:
    """Everything a run needs to go on; `run` identifies it (its config and its tokens)."""

    run: dict[str, Any]
    weights: list[torch.Tensor]
    optimiser: dict[str, Any]
    losses: list[float]
    wall_s: float

    @classmethod
    def take(
        cls,
        config: TrainConfig,
        ids_N: torch.Tensor,
        weights: Sequence[torch.Tensor],
        optimiser: torch.optim.Optimizer,
        losses: Sequence[float],
        wall_s: float,
    ) -> Checkpoint:
        """Gather the state after len(losses) steps, which took wall_s."""
        return cls(
            run=identity(config, ids_N),
            weights=[w.detach() for w in weights],
            optimiser=optimiser.state_dict(),
            losses=list(losses),
            wall_s=wall_s,
        )

    def restore(self, weights: Sequence[torch.Tensor], optimiser: torch.optim.Optimizer) -> list[float]:
        """Put weights and optimiser back in place; returns the losses so far."""
        with torch.no_grad():
            for target, saved in zip(weights, self.weights, strict=True):
                target.copy_(saved)
        optimiser.load_state_dict(self.optimiser)
        return list(self.losses)


def identity(config: TrainConfig, ids_N: torch.Tensor) -> dict[str, Any]:
    """What makes two runs the same run."""
    digest = hashlib.sha256(ids_N.to(torch.int64).cpu().numpy().tobytes()).hexdigest()
    return {**attrs.asdict(config), "tokens_sha256": digest}


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write beside `path`, then rename; raises ConfigError when there is no room or permission."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as part, part.open("wb") as file:
            torch.save(attrs.asdict(checkpoint, recurse=False), file)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
        raise ConfigError(f"checkpoint={str(path)!r} cannot be written ({error}); choose another folder") from error


def read_checkpoint(path: Path, config: TrainConfig, ids_N: torch.Tensor) -> Checkpoint:
    """Read a checkpoint of this very run.

    raises  ConfigError if it is damaged, or of another config or text; names what differs.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        checkpoint = Checkpoint(**content)
    except (OSError, RuntimeError, EOFError, KeyError, TypeError, pickle.UnpicklingError) as error:
        raise ConfigError(f"checkpoint={str(path)!r} cannot be read ({error}); remove it to start anew") from error
    now = identity(config, ids_N)
    differs = sorted(key for key in now if now[key] != checkpoint.run.get(key))
    if differs:
        raise ConfigError(
            f"checkpoint={str(path)!r} belongs to another run: {', '.join(differs)} differ; "
            "use the same options, or remove it to start anew"
        )
    return checkpoint

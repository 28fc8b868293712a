"""The law of the two halves: on a GPU a method chooses what it chooses on a CPU, up to scores that are equal there."""

from __future__ import annotations

import os

import numpy as np
import torch

from sparda_core.errors import ConfigError
from sparda_core.layer_view import LayerView
from sparda_core.selector import Selector
from sparda_core.testing.device_drive import DeviceDrive
from sparda_core.testing.law import Law, require
from sparda_core.testing.trial import Trial

#: How much two block scores of a CPU may differ, by the larger, and still be taken for equal by float32 on a GPU.
_NEAR = 1e-4


def require_runnable(device: str) -> None:
    """Raise ConfigError where kernels cannot run on a device in this process."""
    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise ConfigError(f"device={device!r} is none that kernels run on; use 'cuda', or 'cpu' and TRITON_INTERPRET=1")
    if torch.device(device).type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ConfigError(f"device={device!r} needs TRITON_INTERPRET=1 before anything imports Triton, or a GPU")
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={device!r} is not there; leave it out, and law 'device' is waived")


def _no_device(trial: Trial) -> str | None:
    if trial.device is None:
        return "no device was given"
    if type(trial.selector).bind_device is Selector.bind_device:
        return "it has no GPU half (bind_device)"
    return None


def _device(trial: Trial) -> None:
    rows = list(range(len(trial.scene.tokens)))
    views: dict[int, LayerView] = {}
    here = trial.drive(seen=lambda view: views.__setitem__(view.layer, view))
    there = DeviceDrive(
        trial.selector, trial.world(), places=len(rows) + 1, device=torch.device(trial.device or "cpu"),
        tokens=trial.most_tokens, lead=trial.lead,
    )  # fmt: skip
    for row in rows:
        here.prefill(row, trial.scene.tokens[row])
        there.adopt(row, here.bound, row, trial.scene.tokens[row])
    for step in range(trial.scene.steps):
        at = [tokens + step for tokens in trial.scene.tokens]
        want, got = here.decode(rows, at)[:, :, :, 0], there.decode(rows, at)
        for layer, row, head in np.ndindex(got.shape[:3]):
            ours, theirs = got[layer, row, head], want[layer, row, head]
            if not (ours == theirs).all():
                worth = _worth(views[layer], row, head)
                near = worth is not None and _as_good(ours, theirs, worth)
                where = f"layer {layer}, row {row}, head {head}, position {at[row]}"
                require(near, f"{where}: {ours.tolist()} on {trial.device}, {theirs.tolist()} on a CPU")


def _worth(view: LayerView, row: int, head: int) -> list[float] | None:
    return None if view.scores is None else view.scores[row, head, 0].tolist()


def _as_good(got: np.ndarray, want: np.ndarray, worth: list[float]) -> bool:
    """Whether two lawful selections of one size differ in blocks of near scores only."""
    one, other = (set(ids[ids >= 0].tolist()) for ids in (got, want))
    scores = sorted(worth[b] for b in one - other if b < len(worth))
    theirs = sorted(worth[b] for b in other - one if b < len(worth))
    if len(one) != len(other) or len(scores) != len(theirs):
        return False
    return all(abs(a - b) <= _NEAR * max(abs(a), abs(b), 1e-6) for a, b in zip(scores, theirs, strict=True))


DEVICE_LAWS: tuple[Law[Trial], ...] = (
    Law("device", "its GPU half chooses what its CPU half chooses, up to equal scores", _device, _no_device),
)

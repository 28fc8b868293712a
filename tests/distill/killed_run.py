"""A training that its parent kills: says each step as it is done.

usage: python killed_run.py CHECKPOINT
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from sparda_core.distill.history import Step
from sparda_core.distill.train import Habits, train
from tests.distill.toy import toy_config, toy_model, toy_stream


def say(told: Step) -> None:
    """One line a step, at once."""
    sys.stdout.write(f"{told.step}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    torch.set_num_threads(1)
    habits = Habits(checkpoint=Path(sys.argv[1]), checkpoint_every=2, on_step=say)
    train(toy_model().decoder, toy_stream(), toy_config(steps=2000), habits)

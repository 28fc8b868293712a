"""Torch's inference mode around a piece of work, which ends with it even where a signal cuts in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

_Made = TypeVar("_Made")


def in_inference(work: Callable[[], _Made]) -> _Made:
    """What `work` returns, made in torch's inference mode; afterwards the mode is what it was before.

    `torch.inference_mode` enters and leaves in Python code. A signal's handler that raises between the two halves of
    either leaves the mode on, or has it end later, within somebody else's work, when the guard is collected. Here each
    end is one call of C: Python looks for signals before it or after it, and both lie where the other end follows.
    """
    guard = torch._C._InferenceMode(True)  # noqa: SLF001 - the only guard whose ends are C's
    try:
        guard.__enter__()  # type: ignore[no-untyped-call]
        return work()
    finally:
        guard.__exit__(None, None, None)

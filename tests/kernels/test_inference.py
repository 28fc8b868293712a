from __future__ import annotations

import functools

import pytest
import torch

from sparda_core.kernels.inference import in_inference
from tests.chaos.cuts import Cut, cut_at, moments


def test_work_is_done_in_inference_mode_and_nothing_after_it() -> None:
    made = in_inference(lambda: torch.ones(2) + 1)
    assert made.is_inference()
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()


def test_inside_of_another_the_mode_stays_until_that_one_ends() -> None:
    def outer() -> bool:
        in_inference(lambda: None)
        return torch.is_inference_mode_enabled()

    assert in_inference(outer)
    assert not torch.is_inference_mode_enabled()


def test_an_error_ends_the_mode() -> None:
    with pytest.raises(ZeroDivisionError):
        in_inference(lambda: 1 // 0)
    assert not torch.is_inference_mode_enabled()


def test_a_cut_at_any_moment_leaves_the_mode_as_it_was_while_the_error_is_still_held() -> None:
    """Held, because a guard that was skipped ends when the last who knows of it goes: late, or in somebody's work."""
    work = functools.partial(in_inference, lambda: None)
    found, held = moments(work), list[Cut]()
    assert len(found) >= 3
    for moment in range(len(found)):
        try:
            with cut_at(moment):
                work()
        except Cut as cut:
            held.append(cut)
        assert not torch.is_inference_mode_enabled(), found[moment]
    assert len(held) == len(found)

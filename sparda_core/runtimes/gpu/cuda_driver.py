"""The few calls of the CUDA driver that pin host memory, through ctypes: torch offers none that pins exactly.

The driver library is there wherever a GPU works; nothing else is needed. ctypes lets other threads run meanwhile.
"""

from __future__ import annotations

import ctypes
from typing import Protocol

import torch

from sparda_core.errors import ConfigError, SpardaError

_LIBRARY = "libcuda.so.1"
#: Memory is pinned for every context, and kernels read it at the address the host uses.
_PORTABLE_AND_MAPPED = 0x3
_HOST_POINTER_FOR_REGISTERED = 91
#: Capture mode of a thread that may call anything while other threads capture.
_RELAXED = 2


class PinningError(SpardaError, RuntimeError):
    """A call of the driver that gave an error; `name` is the driver's own."""

    def __init__(self, call: str, name: str) -> None:
        self.call, self.name = call, name
        super().__init__(f"{call} failed: {name}")


class Driver(Protocol):
    """What pinning needs of a driver. Addresses are integers; every method may be called from any thread."""

    def host_alloc(self, size: int) -> int:
        """Fresh pinned memory; its address."""

    def host_free(self, address: int) -> None:
        """Give back what `host_alloc` gave."""

    def register(self, address: int, size: int) -> None:
        """Pin memory that is there already."""

    def unregister(self, address: int) -> None:
        """Undo one `register`."""


class CudaDriver:
    """The driver, for the context of torch's current device."""

    def __init__(self) -> None:
        """Raise ConfigError where there is no CUDA device, or one that cannot read host memory in place."""
        if not torch.cuda.is_available():
            raise ConfigError("pinned memory needs a CUDA device; without one use method='plain'")
        # Makes the device's context, and leaves it current in this thread.
        torch.cuda.synchronize()
        self._library = ctypes.CDLL(_LIBRARY)
        self._context, able, device = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
        self._check("cuCtxGetCurrent", ctypes.byref(self._context))
        self._check("cuCtxGetDevice", ctypes.byref(device))
        self._check("cuDeviceGetAttribute", ctypes.byref(able), _HOST_POINTER_FOR_REGISTERED, device)
        if not able.value:
            raise ConfigError("this device cannot read registered host memory at the host's address; use another")

    def host_alloc(self, size: int) -> int:
        """See `Driver`."""
        address = ctypes.c_void_p()
        self._call("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_uint(_PORTABLE_AND_MAPPED))
        assert address.value is not None
        return address.value

    def host_free(self, address: int) -> None:
        """See `Driver`."""
        self._release("cuMemFreeHost", address)

    def register(self, address: int, size: int) -> None:
        """See `Driver`."""
        self._call(
            "cuMemHostRegister_v2", ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_uint(_PORTABLE_AND_MAPPED)
        )

    def unregister(self, address: int) -> None:
        """See `Driver`."""
        self._release("cuMemHostUnregister", address)

    def _release(self, name: str, address: int) -> None:
        """Give memory back when no kernel reads it any more: a session may go away without having been closed."""
        # Whoever captures a graph at this moment must not be disturbed, and a device that is out of order must not
        # keep memory from being freed: hence the mode, and no look at what waiting said.
        mode = ctypes.c_int(_RELAXED)
        self._check("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        try:
            self._check("cuCtxPushCurrent_v2", self._context)
            self._library.cuCtxSynchronize()
            self._check("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
            self._call(name, ctypes.c_void_p(address))
        finally:
            self._check("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))

    def _call(self, name: str, *arguments: object) -> None:
        """One call under our context, whatever is current in this thread (a fresh one has none)."""
        self._check("cuCtxPushCurrent_v2", self._context)
        try:
            self._check(name, *arguments)
        finally:
            self._check("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _check(self, name: str, *arguments: object) -> None:
        code = int(getattr(self._library, name)(*arguments))
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(text))
            raise PinningError(name, text.value.decode() if text.value else f"code {code}")

"""What every CPU kernel checks before it trusts its inputs. Free of torch: the copy lane must not touch it."""

from __future__ import annotations

from typing import Any, Protocol

import numpy.typing as npt

from sparda_core.errors import ConfigError
from sparda_core.kernels.jit import kernel


class Shaped(Protocol):
    """A tensor or an array."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of its axes."""


def require_shape(tensor: Shaped, name: str, **axes: int | None) -> None:
    """Raise ConfigError unless `tensor` has these axes, in order; None takes any size."""
    shape = tuple(tensor.shape)
    if len(shape) == len(axes):
        for size, want in zip(shape, axes.values(), strict=True):
            if want is not None and size != want:
                break
        else:
            return
    wanted = ", ".join(axis if size is None else f"{axis}={size}" for axis, size in axes.items())
    raise ConfigError(f"{name} has shape {list(shape)}; want [{wanted}]")


def require_ids(ids: npt.NDArray[Any], name: str, *, low: int, high: int) -> None:
    """Raise ConfigError unless every id lies in [low, high): a kernel trusts them as addresses."""
    if not _all_within(ids.reshape(-1), low, high):
        raise ConfigError(f"{name} spans [{ids.min()}, {ids.max()}]; every value must be in [{low}, {high})")


@kernel
def _all_within(ids_N: npt.NDArray[Any], low: int, high: int) -> bool:
    good = True
    for value in ids_N:
        good &= low <= value < high
    return good

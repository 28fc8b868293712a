"""Rotary position embedding, rotate-half (NeoX order), with tables that grow on demand."""

from __future__ import annotations

import attrs
import torch


@attrs.frozen(eq=False)
class Rotation:
    """cos and signed sin of some positions, both [B, T, 1, D]: look them up once, use them in every layer."""

    cos: torch.Tensor
    sin: torch.Tensor

    def apply(self, x_BTHD: torch.Tensor) -> torch.Tensor:
        """Rotate x [B, T, H, D] (read only) in the tables' precision; returns x's dtype.

        rotate_half(x) = (-x2, x1) is a roll by D/2 once the minus sign sits in the sine table.
        """
        wide = x_BTHD.to(self.cos.dtype)
        turned = torch.addcmul(wide * self.cos, wide.roll(wide.shape[-1] // 2, -1), self.sin)
        return turned.to(x_BTHD.dtype)


class RotaryTable:
    """cos and sin for positions [0, length), float32 (float64 for a float64 model)."""

    def __init__(
        self, *, head_dim: int, theta: float, length: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self.head_dim, self.theta, self.device = head_dim, theta, torch.device(device)
        self.dtype = torch.float64 if dtype == torch.float64 else torch.float32
        self._build(length)

    def _build(self, length: int) -> None:
        pairs = torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim
        angle = torch.outer(torch.arange(length, dtype=torch.float64), self.theta**-pairs)
        self.length = length
        self._cos = torch.cat((angle.cos(), angle.cos()), -1).to(self.device, self.dtype)
        self._sin = torch.cat((-angle.sin(), angle.sin()), -1).to(self.device, self.dtype)

    @property
    def cos(self) -> torch.Tensor:
        """[length, D]; another tensor after it grew."""
        return self._cos

    @property
    def sin(self) -> torch.Tensor:
        """[length, D], its first half negated; another tensor after it grew."""
        return self._sin

    def grow(self, length: int) -> None:
        """Make positions [0, length) known; at least doubles, so that growth stays cheap."""
        if length > self.length:
            self._build(max(length, 2 * self.length))

    def at(self, positions_BT: torch.Tensor) -> Rotation:
        """Rotation for absolute positions, int [B, T].

        On a CPU the table grows as needed. Elsewhere the largest position is not read (that would
        wait for the device): call `grow` first when going past the model's context.
        """
        if positions_BT.device.type == "cpu":
            self.grow(int(positions_BT.max()) + 1)
        return Rotation(self._cos[positions_BT].unsqueeze(2), self._sin[positions_BT].unsqueeze(2))

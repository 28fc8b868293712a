"""Rotary position embedding, rotate-half (NeoX order), with tables that grow on demand."""

from __future__ import annotations

import attrs
import torch

from sparda_core.footprint import grown
from sparda_core.models.rope_scaling import RopeScaling


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
    """cos and sin for positions [0, length), float32 (float64 for a float64 model).

    Where frequencies depend on the length of the text, row p is that of a text which ends with token p: what a token
    that is decoded alone gets. Several tokens read at once turn as the last of them, as in Hugging Face's forward.
    """

    def __init__(
        self, *, head_dim: int, theta: float, length: int, dtype: torch.dtype, device: torch.device | str,
        scaling: RopeScaling | None = None,
    ) -> None:  # fmt: skip
        self.head_dim, self.theta, self.device = head_dim, theta, torch.device(device)
        self.scaling = scaling or RopeScaling()
        self.scaling.check(head_dim)
        self.dtype = torch.float64 if dtype == torch.float64 else torch.float32
        self._build(length)

    def _build(self, length: int) -> None:
        positions_N = torch.arange(length, dtype=torch.float64)
        self.length = length
        self._cos, self._sin = self._turns(positions_N, positions_N + 1)

    def _turns(self, positions_N: torch.Tensor, tokens_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cos and signed sin [N, D] of float64 positions in texts of so many tokens."""
        settled = self.scaling.settled
        tokens_N = tokens_N if settled is None else tokens_N.clamp_min(settled)
        angle = positions_N[:, None] * self.scaling.frequencies(self.theta, self.head_dim, tokens_N)
        cos, sin = (turned * self.scaling.magnitude for turned in (angle.cos(), angle.sin()))
        halves = (torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))
        return halves[0].to(self.device, self.dtype), halves[1].to(self.device, self.dtype)

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
            self._build(grown(self.length, length))

    def at(self, positions_BT: torch.Tensor) -> Rotation:
        """Rotation for absolute positions, int [B, T].

        On a CPU the table grows as needed. Elsewhere the largest position is not read (that would wait for the device)
        unless frequencies depend on it: call `grow` first when going past the model's context.
        """
        settled, many = self.scaling.settled, positions_BT.shape[1] > 1
        if positions_BT.device.type == "cpu" or (settled is not None and many):
            last = int(positions_BT.max())
            if settled is not None and many and last >= settled:
                return self._of_long_texts(positions_BT)
            self.grow(last + 1)
        return Rotation(self._cos[positions_BT].unsqueeze(2), self._sin[positions_BT].unsqueeze(2))

    def _of_long_texts(self, positions_BT: torch.Tensor) -> Rotation:
        here_BT = positions_BT.to("cpu", torch.float64)
        tokens_BT = (here_BT.amax(1, keepdim=True) + 1).expand_as(here_BT)
        cos, sin = self._turns(here_BT.flatten(), tokens_BT.flatten())
        size = (*positions_BT.shape, 1, self.head_dim)
        return Rotation(cos.view(size), sin.view(size))

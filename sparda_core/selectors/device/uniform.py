"""GPU half of `random`."""

from __future__ import annotations

from sparda_core.device_view import DeviceView
from sparda_core.kernels.score_uniform.gpu import uniform_block_scores
from sparda_core.selector import DeviceRoom
from sparda_core.selectors.device.scored import ScoredDevice

_WORD = 2**64


class DeviceUniform(ScoredDevice):
    """Scores blocks by the hash of the CPU half, bit for bit. Keeps nothing."""

    def __init__(self, room: DeviceRoom, *, seed: int) -> None:
        super().__init__(room)
        self._seed = seed

    def score(self, view: DeviceView) -> None:
        """Seed and layer are known before a step; position, head and block are taken in on the device."""
        state = mixed(mixed(_product(self._seed)) ^ _product(view.layer))
        signed = state - _WORD if state >= _WORD // 2 else state
        uniform_block_scores(view.position, signed, view.spec.block, view.scores, early=self.early)


def mixed(value: int) -> int:
    """SplitMix64's finaliser (Steele, Lea, Flood, OOPSLA 2014) of an unsigned 64-bit number."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % _WORD
    value = (value ^ value >> 27) * 0x94D049BB133111EB % _WORD
    return value ^ value >> 31


def _product(part: int) -> int:
    return part * 0x9E3779B97F4A7C15 % _WORD

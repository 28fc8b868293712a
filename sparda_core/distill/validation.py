"""Recall on held-out windows while a run goes on: which of its Forecasts is the best one."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch

from sparda_core.distill.history import Evaluation
from sparda_core.distill.lesson import LayerLesson, observe
from sparda_core.distill.parallel import World
from sparda_core.distill.recall import methods, recall_of, top_free
from sparda_core.distill.rows import shared_out
from sparda_core.errors import ConfigError
from sparda_core.models.decoder import Decoder
from sparda_core.models.forecast_weights import ForecastWeights
from sparda_core.shapes import BlockSpec


@attrs.frozen(kw_only=True, eq=False)
class Validation:
    """Windows of held-out documents, int [T] each, and how they are looked at.

    asked   query positions of a window, evenly spread over its second half
    Recall is measured at the spec's budget; in windows so short that it would take more than half of the blocks that
    are free to choose, at a smaller one, since whoever takes nearly all recalls nearly all.
    """

    decoder: Decoder
    windows: Sequence[torch.Tensor]
    spec: BlockSpec
    asked: int = 64
    world: World = attrs.field(factory=World)

    def __attrs_post_init__(self) -> None:
        if not self.windows:
            raise ConfigError("no held-out document is long enough to measure recall on: add text, or shorten windows")
        shortest, earliest = min(map(len, self.windows)), (self.spec.sink + self.spec.local + 2) * self.spec.block
        if shortest <= earliest:
            raise ConfigError(
                f"a held-out window of {shortest} tokens must be longer than {earliest}: before that there is nothing "
                "to choose; lengthen --window, or leave recall out with --evaluate-windows 0"
            )

    @property
    def free(self) -> int:
        """Free blocks that are chosen at every position."""
        first = min(self._first(window) for window in self.windows)
        there = first // self.spec.block - self.spec.local - self.spec.sink
        return min(self.spec.free, max(1, there // 2))

    @property
    def budget(self) -> int:
        """The budget that recall is measured at."""
        return self.spec.forced + self.free

    def _first(self, window: torch.Tensor) -> int:
        return max(len(window) // 2, (self.spec.sink + self.spec.local + 2) * self.spec.block)

    def __call__(self, forecast: ForecastWeights, step: int) -> Evaluation:
        """Recall of the free blocks at the budget, mean over KV heads, positions, windows and layers from `lead` on."""
        score = methods(self.decoder, forecast, seed=0)
        sums = torch.zeros(3, dtype=torch.float64)
        free = self.free

        def judge(lesson: LayerLesson) -> None:
            if lesson.layer < forecast.lead < self.decoder.shape.layers:
                return
            chosen = top_free(score["forecast"](lesson), lesson.free, free)
            for place, truth in enumerate((score["oracle"](lesson), lesson.teacher())):
                sums[place] += recall_of(chosen, top_free(truth, lesson.free, free))
            sums[2] += 1

        world = self.world
        # Every process reads as many windows: where layers are shared out, all must ask for them.
        for number in shared_out(-(-len(self.windows) // world.size) * world.size, world.rank, world.size):
            window = self.windows[number % len(self.windows)]
            first = self._first(window)
            positions = torch.arange(first, len(window), max(1, (len(window) - first) // self.asked))
            counted = number < len(self.windows)
            observe(
                self.decoder, window.to(self.decoder.device), positions.to(self.decoder.device), self.spec,
                judge if counted else lambda _lesson: None, lead=forecast.lead,
            )  # fmt: skip
        on_device = sums.to(self.decoder.device)
        world.add([on_device])
        oracle, query, count = on_device.tolist()
        return Evaluation(step=step, oracle=oracle / count, query=query / count)

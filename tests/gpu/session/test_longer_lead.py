"""A Forecast that looks several layers ahead, on a GPU: what a CPU answers, with one copy a step too."""

from __future__ import annotations

import attrs
import pytest

from sparda_core.errors import ConfigError
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.runtimes.gpu.graphs import Eager
from sparda_core.runtimes.gpu.options import GpuOptions
from sparda_core.runtimes.gpu.session import GpuSession
from tests.gpu.session.test_graphs import filled, opened
from tests.gpu.session.worlds import SHAPE, SPEC, Pair, close, models, prompt, same_facts
from tests.gpu_env import DEVICE

ON_GPU = DEVICE.type == "cuda"
#: With a lead of 2 the last two are offloaded, and both of their selections are under way at once.
FOUR = attrs.evolve(SHAPE, layers=4)
STEPS = 40 if ON_GPU else 2


@pytest.mark.parametrize(
    ("runtime", "lead", "policy"),
    [("offload-prefetch", 2, "last-selection"), ("offload-prefetch", 3, "lru"), ("offload-sync", 2, "lru"),
     ("resident", 2, "last-selection")],
)  # fmt: skip
def test_a_longer_lead_answers_as_on_a_cpu_over_a_block_that_opens(runtime: str, lead: int, policy: str) -> None:
    options = {} if runtime == "resident" else {"policy": policy, "slots": SPEC.budget + (policy == "lru")}
    with Pair(
        "forecast", runtime, shape=FOUR, selector_options={"lead": lead}, runtime_options=options, places=2, tokens=112
    ) as pair:
        assert pair.gpu.plan.lead == lead
        for seed, length in enumerate((63, 9) if ON_GPU else (63,)):
            pair.add(prompt(length, seed))
        pair.steps(STEPS)


def test_one_copy_a_step_gives_what_a_copy_a_layer_gives() -> None:
    """Without a GPU only the last of three layers is offloaded, so that its list is whole when the copy begins."""
    shape = FOUR if ON_GPU else attrs.evolve(SHAPE, layers=3)
    with (
        opened("forecast", "offload-prefetch", {}, shape=shape, lead=2) as layers,
        opened("forecast", "offload-prefetch", {}, shape=shape, lead=2, copy_launch="step") as whole,
    ):
        for session in (layers, whole):
            filled(session, 70, 33) if ON_GPU else filled(session, 70)
            session.run(1)
        if not ON_GPU:
            whole._machinery._replays = Eager(whole._machinery._captured_pieces)
        for session in (layers, whole):
            session.run(STEPS)
        assert whole.tokens() == layers.tokens()
        same_facts(whole.last_facts(), layers.last_facts())
        close(whole.last_logits(), layers.last_logits())


def test_a_lead_that_the_weights_were_not_trained_for_is_refused_before_memory_is_taken() -> None:
    _, there = models(FOUR, lead=2)
    with pytest.raises(ConfigError, match=r"lead=1 of selector 'forecast' must be 2.*sparda train --lead 1"):
        GpuSession(
            there, runtime=RUNTIMES.make("resident"), selector=SELECTORS.make("forecast"), spec=SPEC,
            options=GpuOptions.of(places=1, tokens=64, gpu_memory_bytes=1),
        )  # fmt: skip

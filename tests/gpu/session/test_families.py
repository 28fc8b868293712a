"""A GPU session of a model with biases, norms of heads and scaled positions decodes what a CPU session does."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch

from tests.gpu_env import DEVICE  # decides for the process whether kernels are interpreted: before the kernels

from sparda_core.compose import compose  # isort: skip
from sparda_core.models.config import DecoderConfig
from sparda_core.models.rope_scaling import DynamicScaling, RopeScaling, YarnScaling
from sparda_core.models.tiny import tiny_model
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.runtimes.gpu.options import GpuOptions
from sparda_core.runtimes.gpu.session import GpuSession
from tests.gpu.session.worlds import SHAPE, SPEC, close, prompt

FAMILIES: dict[str, tuple[dict[str, Any], RopeScaling | None]] = {
    "qwen2 with yarn": ({"qkv_bias": True}, YarnScaling(factor=4.0, original=32)),
    "qwen3": ({"qk_norm": True}, None),
    # every rule that looks at the length of the text: the prompt is shorter than 50 tokens, its continuation is not
    "llama with dynamic": ({}, DynamicScaling(factor=4.0, original=50)),
}


@pytest.mark.parametrize(
    ("family", "selector", "runtime"),
    [
        ("qwen2 with yarn", "infinigen", "offload-prefetch"),
        ("qwen3", "query", "offload-sync"),
        ("llama with dynamic", "forecast", "offload-prefetch"),
    ],
)
def test_logits_are_those_of_a_cpu(family: str, selector: str, runtime: str) -> None:
    shape, scaling = FAMILIES[family]
    config = DecoderConfig(shape=attrs.evolve(SHAPE, **shape), rope_scaling=scaling)
    here, there = (tiny_model(config.shape, seed=3, config=config, device=device) for device in ("cpu", DEVICE))
    options = {"channels": 16} if selector == "infinigen" else {}
    tokens, steps = prompt(47), 4
    with (
        compose(here, selector, runtime, spec=SPEC, selector_options=options).open(threads=1) as cpu,
        GpuSession(
            there, runtime=RUNTIMES.make(runtime), selector=SELECTORS.make(selector, **options), spec=SPEC,
            options=GpuOptions(tokens=len(tokens) + steps),
        ) as gpu,
    ):  # fmt: skip
        one, other = cpu.add(), gpu.add()
        want = cpu.prefill(one, tokens)
        close(gpu.prefill(other, tokens).cpu(), want)
        for _ in range(steps):
            token = int(want.argmax())
            want = cpu.decode({one: token}).logits[0]
            gpu.run(1, {other: token})
            close(torch.as_tensor(gpu.last_logits()[0]).cpu(), want)

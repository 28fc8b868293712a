"""What a session holds whatever its rows do, weights and tables, takes the bytes that its plan says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import torch

from tests.gpu_env import DEVICE  # decides for the process whether kernels are interpreted: before the kernels

from sparda_core.models.decoder import Decoder  # isort: skip
from sparda_core.models.model import Model
from sparda_core.models.tiny import tiny_model
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.runtimes.gpu.options import GpuOptions
from sparda_core.runtimes.gpu.session import GpuSession
from tests.gpu.session.worlds import SHAPE, SPEC

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True, "tied_embeddings": False},
    "nosa": {"token_bias": True},
}


def held(decoder: Decoder) -> Iterator[torch.Tensor]:
    """Every tensor of the decoder's weights."""
    embed, head, norm = decoder.table_weights
    yield from (embed, norm) if head is embed else (embed, head, norm)
    for layer in range(decoder.shape.layers):
        for value in attrs.asdict(decoder.layer_weights(layer), recurse=False).values():
            parts = attrs.asdict(value, recurse=False).values() if attrs.has(type(value)) else [value]
            yield from (part for part in parts if isinstance(part, torch.Tensor))


def opened(model: Model, tokens: int, selector: str = "query", **options: int) -> GpuSession:
    return GpuSession(
        model, runtime=RUNTIMES.make("resident"), selector=SELECTORS.make(selector, **options), spec=SPEC,
        options=GpuOptions(tokens=tokens, page_blocks=2),
    )  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("lead", [None, 1, 2])
def test_weights_norms_and_biases_take_what_is_planned(family: str, lead: int | None) -> None:
    shape = attrs.evolve(SHAPE, layers=3, **FAMILIES[family])
    model = tiny_model(shape, forecast=lead is not None, lead=lead or 1, device=DEVICE)
    selector = ("query", {}) if lead is None else ("forecast", {"lead": lead})
    with opened(model, 40, selector[0], **selector[1]) as session:
        parts, tensors = session.capacity.device_parts(), list(held(session.machinery.decoder))
    assert sum(w.nbytes for w in tensors) == parts["weights"] + parts["norms and biases"]
    matrices = [w.nbytes for w in tensors if w.dim() == 2 and len(w) > shape.q_heads + shape.kv_heads]
    assert sum(matrices) == parts["weights"]


@pytest.mark.parametrize("tokens", [40, SHAPE.context, SHAPE.context + 1, 2 * SHAPE.context + 7])
def test_rotary_tables_are_as_long_as_the_context_or_the_rows_and_take_what_is_planned(tokens: int) -> None:
    model = tiny_model(SHAPE, device=DEVICE)
    with opened(model, tokens) as session:
        table = session.machinery.decoder.rotary
        assert table.cos.nbytes + table.sin.nbytes == session.capacity.device_parts()["rotary tables"]
        assert len(table.cos) >= max(tokens, SHAPE.context)

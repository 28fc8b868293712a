"""Model shapes and block specs: derived numbers, forced blocks, refusals."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import ConfigError, UnknownNameError
from sparda_core.shapes import SHAPES, BlockSpec, ModelShape, named_shape

MINICPM = BlockSpec(sink=1, local=32, budget=96)
NOSA = BlockSpec(sink=1, local=16, budget=96)


@pytest.mark.parametrize(("tokens", "entries"), [(0, 0), (31, 0), (32, 1), (47, 1), (48, 2), (64, 3), (65536, 4095)])
def test_only_full_windows_make_entries(tokens: int, entries: int) -> None:
    assert BlockSpec().entry_count(tokens) == entries


@given(tokens=st.integers(32, 200_000))
def test_the_tail_that_no_entry_has_consumed_is_16_to_31_tokens(tokens: int) -> None:
    spec = BlockSpec()
    assert 16 <= tokens - spec.stride * spec.entry_count(tokens) <= 31


def test_forced_blocks_are_the_published_ones() -> None:
    assert MINICPM.forced_blocks(500 * 64) == (0, *range(468, 501))
    assert NOSA.forced_blocks(500 * 64 + 63) == (0, *range(484, 501))
    assert (MINICPM.forced, MINICPM.free) == (34, 62)


@given(position=st.integers(0, 10_000), sink=st.integers(0, 4), local=st.integers(1, 8))
def test_forced_blocks_are_ascending_and_never_in_the_future(position: int, sink: int, local: int) -> None:
    spec = BlockSpec(sink=sink, local=local, budget=sink + local + 1)
    forced = spec.forced_blocks(position)
    assert list(forced) == sorted(set(forced))
    assert forced[-1] == position // spec.block
    assert len(forced) == min(spec.forced, position // spec.block + 1)


@pytest.mark.parametrize(("block", "width"), [(64, 5), (32, 3)])
def test_the_pool_is_one_wider_than_the_entries_of_a_block(block: int, width: int) -> None:
    assert BlockSpec(block=block).pool_width == width


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block": 40}, "block=40 must be a multiple of stride=16"),
        ({"window": 24}, "window=24 must be a multiple of stride=16"),
        ({"budget": 4}, r"budget=4 must be >= 5 \(sink=1 \+ local=3"),
        ({"local": 0}, "local=0 must be >= 1 for window=32, block=64"),
        ({"sink": -1}, "sink=-1 must be an integer >= 0"),
        ({"block": 0}, "block=0 must be an integer >= 1"),
        ({"budget": 8.0}, r"budget=8\.0 must be an integer"),
        ({"budget": True}, "budget=True must be an integer"),
    ],
)
def test_a_block_spec_that_cannot_work_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BlockSpec(**change)


@given(
    window=st.sampled_from([16, 32, 64, 128, 160]), block=st.sampled_from([16, 32, 64]), position=st.integers(0, 2000)
)  # fmt: skip
def test_every_block_that_the_newest_entry_touches_is_forced(window: int, block: int, position: int) -> None:
    least = -(-(window - 1) // block)
    spec = BlockSpec(block=block, window=window, sink=0, local=least, budget=least + 1)
    newest = spec.entry_count(position + 1) - 1
    completed_now = newest >= 0 and newest * spec.stride + window - 1 == position
    if completed_now:
        r = spec.entries_per_block
        pooled_into = [b for b in range(position // block + 1) if r * b - 1 <= newest <= r * b + r - 1]
        assert set(pooled_into) <= set(spec.forced_blocks(position))


def test_named_shapes_have_the_published_sizes() -> None:
    shape = SHAPES["minicpm4.1-8b"]
    assert shape.weights == 8_184_987_648
    assert shape.layers * shape.forecast_weights == 33_554_432
    assert (shape.layers + 1) * shape.forecast_weights == 34_603_008
    assert SHAPES["smollm2-135m"].kv_values_per_token == 11_520


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q_heads": 10}, "q_heads=10 must be a multiple of kv_heads=3"),
        ({"head_dim": 63}, "head_dim=63 must be even"),
        ({"layers": 0}, "layers=0 must be an integer >= 1"),
    ],
)
def test_head_counts_that_do_not_divide_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        attrs.evolve(SHAPES["smollm2-135m"], **change)


def test_an_unknown_shape_answers_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean 'minicpm4\.1-8b'"):
        named_shape("minicpm4-8b")


def test_a_shape_needs_no_torch() -> None:
    assert ModelShape.__module__ == "sparda_core.shapes"

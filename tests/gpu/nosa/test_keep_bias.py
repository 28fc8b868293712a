"""The bias of a new token on a GPU against the float64 reference."""

from __future__ import annotations

import math

import pytest
import torch

from sparda_core.errors import ConfigError
from sparda_core.facts import steady_facts
from sparda_core.kernels.token_bias.work import work
from sparda_core.plan import Kind, Op
from sparda_core.shapes import BlockSpec, named_shape
from sparda_core.work import WorkContext
from tests.gpu_env import DEVICE, DTYPES

# isort: split
from sparda_core.kernels.token_bias.gpu import grid, keep_bias
from sparda_core.kernels.token_bias.reference import keep_bias as reference

NAN = float("nan")
SPEC = BlockSpec(block=16, window=8, stride=4, sink=1, local=1, budget=5)


def drawn(seed: int, *size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def around(tensor: torch.Tensor) -> torch.Tensor:
    """The same values on the device, as a view into something larger."""
    room = torch.full([size + 1 for size in tensor.shape], NAN, dtype=tensor.dtype, device=DEVICE)
    view = room[tuple(slice(size) for size in tensor.shape)]
    view.copy_(tensor)
    return view


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "width"), [(2, 32), (3, 20), (1, 8)])
def test_a_token_leaves_its_bias_and_completes_a_mean(dtype: torch.dtype, heads: int, width: int) -> None:
    position = torch.tensor([31, -1, 7, 6, 0, 16, 27], dtype=torch.int32)
    places = len(position)
    value, scale = 3 * drawn(1, places, heads, width, dtype=dtype), drawn(2, heads, dtype=dtype)
    delta = drawn(3, heads, heads * width, dtype=dtype)
    value[1] = NAN
    tokens = torch.full((places, heads, 40), NAN)
    for row, here in enumerate(position.tolist()):
        tokens[row, :, : max(here, 0)] = drawn(4 + row, heads, max(here, 0))
    means = torch.full((places, heads, 9), NAN)
    got_tokens, got_means = around(tokens), around(means)
    keep_bias(
        around(value), scale.to(DEVICE), delta.to(DEVICE), position.to(DEVICE), tokens=got_tokens, means=got_means,
        spec=SPEC,
    )  # fmt: skip
    reference(value, scale, delta, position, tokens=tokens, means=means, spec=SPEC)
    torch.testing.assert_close(got_tokens.cpu(), tokens, rtol=2e-5, atol=2e-5, equal_nan=True)
    torch.testing.assert_close(got_means.cpu(), means, rtol=2e-5, atol=2e-5, equal_nan=True)
    # 31, 7 and 27 end a window of 8 that begins at a multiple of 4; 6, 0 and 16 do not.
    assert (~means[:, 0].isnan()).sum(-1).tolist() == [1, 0, 1, 0, 0, 0, 1]


def test_values_that_would_overflow_an_exponential_do_not() -> None:
    tokens, means = torch.full((2, 1, 4), NAN, device=DEVICE), torch.full((2, 1, 1), NAN, device=DEVICE)
    keep_bias(
        torch.tensor([[[400.0]], [[-400.0]]], device=DEVICE), torch.ones(1, device=DEVICE),
        torch.ones(1, 1, device=DEVICE), torch.tensor([2, 3], dtype=torch.int32, device=DEVICE), tokens=tokens,
        means=means, spec=SPEC,
    )  # fmt: skip
    assert (float(tokens[0, 0, 2]), float(tokens[1, 0, 3])) == (400.0, 0.0)


def test_what_does_not_fit_is_refused() -> None:
    one = torch.zeros(1, 2, 8, device=DEVICE)
    at, rest = torch.zeros(1, dtype=torch.int32, device=DEVICE), torch.zeros(1, 2, 4, device=DEVICE)
    with pytest.raises(ConfigError, match="delta has shape"):
        keep_bias(one, one[0, :, 0].contiguous(), one[0], at, tokens=rest, means=rest, spec=SPEC)
    with pytest.raises(ConfigError, match=r"tokens is torch\.float16; want float32"):
        keep_bias(
            one, one[0, :, 0].contiguous(), torch.zeros(2, 16, device=DEVICE), at, tokens=rest.half(), means=rest,
            spec=SPEC,
        )  # fmt: skip


def test_thread_blocks_and_bytes_are_those_of_the_launch() -> None:
    shape, spec = named_shape("nosa-8b"), BlockSpec(sink=1, local=16, budget=96)
    facts = steady_facts(shape=shape, spec=spec, batch=3, context=8192 - 16, churn=0.1)
    got = work(Op(kind=Kind.ENTRIES, layer=4), facts, WorkContext(shape=shape, spec=spec))
    assert got.ctas == math.prod(grid(3, 2))
    completed = int(facts.lengths[0]) % 16 == 0
    means = 3 * 2 * completed
    assert got.hbm_bytes == 2 * (2 * 256 + 3 * 256) + 4 * (3 * 2 + means * 33)
    assert got.flops == 2 * 3 * 2 * 256 + 32 * means

"""Next tokens: greedy and nucleus sampling, against the obvious way in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparda_core.errors import ConfigError
from sparda_core.kernels.sample import gpu, reference
from tests.gpu_env import DEVICE

VOCAB = 75


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several splits and tiles of a small vocabulary."""
    monkeypatch.setattr(gpu, "SPLIT", 16)
    monkeypatch.setattr(gpu, "TILE", 16)


def sample(logits: torch.Tensor, rows: dict[str, torch.Tensor]) -> torch.Tensor:
    batch = logits.shape[0]
    scratch = gpu.sample_scratch(batch + 1, logits.shape[1], DEVICE, nucleus=True)
    out = torch.full((batch,), -7, device=DEVICE)
    gpu.sample_tokens(logits, out=out, scratch=scratch, **rows)
    return out


def rows(batch: int, seed: int, **values: float) -> dict[str, torch.Tensor]:
    """Seeds and positions of a batch; one temperature and top_p unless tensors replace them."""
    stream = torch.Generator().manual_seed(seed)
    return {
        "position": torch.randint(0, 2**31 - 1, (batch,), generator=stream).int().to(DEVICE),
        "seed": torch.randint(0, 2**63 - 1, (batch,), generator=stream).to(DEVICE),
        "temperature": torch.full((batch,), values.get("temperature", 1.0), device=DEVICE),
        "top_p": torch.full((batch,), values.get("top_p", 1.0), device=DEVICE),
    }


@settings(max_examples=10)
@given(
    seed=st.integers(0, 2**31), vocab=st.sampled_from([1, 15, 16, 17, VOCAB]), coarse=st.booleans(),
    holes=st.sampled_from([0.0, 0.3, 1.0]),
)  # fmt: skip
def test_greedy_takes_the_largest_and_of_equals_the_first(
    seed: int, vocab: int, *, coarse: bool, holes: float
) -> None:
    stream = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, vocab + 2, generator=stream)
    logits = logits.round() if coarse else logits
    logits[torch.rand(logits.shape, generator=stream) < holes] = torch.nan
    logits = logits.to(DEVICE)[:, :vocab]
    out = torch.empty(3, dtype=torch.int64, device=DEVICE)
    gpu.greedy(logits, out, gpu.sample_scratch(4, vocab, DEVICE, nucleus=False))
    assert out.tolist() == reference.greedy(logits.cpu()).tolist()


def test_greedy_holds_minus_zero_and_zero_equal_and_takes_infinity() -> None:
    logits = torch.full((3, VOCAB), -1.0, device=DEVICE)
    logits[0, 3], logits[0, 40] = -0.0, 0.0
    logits[1, 50] = torch.inf
    logits[2] = -torch.inf
    out = torch.empty(3, dtype=torch.int64, device=DEVICE)
    gpu.greedy(logits, out, gpu.sample_scratch(3, VOCAB, DEVICE, nucleus=False))
    assert out.tolist() == [3, 50, 0]


@settings(max_examples=10)
@given(
    seed=st.integers(0, 2**31), coarse=st.booleans(), top_p=st.sampled_from([1e-6, 0.3, 0.9, 1.0]),
    temperature=st.sampled_from([0.0, 1e-30, 0.5, 1.0, 8.0]),
)  # fmt: skip
def test_sampling_takes_what_the_reference_takes_of_the_same_draw(
    seed: int, *, coarse: bool, top_p: float, temperature: float
) -> None:
    logits = 2 * torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    logits = logits.round() if coarse else logits
    asked = rows(4, seed, temperature=temperature, top_p=top_p)
    got = sample(logits, asked).cpu()
    both = zip(asked["seed"].tolist(), asked["position"].tolist(), strict=True)
    draw = torch.tensor([reference.draw(*one) for one in both])
    options = (asked["temperature"].cpu(), asked["top_p"].cpu())
    # Float32 sums: near the edge between two tokens either is right.
    near = [reference.nucleus(logits.cpu(), draw * (1 + shift), *options) for shift in (0, -1e-5, 1e-5)]
    assert all(token in {int(one[row]) for one in near} for row, token in enumerate(got.tolist()))


def test_a_row_samples_the_same_in_any_batch_and_any_place() -> None:
    logits, asked = torch.randn(5, VOCAB, device=DEVICE), rows(5, 11)
    together = sample(logits, asked)
    order = torch.tensor([3, 0, 4], device=DEVICE)
    assert together[order].tolist() == sample(logits[order], {k: v[order] for k, v in asked.items()}).tolist()
    assert together[2:3].tolist() == sample(logits[2:3], {k: v[2:3] for k, v in asked.items()}).tolist()


def test_draws_are_spread_evenly_over_positions_and_over_seeds() -> None:
    for drawn in ([reference.draw(2**40, p) for p in range(4096)], [reference.draw(s << 20, 7) for s in range(4096)]):
        assert 0 <= min(drawn) < max(drawn) < 1
        found = torch.histc(torch.tensor(drawn), bins=8, min=0, max=1)
        assert float(((found - 512) ** 2 / 512).sum()) < 24  # chi-squared of 7 degrees: one in a thousand


def test_an_inactive_place_and_a_cold_row_take_the_greedy_token() -> None:
    logits, asked = torch.randn(2, VOCAB, device=DEVICE), rows(2, 3, temperature=50.0)
    asked["position"][0], asked["temperature"][1] = -1, 0.0
    assert sample(logits, asked).tolist() == logits.argmax(1).tolist()


def test_scratch_for_greedy_alone_is_refused_for_sampling() -> None:
    logits = torch.zeros(1, VOCAB, device=DEVICE)
    scratch = gpu.sample_scratch(1, VOCAB, DEVICE, nucleus=False)
    with pytest.raises(ConfigError, match="made for greedy alone"):
        gpu.sample_tokens(logits, out=torch.zeros(1, dtype=torch.int64, device=DEVICE), scratch=scratch, **rows(1, 0))
    assert gpu.grid(16, 33) == (16, 3)

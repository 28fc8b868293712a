"""One copy for all layers: what a copy of each layer's list moves, told layer by layer."""

from __future__ import annotations

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparda_core.errors import ConfigError
from tests.gpu_env import DEVICE, DTYPES

# isort: split
from sparda_core.kernels.gather.gpu import gather_blocks
from sparda_core.kernels.gather.gpu_layers import await_layer, copy_layers
from sparda_core.kernels.quantise.reference import quantise_blocks
from sparda_core.kernels.tables import ARRIVED, COUNT, DONE, SIGNALS, LayerLists
from tests.gpu.attend.cases import NAN, generator

ON_GPU = DEVICE.type == "cuda"
PROGRAMS, MOST, SLOTS = 3, 8, 11


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.pin_memory() if ON_GPU else tensor


def lists_of(seed: int, blocks: int, counts: list[int], shape: tuple[int, ...], dtype: torch.dtype) -> LayerLists:
    """Whole lists of random ids; those behind a count are addresses of nothing."""
    stream, layers = generator(seed), len(counts)
    source, target = torch.full((layers, MOST), 2**30), torch.full((layers, MOST), -(2**30))
    signals = torch.zeros(layers, SIGNALS, dtype=torch.int32)
    for layer, count in enumerate(counts):
        source[layer, :count] = torch.randint(0, blocks, (count,), generator=stream)
        target[layer, :count] = torch.randperm(SLOTS, generator=stream)[:count]
        signals[layer, COUNT], signals[layer, ARRIVED] = count, PROGRAMS
    return LayerLists(
        target=torch.full((layers, SLOTS, 2, *shape), NAN, dtype=dtype, device=DEVICE),
        source_ids=source.int().to(DEVICE), target_ids=target.int().to(DEVICE), signals=signals.to(DEVICE),
    )  # fmt: skip


def one_by_one(source: torch.Tensor, lists: LayerLists, scales: torch.Tensor | None = None) -> torch.Tensor:
    """What `gather_blocks` makes of each layer's list."""
    want = lists.target.clone()
    for layer, target in enumerate(want):
        count = lists.signals[layer, COUNT : COUNT + 1]
        gather_blocks(source, target, lists.source_ids[layer], lists.target_ids[layer], count, scales=scales)
    return want


def same_bits(got: torch.Tensor, want: torch.Tensor) -> bool:
    return torch.equal(got.view(torch.uint8), want.view(torch.uint8))


@given(
    seed=st.integers(0, 2**31), counts=st.lists(st.integers(0, MOST), min_size=1, max_size=4),
    ctas=st.sampled_from([1, 2, 3]), in_flight=st.sampled_from([1, 8, 128]), dtype=st.sampled_from(DTYPES),
)  # fmt: skip
@settings(deadline=None, max_examples=25 if ON_GPU else 8)
def test_every_layers_list_arrives_in_its_own_slots_and_says_so(
    seed: int, counts: list[int], ctas: int, in_flight: int, dtype: torch.dtype
) -> None:
    source = _pinned(torch.randn(5, 2, 16, 36, generator=generator(seed)).to(dtype))
    lists = lists_of(seed, 5, counts, (16, 36), dtype)
    want = one_by_one(source, lists)
    copy_layers(source, lists, programs=PROGRAMS, ctas=ctas, in_flight_bytes=in_flight * 1024)
    for layer in range(len(counts)):
        await_layer(lists, layer, ctas=ctas)
    assert same_bits(lists.target, want)
    assert lists.signals[:, DONE].tolist() == [ctas] * len(counts)


@pytest.mark.parametrize("dtype", DTYPES)
def test_float8_blocks_are_widened_as_in_a_copy_of_one_layer(dtype: torch.dtype) -> None:
    codes, scales = quantise_blocks(torch.randn(5, 2, 16, 36, generator=generator(1)))
    lists, codes, scales = lists_of(1, 5, [3, 0, 5], (16, 36), dtype), _pinned(codes), scales.to(DEVICE)
    want = one_by_one(codes, lists, scales)
    copy_layers(codes, lists, programs=PROGRAMS, scales=scales, in_flight_bytes=4096)
    assert same_bits(lists.target, want)


def test_a_kernel_is_loaded_without_anything_being_copied_or_told() -> None:
    source, lists = _pinned(torch.zeros(5, 2, 16, 32)), lists_of(2, 5, [3, 4], (16, 32), torch.float32)
    copy_layers(source, lists, programs=PROGRAMS, layers=0)
    await_layer(lists, 1, ctas=0)
    assert lists.target.isnan().all()
    assert lists.signals[:, DONE].tolist() == [0, 0]


def test_lists_that_do_not_fit_each_other_are_refused() -> None:
    source, lists = _pinned(torch.zeros(5, 2, 16, 32)), lists_of(2, 5, [3, 4], (16, 32), torch.float32)
    with pytest.raises(ConfigError, match="signals"):
        copy_layers(source, attrs.evolve(lists, signals=lists.signals[:1]), programs=1)
    with pytest.raises(ConfigError, match="target must be contiguous"):
        copy_layers(source, attrs.evolve(lists, target=lists.target[:, ::2]), programs=1)
    with pytest.raises(ConfigError, match="one dtype"):
        copy_layers(source.half(), lists, programs=1)
    with pytest.raises(ConfigError, match="ctas=0"):
        copy_layers(source, lists, programs=1, ctas=0)


@pytest.mark.gpu
def test_more_thread_blocks_than_can_all_wait_at_once_are_refused() -> None:
    source, lists = _pinned(torch.zeros(5, 2, 16, 32)), lists_of(2, 5, [3, 4], (16, 32), torch.float32)
    with pytest.raises(ConfigError, match="copy_launch='layer'"):
        copy_layers(source, lists, programs=1, ctas=1024)


@pytest.mark.gpu
def test_a_copy_that_runs_first_waits_for_every_program_and_is_waited_for() -> None:
    """In one graph: the copy begins, then each layer's list is completed late, program by program."""
    source = _pinned(torch.randn(64, 2, 16, 32, generator=generator(3)))
    lists = lists_of(3, 64, [5, 8, 0, 7], (16, 32), torch.float32)
    want, counts = one_by_one(source, lists), lists.signals[:, COUNT].clone()
    seen = torch.full_like(lists.target, NAN)
    copy_layers(source, lists, programs=PROGRAMS, layers=0)
    await_layer(lists, 0, ctas=0)
    # A capture had better load nothing.
    lists.signals[0, :1].add_(0 * lists.signals[0, :1]).copy_(counts[:1])
    seen[0].copy_(lists.target[0])
    lists.signals.zero_()
    lists.target.fill_(NAN)
    torch.cuda._sleep(1)  # type: ignore[no-untyped-call]
    one, side = torch.ones(1, dtype=torch.int32, device=DEVICE), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        lists.signals.zero_()
        lists.target.fill_(NAN)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            copy_layers(source, lists, programs=PROGRAMS)
        for layer in range(4):
            torch.cuda._sleep(100_000)  # type: ignore[no-untyped-call]
            lists.signals[layer, COUNT : COUNT + 1].copy_(counts[layer : layer + 1])
            for _ in range(PROGRAMS):
                lists.signals[layer, ARRIVED : ARRIVED + 1].add_(one)
            await_layer(lists, layer, ctas=2)
            seen[layer].copy_(lists.target[layer])
        torch.cuda.current_stream().wait_stream(side)
    for _ in range(20):
        seen.fill_(0)
        graph.replay()
        torch.cuda.synchronize()
        assert same_bits(seen, want)

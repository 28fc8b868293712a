"""Attention and copies captured once and replayed: what they do follows the device's memory, not the capture."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from sparda_core.kernels.attend.reference import attend_blocks
from sparda_core.shapes import BlockSpec
from tests.gpu_env import DEVICE

# isort: split
from sparda_core.kernels.attend.gpu import attend_scratch, attend_slots
from sparda_core.kernels.attend.splitting import Tuning
from sparda_core.kernels.gather.gpu import gather_blocks
from tests.gpu.attend.cases import NAN, TOLERANCE, relative_error

pytestmark = pytest.mark.gpu
SPEC = BlockSpec(block=64, window=32, stride=16, sink=1, local=2, budget=24)
HEADS, GROUP, WIDTH, ROWS = 2, 16, 128, 5


def _state() -> dict[str, torch.Tensor]:
    """Everything that a replay may find changed."""
    pairs = ROWS * HEADS
    return {
        "q": torch.empty(ROWS, HEADS * GROUP, WIDTH, device=DEVICE, dtype=torch.bfloat16),
        "array": torch.empty(pairs * SPEC.budget, 2, SPEC.block, WIDTH, device=DEVICE, dtype=torch.bfloat16),
        "physical": torch.zeros(ROWS, HEADS, SPEC.budget, device=DEVICE, dtype=torch.int32),
        "counts": torch.zeros(ROWS, HEADS, device=DEVICE, dtype=torch.int32),
        "position": torch.zeros(ROWS, device=DEVICE, dtype=torch.int32),
        "out": torch.empty(ROWS, HEADS * GROUP, WIDTH, device=DEVICE, dtype=torch.bfloat16),
    }


def _shuffle(state: dict[str, torch.Tensor], seed: int) -> None:
    """New rows, lists and lengths, some inactive, in the same memory."""
    torch.manual_seed(seed)
    state["q"].normal_()
    state["array"].normal_()
    places = torch.randperm(state["array"].shape[0], device=DEVICE).view(ROWS, HEADS, -1)
    state["physical"].copy_(places)
    state["counts"].copy_(torch.randint(1, SPEC.budget + 1, (ROWS, HEADS), device=DEVICE))
    state["position"].copy_(torch.randint(-1, 5000, (ROWS,), device=DEVICE))
    state["out"].fill_(NAN)


def _expected(state: dict[str, torch.Tensor]) -> torch.Tensor:
    at = {name: tensor.cpu() for name, tensor in state.items()}
    order = torch.arange(SPEC.budget)
    last = at["counts"][..., None] - 1
    shown = torch.where(order == last, at["position"][:, None, None] % SPEC.block + 1, SPEC.block)
    shown = torch.where((order <= last) & (at["position"] >= 0)[:, None, None], shown, 0)
    return attend_blocks(
        at["q"].double()[:, :, None], at["array"].double(), at["physical"].long()[:, :, None], shown.int()[:, :, None]
    )[:, :, 0]


def _captured(step: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """A graph of what `step` launches, which has run once before: kernels are compiled then."""
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


@pytest.mark.parametrize(("splits", "fused_up_to"), [(1, 8), (6, 8), (6, 1), (24, 1), (None, 8)])
def test_a_replay_attends_to_what_is_there_then(splits: int | None, fused_up_to: int) -> None:
    state = _state()
    scratch = attend_scratch(
        places=ROWS, q_heads=HEADS * GROUP, kv_heads=HEADS, head_dim=WIDTH, blocks=SPEC.budget, block=SPEC.block,
        dtype=torch.bfloat16, device=DEVICE, tuning=Tuning(splits=splits, fused_up_to=fused_up_to),
    )  # fmt: skip

    def step() -> None:
        attend_slots(
            state["q"], state["array"], state["physical"], state["counts"], state["position"], SPEC, state["out"],
            scratch,
        )  # fmt: skip

    _shuffle(state, 0)
    graph = _captured(step)
    for seed in range(1, 6):
        _shuffle(state, seed)
        graph.replay()
        assert relative_error(state["out"], _expected(state)) < TOLERANCE[torch.bfloat16]
        first = state["out"].clone()
        for _ in range(50):  # whoever adds the pieces up, and whenever they arrive
            graph.replay()
            assert torch.equal(state["out"], first)


def test_a_replayed_copy_follows_list_and_count_and_sees_new_host_values() -> None:
    source = torch.empty(64, 2, 64, 128, dtype=torch.bfloat16).pin_memory()
    target = torch.empty(32, 2, 64, 128, dtype=torch.bfloat16, device=DEVICE)
    source_ids, target_ids = (torch.zeros(32, dtype=torch.int32, device=DEVICE) for _ in range(2))
    count = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    graph = _captured(lambda: gather_blocks(source, target, source_ids, target_ids, count))
    for listed in (32, 7, 1, 0, 19):
        source.copy_(torch.randn(source.shape))
        target.fill_(NAN)
        source_ids.copy_(torch.randint(0, 64, (32,)))
        target_ids.copy_(torch.randperm(32))
        count.fill_(listed)
        want = target.cpu()
        want[target_ids[:listed].cpu().long()] = source[source_ids[:listed].cpu().long()]
        graph.replay()
        assert torch.equal(target.cpu().view(torch.int16), want.view(torch.int16))


@pytest.mark.skipif(
    DEVICE.type == "cuda" and torch.cuda.get_device_capability() < (9, 0), reason="no early launches on this GPU"
)
@pytest.mark.parametrize("splits", [1, 6, 24])
def test_an_early_start_waits_for_what_the_kernel_ahead_writes(splits: int) -> None:
    state = _state()
    scratch = attend_scratch(
        places=ROWS, q_heads=HEADS * GROUP, kv_heads=HEADS, head_dim=WIDTH, blocks=SPEC.budget, block=SPEC.block,
        dtype=torch.bfloat16, device=DEVICE, tuning=Tuning(splits=splits),
    )  # fmt: skip
    lists = torch.zeros_like(state["physical"])

    def step() -> None:
        torch.add(state["physical"], 0, out=lists)  # a launch just ahead, whose result attention reads
        attend_slots(
            state["q"], state["array"], lists, state["counts"], state["position"], SPEC, state["out"], scratch, early=1
        )
        torch.mul(lists, 0, out=lists)

    _shuffle(state, 0)
    graph = _captured(step)
    for seed in range(1, 20):
        _shuffle(state, seed)
        graph.replay()
        assert relative_error(state["out"], _expected(state)) < TOLERANCE[torch.bfloat16]

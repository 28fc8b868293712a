"""Selection and top-k: the kinds of fault that others met, and what happens here (docs/cases.md, A)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch

from sparda_core.shapes import BlockSpec, ModelShape
from tests.gpu_env import DEVICE

# isort: split
from sparda_core.errors import ConfigError, UnknownNameError, WeightsError
from sparda_core.kernels.topk.cpu import choose_blocks as choose_on_cpu
from sparda_core.kernels.topk.gpu import choose_blocks as choose_on_gpu
from sparda_core.kernels.topk.reference import choose_blocks as choose_reference
from sparda_core.testing.dense_row import DenseRow
from tests.agreement.worlds import MODEL, SHAPE, SPEC, TOKENS, pair
from tests.gpu.attend.cases import TOLERANCE, make_rows, relative_error
from tests.gpu.attend.test_attend_gpu import _by_slots
from tests.gpu.select.cases import INF, NAN, empty_choice, strided

SMALL = BlockSpec(block=16, window=8, stride=8, sink=1, local=1, budget=6)
#: Room for more than 1,024 of them, where a kernel elsewhere gave up.
LARGE = BlockSpec(block=16, window=8, stride=8, sink=1, local=1, budget=1300)
PAIRS = [
    ("forecast", "resident"), ("forecast", "offload-prefetch"), ("query", "offload-sync"),
    ("infinigen", "offload-prefetch"), ("window", "offload-prefetch"),
]  # fmt: skip

Choose = Callable[[torch.Tensor, torch.Tensor, BlockSpec], torch.Tensor]


def _gpu(scores: torch.Tensor, position: torch.Tensor, spec: BlockSpec) -> torch.Tensor:
    """The kernel, into an output that holds something else before: what it does not write would show."""
    choice = empty_choice(scores.shape[0], scores.shape[1], spec.budget)
    choose_on_gpu(strided(scores), position.to(DEVICE, torch.int32), spec, choice)
    assert torch.equal(choice.counts.cpu(), (choice.blocks >= 0).sum(-1).cpu().int())
    return choice.blocks.cpu()


WAYS: dict[str, Choose] = {
    "reference": lambda s, p, spec: choose_reference(s[:, :, None], p[:, None], spec)[:, :, 0],
    "cpu": lambda s, p, spec: choose_on_cpu(s[:, :, None], p[:, None], spec)[:, :, 0],
    "gpu": _gpu,
}  # fmt: skip


def wanted(scores: torch.Tensor, position: int, spec: BlockSpec) -> list[int]:
    """By the words of the policy: forced blocks, then the highest scores, NaN as -inf, ties to the lower id."""
    blocks = position // spec.block + 1 if position >= 0 else 0
    forced = set(spec.forced_blocks(position)) if blocks else set()
    value = [-INF if math.isnan(score) else score for score in scores.tolist()]
    free = sorted(set(range(blocks)) - forced, key=lambda block: (-value[block], block))
    taken = sorted([*forced, *free[: spec.budget - len(forced)]])
    return taken + [-1] * (spec.budget - len(taken))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("blocks", [0, 1, 2, 3, 5, 6, 7])
def test_a_budget_beyond_the_blocks_lists_every_block_and_then_minus_one(way: str, blocks: int) -> None:
    scores, position = torch.randn(1, 2, max(1, blocks)), 16 * blocks - 1
    chosen = WAYS[way](scores, torch.tensor([position]), SMALL)
    assert chosen[0].tolist() == [wanted(head, position, SMALL) for head in scores[0]]
    if blocks <= SMALL.budget:
        assert chosen[0, 0].tolist() == [*range(blocks), *[-1] * (SMALL.budget - blocks)]


def _scores(kind: str, blocks: int) -> torch.Tensor:
    scores = torch.zeros(blocks)
    if kind == "mostly zeros":
        scores[::97] = torch.rand(len(scores[::97]))
    elif kind == "infinite":
        scores[::3], scores[1::3] = INF, -INF
    elif kind == "one NaN":
        scores[blocks // 2] = NAN
    elif kind != "equal":
        scores[:] = {"all NaN": NAN, "all inf": INF, "all -inf": -INF}[kind]
    return scores


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["equal", "mostly zeros", "infinite", "one NaN", "all NaN", "all inf", "all -inf"])
@pytest.mark.parametrize(("spec", "blocks"), [(SMALL, 40), (LARGE, 1500)], ids=["5 of 40", "1300 of 1500"])
def test_ties_nan_and_infinities_by_the_thousand_fill_every_place_with_a_block(
    way: str, kind: str, spec: BlockSpec, blocks: int
) -> None:
    scores = _scores(kind, blocks)
    chosen = WAYS[way](scores[None, None], torch.tensor([16 * blocks - 1]), spec)
    assert chosen[0, 0].tolist() == wanted(scores, 16 * blocks - 1, spec)
    assert (chosen >= 0).all()


@pytest.mark.parametrize("way", ["cpu", "gpu"])
def test_a_million_tokens_are_chosen_from(way: str) -> None:
    spec = BlockSpec(block=64, sink=1, local=32, budget=96)
    scores = torch.randn(1, 1, 2**20 // 64, generator=torch.Generator().manual_seed(3))
    chosen = WAYS[way](scores, torch.tensor([2**20 - 1]), spec)
    assert chosen[0, 0].tolist() == wanted(scores[0, 0], 2**20 - 1, spec)


@pytest.mark.parametrize(("heads", "group"), [(1, 16), (2, 7), (3, 5), (5, 3), (6, 1), (6, 4), (1, 12)])
def test_any_number_of_heads_and_any_group_attends_to_its_own_blocks(heads: int, group: int) -> None:
    spec = BlockSpec(block=16, window=8, stride=4, sink=1, local=1, budget=4)
    rows = make_rows(heads, [70, 15], spec=spec, heads=heads, group=group, width=32, dtype=torch.float32)
    assert relative_error(_by_slots(rows), rows.expected()) < TOLERANCE[torch.float32]


@pytest.mark.parametrize(("q_heads", "kv_heads"), [(7, 2), (3, 2), (1, 2), (16, 3)])
def test_query_heads_that_kv_heads_do_not_divide_are_refused_by_name(q_heads: int, kv_heads: int) -> None:
    with pytest.raises(ConfigError, match=rf"q_heads={q_heads}.*kv_heads={kv_heads}"):
        ModelShape(
            name="odd", layers=1, hidden=8, ffn=8, q_heads=q_heads, kv_heads=kv_heads, head_dim=8, vocab=9, context=9
        )  # fmt: skip


def together_and_alone(selector: str, runtime: str, lengths: Sequence[int], steps: int = 3) -> None:
    """Rows of one batch answer as each of them does in a session of its own."""
    with pair(selector, runtime).open_cpu() as session:
        rows = [session.add() for _ in lengths]
        for row, length in zip(rows, lengths, strict=True):
            session.prefill(row, TOKENS[row : row + length])
        batch = [session.decode(dict.fromkeys(rows, step)).logits for step in range(steps)]
    for at, length in enumerate(lengths):
        with pair(selector, runtime).open_cpu() as session:
            row = session.add()
            session.prefill(row, TOKENS[at : at + length])
            for step in range(steps):
                torch.testing.assert_close(session.decode({row: step}).logits[0], batch[step][at])


@pytest.mark.parametrize(("selector", "runtime"), PAIRS)
@pytest.mark.parametrize("lengths", [(31, 90, 64), (1, 95)], ids=str)
def test_rows_of_a_batch_answer_as_they_do_alone_whatever_their_lengths(
    selector: str, runtime: str, lengths: tuple[int, ...]
) -> None:
    together_and_alone(selector, runtime, lengths)


@pytest.mark.parametrize(("selector", "runtime"), PAIRS)
@pytest.mark.parametrize("width", [SPEC.window, SPEC.block, SPEC.block * (SPEC.local + 1)])
def test_rows_shorter_than_a_window_answer_as_the_dense_model_does(selector: str, runtime: str, width: int) -> None:
    """One batch of 1, width - 1, width and width + 1 tokens; the budget holds all that there is."""
    lengths = (1, width - 1, width, width + 1)
    with pair(selector, runtime).open_cpu() as session:
        rows = {session.add(): length for length in lengths}
        dense = {row: DenseRow(MODEL.decoder, SPEC.block) for row in rows}
        for row, length in rows.items():
            session.prefill(row, TOKENS[row : row + length])
            dense[row].append(TOKENS[row : row + length], [None] * SHAPE.layers)
        for token in range(4):
            got = session.decode(dict.fromkeys(rows, token)).logits
            for at, row in enumerate(rows):
                torch.testing.assert_close(got[at], dense[row].append([token], [None] * SHAPE.layers))


@pytest.mark.parametrize(
    ("selector", "options", "says"),
    [
        ("forecast", {}, "Forecast"), ("nosa", {"select_blocks": 2}, "bias"),
        ("nosa-forecast", {"select_blocks": 2}, "bias"),
        ("infinigen", {"channels": 99}, "channels=99"), ("forecasts", {}, "did you mean 'forecast'"),
    ],
)  # fmt: skip
def test_a_model_that_lacks_what_a_method_needs_is_refused_before_a_step_and_by_name(
    selector: str, options: dict[str, object], says: str
) -> None:
    from sparda_core.compose import compose
    from sparda_core.models.tiny import tiny_model

    plain = tiny_model(SHAPE, seed=1, dtype=torch.float64, forecast=False)
    with pytest.raises((ConfigError, WeightsError, UnknownNameError), match=says):
        compose(plain, selector, "resident", spec=SPEC, selector_options=options).open_cpu()

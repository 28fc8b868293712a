"""Work against what the kernels really read, write and multiply, counted from their own inputs."""

from __future__ import annotations

import ast
import itertools
import subprocess
import sys
from pathlib import Path

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import PlanError
from sparda_core.facts import StepFacts, steady_facts
from sparda_core.kernels.compress.cpu import compress
from sparda_core.kernels.sample.work import greedy_work
from sparda_core.kernels.score_forecast.work import work as forecast_work
from sparda_core.kernels.score_proxy.work import work as proxy_work
from sparda_core.kernels.score_query.work import work as query_work
from sparda_core.kernels.topk.choose import choose_blocks
from sparda_core.kernels.topk.work import work as topk_work
from sparda_core.kernels.visible import visible_entries
from sparda_core.kernels.work_table import WORK, work_of
from sparda_core.plan import Kind, Op, Phase
from sparda_core.policy import POLICIES
from sparda_core.selector import BoundSelector, Selector
from sparda_core.shapes import SHAPES, BlockSpec, ModelShape
from sparda_core.work import Work, WorkContext

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "sparda_core/kernels"
SHAPE = ModelShape(
    name="test", layers=3, hidden=48, ffn=100, q_heads=6, kv_heads=2, head_dim=32, vocab=77, context=4096
)
CONTEXT = WorkContext(
    shape=SHAPE, spec=BlockSpec(), weight_bytes=2, kv_bytes=4, host_kv_bytes=3, entry_bytes=5, activation_bytes=7
)


@attrs.frozen(kw_only=True)
class _Declares(Selector):
    """Declares one kind, with a work that no kernel has."""

    name = "declares"
    kind: str = "score"

    def operations(self, target: int, phase: Phase, lead: int) -> tuple[str, ...]:
        return (self.kind,)

    def work(self, op: Op, facts: StepFacts, context: WorkContext) -> Work:
        return Work(flops=-1.0)

    def bind(self, *, shape: ModelShape, spec: BlockSpec) -> BoundSelector:
        raise NotImplementedError


def _facts(
    lengths: list[int], *, new_tokens: int = 1, slots: int = 0, misses: int = 0, dense: bool = False
) -> StepFacts:
    """Facts of rows that chose as many blocks as the budget and their length allow."""
    chosen = np.zeros((SHAPE.layers, len(lengths), SHAPE.kv_heads), np.int64)
    for row, length in enumerate(lengths):
        positions = range(length - new_tokens, length) if length else ()
        chosen[:, row] = 0 if dense else sum(min(CONTEXT.spec.budget, p // CONTEXT.spec.block + 1) for p in positions)
    none = np.zeros_like(chosen)
    return StepFacts(
        new_tokens=new_tokens, budget=CONTEXT.spec.budget, slots=slots, active=np.array(lengths) > 0,
        lengths=np.array(lengths), selected=chosen, misses=np.minimum(chosen, misses),
        opened=none, late=none, wasted=none,
    )  # fmt: skip


def _positions(facts: StepFacts) -> torch.Tensor:
    lengths = torch.from_numpy(facts.lengths[facts.active])
    return lengths[:, None] - facts.new_tokens + torch.arange(facts.new_tokens)


def _work(kind: str, facts: StepFacts, layer: int = 1, context: WorkContext = CONTEXT) -> Work:
    return work_of(Op(kind=kind, layer=layer), facts, context, _Declares())


row_lengths = st.lists(st.one_of(st.just(0), st.integers(9, 2000)), min_size=1, max_size=4)
chunks = st.sampled_from([1, 3, 8])


@given(lengths=row_lengths, new_tokens=chunks)
def test_attention_counts_the_tokens_that_a_real_selection_shows(lengths: list[int], new_tokens: int) -> None:
    facts = _facts(lengths, new_tokens=new_tokens)
    positions, spec = _positions(facts), CONTEXT.spec
    scores = torch.zeros(positions.shape[0], SHAPE.kv_heads, new_tokens, 40)
    chosen = choose_blocks(scores, positions, spec).long()
    shown = (positions[:, None, :, None] - chosen * spec.block + 1).clamp(0, spec.block) * (chosen >= 0)
    moved = 2 * positions.numel() * SHAPE.q_heads * SHAPE.head_dim
    work = _work(Kind.ATTEND, facts)
    assert work.flops == 4 * int(shown.sum()) * SHAPE.group * SHAPE.head_dim
    assert work.hbm_bytes - work.passed_bytes == 2 * int(shown.sum()) * SHAPE.head_dim * 4 + moved * 7
    # In decode lists are cut into pieces: tests/gpu/attend/test_work.py.
    queries = positions.numel() * SHAPE.kv_heads
    assert work.ctas == queries or (new_tokens == 1 and work.ctas > queries)
    pieces = work.ctas if work.ctas > queries else 0
    assert work.passed_bytes == 2 * 4 * pieces * SHAPE.group * (SHAPE.head_dim + 2)


@given(lengths=row_lengths, new_tokens=st.sampled_from([2, 8]))
def test_a_dense_chunk_counts_every_earlier_token(lengths: list[int], new_tokens: int) -> None:
    facts = _facts(lengths, new_tokens=new_tokens, dense=True)
    pairs = int((_positions(facts) + 1).sum())
    assert _work(Kind.ATTEND, facts).flops == 4 * pairs * SHAPE.q_heads * SHAPE.head_dim


@given(lengths=row_lengths, new_tokens=chunks, early=st.booleans())
def test_scoring_counts_the_entries_that_the_kernels_see(lengths: list[int], new_tokens: int, *, early: bool) -> None:
    facts, spec = _facts(lengths, new_tokens=new_tokens), CONTEXT.spec
    op = Op(kind="score", layer=1, source=0 if early else 1)
    positions = _positions(facts)
    known = torch.tensor([spec.entry_count(n - new_tokens * early) for n in lengths if n], dtype=torch.int64)
    seen = int(visible_entries(known, positions, spec, width=200).sum())
    forecast, query = forecast_work(op, facts, CONTEXT), query_work(op, facts, CONTEXT)
    assert forecast.flops == 2 * seen * SHAPE.kv_heads * SHAPE.head_dim
    passes = 2 if new_tokens > 1 else 1
    assert query.flops == passes * SHAPE.group * forecast.flops
    blocks = int((positions // spec.block + 1).sum())
    entry_bytes = int(known.sum()) * SHAPE.kv_heads * SHAPE.head_dim * 5
    query_bytes = positions.numel() * SHAPE.kv_heads * SHAPE.head_dim * 7
    assert forecast.hbm_bytes == entry_bytes + query_bytes + blocks * SHAPE.kv_heads * 4
    logits = 0 if new_tokens > 1 else 2 * 4 * seen * SHAPE.q_heads
    score_bytes = blocks * SHAPE.kv_heads * 4
    assert query.hbm_bytes == passes * entry_bytes + SHAPE.group * query_bytes + score_bytes + logits


def test_forecast_multiplies_a_32nd_of_what_the_querys_two_passes_do_with_16_heads_a_group() -> None:
    """In decode a kernel that keeps logits needs one pass: a 16th."""
    shape = SHAPES["minicpm4.1-8b"]
    facts = steady_facts(shape=shape, spec=BlockSpec(), batch=2, context=4000, churn=0.1)
    context = WorkContext(shape=shape, spec=BlockSpec())
    op = Op(kind="score", layer=1)
    assert 16 * forecast_work(op, facts, context).flops == query_work(op, facts, context).flops
    facts = attrs.evolve(facts, new_tokens=2)
    assert 32 * forecast_work(op, facts, context).flops == query_work(op, facts, context).flops


def test_proxy_scoring_reads_only_the_kept_channels_of_every_token() -> None:
    facts, op = _facts([100, 0, 300]), Op(kind="score", layer=1, source=0)
    whole, kept = proxy_work(op, facts, CONTEXT), proxy_work(op, facts, CONTEXT, channels=8)
    assert kept.flops * 4 == whole.flops
    assert kept.flops == 2 * 6 * 8 + 2 * (99 + 299) * 2 * 8
    assert kept.hbm_bytes == (99 + 299) * 2 * 8 * 5 + 2 * 6 * 8 * 7 + (2 + 5) * 2 * 4


@given(lengths=row_lengths, new_tokens=chunks)
def test_entries_count_the_windows_that_the_new_tokens_complete(lengths: list[int], new_tokens: int) -> None:
    def entries(tokens: int) -> int:
        return compress(torch.zeros(tokens, 1), window=32, stride=16).shape[0]

    fresh = sum(entries(length) - entries(length - new_tokens) for length in filter(None, lengths))
    work = _work(Kind.ENTRIES, _facts(lengths, new_tokens=new_tokens))
    assert work.hbm_bytes == fresh * SHAPE.kv_heads * SHAPE.head_dim * (CONTEXT.spec.window * 4 + 5)


def test_choosing_reads_each_block_score_once() -> None:
    work = topk_work(Op(kind="select", layer=1), _facts([64, 65]), CONTEXT)
    assert work.hbm_bytes == (1 + 2) * 2 * 4 + 2 * 2 * CONTEXT.spec.budget * 4


def test_a_fetch_moves_one_host_block_a_miss() -> None:
    facts = _facts([2000, 0, 900], slots=16, misses=3)
    work = _work(Kind.FETCH, facts)
    assert work.pieces == 3 * 2 * 2
    assert work.h2d_bytes == work.pieces * 2 * 64 * 32 * 3
    assert work.hbm_bytes == work.pieces * 2 * 64 * 32 * 4
    assert _work(Kind.FETCH, _facts([2000], slots=16)).h2d_bytes == 0


def test_staging_moves_every_block_that_holds_an_earlier_token() -> None:
    assert _work(Kind.STAGE, _facts([8], new_tokens=8)).h2d_bytes == 0
    assert _work(Kind.STAGE, _facts([72], new_tokens=8)).pieces == 1 * 2
    assert _work(Kind.STAGE, _facts([73], new_tokens=8)).pieces == 2 * 2


def test_append_writes_through_in_offloaded_layers_alone() -> None:
    token = 2 * SHAPE.kv_heads * SHAPE.head_dim
    resident = _work(Kind.APPEND, _facts([100, 200]))
    assert (resident.hbm_bytes, resident.d2h_bytes, resident.pieces) == (2 * token * (7 + 4), 0, 0)
    kept_first = attrs.evolve(CONTEXT, resident_layers=1)
    assert _work(Kind.APPEND, _facts([100, 200], slots=16), layer=0, context=kept_first) == resident
    through = _work(Kind.APPEND, _facts([100, 200], slots=16), context=kept_first)
    assert (through.hbm_bytes, through.d2h_bytes, through.pieces) == (resident.hbm_bytes, 2 * token * 3, 2 * 2 * 2)
    assert _work(Kind.APPEND, _facts([100], new_tokens=8, slots=16)).hbm_bytes == 8 * token * 7


@pytest.mark.parametrize(("layer", "heads"), [(0, 6 + 4 + 4), (1, 6 + 4 + 2), (2, 6 + 4)])
def test_a_forecast_adds_its_heads_to_the_projection_where_it_is_made(layer: int, heads: int) -> None:
    facts = _facts([10, 20])
    with_forecast = _work(Kind.PROJECT, facts, layer, attrs.evolve(CONTEXT, forecast=True))
    assert with_forecast.flops == 2 * 2 * 48 * heads * 32
    assert _work(Kind.PROJECT, facts, layer).flops == 2 * 2 * 48 * (6 + 4) * 32


def test_one_decode_step_reads_every_weight_of_the_model_once() -> None:
    context = attrs.evolve(CONTEXT, activation_bytes=0)
    facts = _facts([10, 0, 20])
    kinds = (Kind.PROJECT, Kind.OUTPUT, Kind.MLP)
    layers = sum(_work(k, facts, layer, context).hbm_bytes for layer in range(3) for k in kinds)
    head = work_of(Op(kind=Kind.HEAD), facts, context, _Declares())
    embed = work_of(Op(kind=Kind.EMBED), facts, context, _Declares())
    drawn = greedy_work(2, context)
    widened = 2 * SHAPE.vocab * 4
    assert layers + head.hbm_bytes - drawn.hbm_bytes - widened == 2 * (SHAPE.weights - SHAPE.vocab * SHAPE.hidden)
    assert embed.hbm_bytes == 2 * 2 * SHAPE.hidden
    assert head.flops - drawn.flops == 2 * 2 * SHAPE.hidden * SHAPE.vocab
    assert (head.launches, embed.launches) == (6, 2)
    wide = work_of(Op(kind=Kind.HEAD), facts, attrs.evolve(context, activation_bytes=4), _Declares())
    assert wide.launches == 5


@pytest.mark.parametrize(("lead", "layer", "launches"), [(0, 0, 0), (0, 1, 1), (1, 1, 0)])
def test_a_token_is_stored_by_the_kernel_that_rotates_it_where_its_slot_is_known(
    lead: int, layer: int, launches: int
) -> None:
    context = attrs.evolve(CONTEXT, resident_layers=1, lead=lead)
    facts = _facts([10, 20], slots=16)
    assert _work(Kind.APPEND, facts, layer, context).launches == launches
    assert _work(Kind.ENTRIES, facts, layer, context).launches == 0
    chunk = attrs.evolve(facts, new_tokens=4)
    assert [_work(kind, chunk, layer, context).launches for kind in (Kind.APPEND, Kind.ENTRIES)] == [1, 1]


def test_only_a_policy_that_keeps_more_than_the_last_selection_looks_for_victims() -> None:
    facts = _facts([500, 20], slots=48, misses=2)
    found = {name: _work(Kind.DIFF, facts, 1, attrs.evolve(CONTEXT, policy=name)).searched for name in POLICIES}
    assert found == {"last-selection": 0, "lru": 48, "score": 48}


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_of_a_plan_states_lawful_work_also_for_an_idle_batch(kind: Kind) -> None:
    whole_model = kind in (Kind.EMBED, Kind.HEAD)
    op = Op(kind=kind) if whole_model else Op(kind=kind, layer=1)
    for facts in (_facts([0, 0], slots=16), _facts([500, 0, 20], slots=16, misses=2)):
        work = work_of(op, facts, CONTEXT, _Declares())
        assert min(work.flops, work.hbm_bytes, work.h2d_bytes, work.d2h_bytes, work.pieces, work.ctas) >= 0
        assert work.launches >= 0
        assert work.launches or kind in (Kind.ENTRIES, Kind.APPEND)
    assert WORK.keys() == set(Kind)


def test_a_selector_speaks_for_the_kinds_it_declares() -> None:
    facts = _facts([10])
    assert work_of(Op(kind="score", layer=1), facts, CONTEXT, _Declares()).flops == -1
    assert work_of(Op(kind=Kind.ATTEND, layer=1), facts, CONTEXT, _Declares()).flops > 0
    with pytest.raises(PlanError, match="kind 'score', which neither selector 'declares' nor"):
        work_of(Op(kind="score", layer=1), facts, CONTEXT, _Declares(kind="other"))


def test_a_layer_outside_the_facts_is_refused() -> None:
    with pytest.raises(PlanError, match="is for layer 3; the facts cover 3 layers"):
        _work(Kind.ATTEND, _facts([10]), layer=3)


def test_work_loads_neither_torch_nor_numba() -> None:
    code = "import sys, sparda_core.kernels.work_table; sys.exit(bool({'torch', 'numba'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_every_operator_has_a_reference_beside_its_kernel_and_its_work() -> None:
    # What only keeps a device busy while others are measured, or reads its clock, is no operator; nor is what tells the
    # host of a list, whose price is `launch.cut_s`.
    others = ("__pycache__", "clock", "corunners", "tell")
    folders = [folder for folder in KERNELS.iterdir() if folder.is_dir() and folder.name not in others]
    assert len(folders) >= 12
    for folder in folders:
        names = {path.name for path in folder.glob("*.py")}
        assert "work.py" in names, folder
        # On a CPU torch has some of them; a GPU's are ours.
        assert folder.name == "linear" or ("reference.py" in names and {"cpu.py", "gpu.py"} & names), folder


def test_no_reference_imports_a_cpu_kernel() -> None:
    for path in KERNELS.glob("*/reference.py"):
        nodes = ast.walk(ast.parse(path.read_text()))
        modules = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        assert not [m for m, end in itertools.product(modules, (".cpu", ".jit")) if m.endswith(end)], path

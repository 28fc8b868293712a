from __future__ import annotations

from typing import Any

import attrs
import pytest

from sparda_core.compose import compose
from sparda_core.errors import ConfigError, UnknownNameError
from sparda_core.kernels.work_table import work_of
from sparda_core.plan import Kind, Op
from sparda_core.runtimes.copy_lane import CopyJob, CopyLane
from sparda_core.shapes import BlockSpec, ModelShape
from sparda_core.simulator.prefill_facts import prefill_facts
from sparda_core.work import Work, WorkContext
from tests.agreement.worlds import SHAPE, SPEC, TOKENS, pair
from tests.simulator.scenes import gpu

MADE = ModelShape(name="made", layers=3, hidden=8, ffn=16, q_heads=4, kv_heads=2, head_dim=4, vocab=32, context=4096)
CUT = BlockSpec(block=16, window=8, stride=4, sink=1, local=1, budget=4)
CONTEXT = WorkContext(shape=MADE, spec=CUT, resident_layers=1)
FORECAST = compose(MADE, "forecast", "offload-prefetch", spec=CUT, runtime_options={"engine": "uva"})


def works(kind: str, layer: int, **asked: Any) -> list[Work]:
    facts = prefill_facts(MADE, CUT, **asked)
    return [work_of(Op(kind=kind, layer=layer), chunk, CONTEXT, FORECAST.selector) for chunk in facts]


def test_chunks_cover_the_prompt_and_the_last_takes_what_is_left() -> None:
    facts = prefill_facts(MADE, CUT, tokens=70, chunk=32, batch=2, offset=10)
    assert [chunk.new_tokens for chunk in facts] == [32, 32, 6]
    assert [chunk.lengths.tolist() for chunk in facts] == [[42, 42], [74, 74], [80, 80]]
    assert not any(chunk.misses.any() for chunk in facts)


def test_staged_and_written_through_bytes_are_those_counted_by_hand() -> None:
    """A block: K and V, 16 tokens x 4 dimensions x 2 bytes = 256 bytes, for each of 2 KV heads and 3 rows."""
    staged = works(Kind.STAGE, 1, tokens=70, chunk=32, batch=3)
    assert [work.h2d_bytes for work in staged] == [0, 2 * 2 * 3 * 256, 4 * 2 * 3 * 256]
    written = works(Kind.APPEND, 1, tokens=70, chunk=32, batch=3)
    assert [work.d2h_bytes for work in written] == [tokens * 3 * 2 * 4 * 2 * 2 for tokens in (32, 32, 6)]
    assert all(work.d2h_bytes == 0 for work in works(Kind.APPEND, 0, tokens=70, chunk=32, batch=3))
    assert all(work.d2h_bytes == 0 for work in works(Kind.APPEND, 1, tokens=70, chunk=32, slots=0))


def test_queries_of_a_chunk_select_their_budget_or_what_there_is() -> None:
    facts = prefill_facts(MADE, CUT, tokens=80, chunk=40, mode="selector")
    assert [chunk.selected[0, 0, 0] for chunk in facts] == [16 * 1 + 16 * 2 + 8 * 3, 8 * 3 + 16 * 4 + 16 * 4]
    assert not any(chunk.selected.any() for chunk in prefill_facts(MADE, CUT, tokens=80, chunk=40))


@pytest.mark.parametrize("mode", ["dense", "selector"])
def test_within_the_budget_both_modes_do_the_arithmetic_of_one_pass(mode: str) -> None:
    """Each of 50 queries meets all before it, in 2 products, for 4 query heads of 4 dimensions."""
    for chunk in (50, 7, 1):
        attended = works(Kind.ATTEND, 1, tokens=50, chunk=chunk, mode=mode)
        assert sum(work.flops for work in attended) == 4 * 4 * 4 * (50 * 51 // 2)


@pytest.mark.parametrize(("mode", "chunk"), [("dense", 32), ("dense", 50), ("selector", 27)])
def test_a_real_session_stages_chunk_by_chunk_what_the_facts_say(
    mode: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[list[int]] = [[]]
    submit = CopyLane.submit

    def counted(lane: CopyLane, job: CopyJob) -> Any:
        jobs[-1].append(len(job.source_ids))
        return submit(lane, job)

    monkeypatch.setattr(CopyLane, "submit", counted)
    pairing = pair("forecast", "offload-prefetch")
    with pairing.open() as session:
        row = session.add()
        session.prefill(row, TOKENS, chunk=chunk, mode=mode, progress=lambda _: jobs.append([]))
    facts = prefill_facts(SHAPE, SPEC, tokens=len(TOKENS), chunk=chunk, mode=mode)
    context = WorkContext(shape=SHAPE, spec=SPEC, resident_layers=pairing.plan().resident_layers)
    assert len(facts) == len(jobs) - 1
    for blocks, met in zip(jobs, facts, strict=False):
        stages = [op for op in pairing.prefill_plan(mode) if op.kind == Kind.STAGE]
        moved = [work_of(op, met, context, pairing.selector).pieces for op in stages]
        assert [n for n in moved if n] == blocks


def test_a_predicted_prefill_takes_at_least_the_time_of_its_transfers() -> None:
    """1,024 tokens in chunks of 256: 16 + 32 + 48 earlier blocks of 256 bytes, 2 KV heads, 2 offloaded layers."""
    machine = gpu(link=1e6, hbm=1e13)
    got = FORECAST.predict_prefill(machine, tokens=1024, chunk=256)
    assert got.tokens == 256
    chunks = 4
    moved_s = (16 + 32 + 48) * 2 * 256 * 2 / 1e6
    written_s = 1024 * 2 * 2 * 4 * 2 * 2 / 1e6
    assert moved_s <= got.step_s * chunks <= moved_s + written_s + 1e-6
    assert got.tokens_per_s == pytest.approx(1024 / (got.step_s * chunks))


def test_a_resident_prefill_moves_nothing() -> None:
    pairing = compose(MADE, "forecast", "resident", spec=CUT, runtime_options={"engine": "uva"})
    slow, fast = (pairing.predict_prefill(gpu(link=link), tokens=200, chunk=64).step_s for link in (1e3, 1e9))
    assert slow == fast


def test_longer_chunks_stage_less() -> None:
    totals = [
        sum(work.h2d_bytes for work in works(Kind.STAGE, 1, tokens=1024, chunk=chunk)) for chunk in (64, 256, 1024)
    ]
    assert totals == sorted(totals, reverse=True)
    assert totals[-1] == 0


@pytest.mark.parametrize(
    ("asked", "kind", "told"),
    [
        ({"tokens": 0}, ConfigError, "tokens=0"),
        ({"chunk": 0}, ConfigError, "chunk=0"),
        ({"batch": 0}, ConfigError, "batch=0"),
        ({"offset": -1}, ConfigError, "offset=-1"),
        ({"mode": "densely"}, UnknownNameError, "did you mean 'dense'"),
        ({"tokens": 10**6, "chunk": 1}, ConfigError, "raise chunk"),
    ],
)
def test_prefills_that_mean_nothing_are_refused(asked: dict[str, Any], kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told):
        prefill_facts(MADE, CUT, **({"tokens": 100} | asked))


def test_the_shape_of_the_facts_is_that_of_the_model() -> None:
    (facts,) = prefill_facts(attrs.evolve(MADE, layers=5), CUT, tokens=9, batch=2)
    assert facts.selected.shape == (5, 2, 2)


@pytest.mark.parametrize(
    ("asked", "says"),
    [({"batch": 10**9}, "batch=1000000000 must be <= 16666666 for tokens=64"), ({"slots": -1}, "slots=-1 must be")],
)
def test_more_rows_than_memory_and_fewer_slots_than_none_are_refused(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        prefill_facts(MADE, CUT, tokens=64, **asked)

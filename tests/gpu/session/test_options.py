"""Engines, policies, float8, sampling, timelines: what a GPU session is told, and what it says of itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sparda_core.errors import CapacityError, ConfigError, UnknownNameError
from sparda_core.plan import Kind
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.runtimes.gpu.engines import ENGINES, make_engine, require_one_graph
from sparda_core.runtimes.gpu.options import CopySize, GpuOptions
from sparda_core.runtimes.gpu.session import GpuSession
from tests.gpu.session.worlds import SPEC, Pair, close, models, prompt
from tests.gpu_env import DEVICE


def opened(selector: str = "window", engine: str = "uva", **options: Any) -> GpuSession:
    chosen = {"places": 1, "tokens": 96, "page_blocks": 2, **options}
    return GpuSession(
        models()[1], runtime=RUNTIMES.make("offload-prefetch", engine=engine), selector=SELECTORS.make(selector),
        spec=SPEC, options=GpuOptions.of(**chosen),
    )  # fmt: skip


@pytest.mark.parametrize("engine", sorted(set(ENGINES) - {"uva"}))
def test_every_engine_moves_the_same_blocks(engine: str) -> None:
    """The CPU's session has an engine of its own; rows that are longer than the slots miss in every step."""
    with Pair("forecast", "offload-prefetch", places=1) as pair:
        pair.gpu.close()
        pair.gpu = GpuSession(
            models()[1], runtime=RUNTIMES.make("offload-prefetch", engine=engine), selector=SELECTORS.make("forecast"),
            spec=SPEC, options=GpuOptions.of(places=1, tokens=160, page_blocks=2),
        )  # fmt: skip
        pair.add(prompt(111))
        pair.steps(2)
        assert pair.gpu.last_facts().misses.sum() or pair.gpu.last_facts().opened.sum()


def test_an_engine_that_needs_the_list_on_the_host_refuses_one_graph_and_says_so() -> None:
    require_one_graph(make_engine("uva"))
    with pytest.raises(ConfigError, match=r"'copy-engine' cannot be captured as one graph.*graph segments"):
        require_one_graph(make_engine("copy-engine"))
    with pytest.raises(UnknownNameError, match="copy-engine"):
        make_engine("copy-engin")
    assert make_engine("thread").name == "uva"


def test_policy_score_drops_what_the_selection_ranks_last() -> None:
    options = {"policy": "score", "slots": SPEC.budget + 1}
    with Pair("forecast", "offload-prefetch", runtime_options=options, places=1) as pair:
        pair.add(prompt(95))
        pair.steps(3)


def test_the_copy_kernel_is_sized_by_rule_or_by_hand() -> None:
    assert GpuOptions().copy_size(64) == CopySize(ctas=2, in_flight_bytes=128 << 10)
    paper = GpuOptions(copy_rule="paper")
    assert [paper.copy_size(batch).ctas for batch in (1, 31, 32, 64)] == [16, 16, 32, 32]
    assert paper.copy_size(1).in_flight_bytes == 16 << 10
    assert GpuOptions(copy_rule="paper", copy_ctas=3).copy_size(64) == CopySize(ctas=3, in_flight_bytes=16 << 10)


@pytest.mark.parametrize(
    "options",
    [
        {"places": 0}, {"copy_rule": "best"}, {"host_dtype": "fp4"}, {"top_p": 0.0}, {"top_p": True},
        {"temperature": -1.0}, {"temperature": "hot"}, {"link": 2},
    ],
)  # fmt: skip
def test_options_that_mean_nothing_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        GpuOptions.of(**options)


def test_a_float8_host_copy_stays_near_and_moves_the_same_blocks() -> None:
    with opened("forecast") as exact, opened("forecast", host_dtype="fp8") as narrow:
        rows = [session.add() for session in (exact, narrow)]
        for session, row in zip((exact, narrow), rows, strict=True):
            session.prefill(row, prompt(63))
        for token in (5, 6):
            want, got = exact.decode({rows[0]: token}), narrow.decode({rows[1]: token})
            error = (got.logits - want.logits).norm() / want.logits.norm()
            assert 0 <= error < 0.05, error
        # The block that a step closed went to the host in float8 and comes back near to what it was.
        blocks = [session._machinery.tiers.read(0, 1, 0, 64) for session in (exact, narrow)]
        for before, after in zip(*blocks, strict=True):
            assert 0 < (after - before).norm() / before.norm() < 0.1


def test_only_an_engine_that_widens_takes_a_float8_host_copy() -> None:
    with pytest.raises(ConfigError, match=r"host_dtype='fp8'.*engine='uva'"):
        opened(engine="copy-engine", host_dtype="fp8")


def test_a_row_samples_the_same_tokens_in_any_company() -> None:
    """Same seed, same row: alone, and in the second place behind a greedy row."""
    drawn = []
    for company in (0, 1):
        with opened(places=company + 1) as session:
            for _ in range(company):
                session.prefill(session.add(), prompt(3, 9))
            row = session.add()
            session.set_sampling(row, temperature=0.9, top_p=0.8, seed=4)
            session.prefill(row, prompt(20))
            session.run(8 if DEVICE.type == "cuda" else 1)
            drawn.append(session.tokens()[row])
    assert drawn[0] == drawn[1]


def test_a_timeline_has_every_operation_of_the_plan() -> None:
    with opened("forecast", timeline=True) as session:
        row = session.add()
        session.prefill(row, prompt(40))
        timeline = session.decode({row: 1}).timeline
        assert timeline is not None
        assert {span.name for span in timeline.spans} == {op.name for op in session.plan}
        (attend,) = [span for span in timeline.spans if (span.kind, span.layer) == (Kind.ATTEND, 1)]
        (fetch,) = [span for span in timeline.spans if span.kind == Kind.FETCH]
        assert fetch.end_ns <= attend.start_ns


@pytest.mark.parametrize("runtime", ["offload-sync", "offload-prefetch"])
def test_late_blocks_are_counted_where_there_is_a_timeline(runtime: str) -> None:
    with Pair("forecast", runtime, places=1, timeline=True) as pair:
        pair.add(prompt(111))
        for token in (3, 4, 5):
            facts = pair.gpu.decode({0: token}).facts
            assert (facts.late <= facts.misses).all()
            if runtime == "offload-sync":  # every block is waited for
                assert (facts.late == facts.misses).all()
        assert pair.gpu.last_facts().late.sum() == 0  # without the timeline's help


def test_a_session_says_how_it_runs_and_what_it_takes() -> None:
    with opened("forecast", copy_rule="paper") as session:
        said = session.describe()
        assert said["engine"] == "uva"
        assert said["copy"] == "16 thread blocks, 16 KiB in flight each, SparDA's release"
        assert session.capacity.slots == SPEC.budget
        assert session.used_bytes["device"] > 0


def test_slots_come_from_a_memory_budget_and_what_cannot_fit_is_refused_with_the_numbers() -> None:
    with opened("forecast") as session:
        need = session.capacity.device_bytes
    with opened("forecast", gpu_memory_bytes=need + (1 << 16)) as session:
        assert session.capacity.slots >= SPEC.budget
        assert session.capacity.device_bytes <= need + (1 << 16)
    with pytest.raises(CapacityError, match=r"device memory .*reserved 2\.00.* beside weights and"):
        opened("forecast", gpu_memory_bytes=need // 100)


def test_a_device_that_is_full_is_told_in_our_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("sparda_core.runtimes.gpu.machinery.attend_scratch", full)
    with pytest.raises(CapacityError, match=r"tier='device' needs \d+ bytes .*; lower places, tokens or slots"):
        opened()


def test_a_budget_that_does_not_fit_leaves_the_session_as_it_was() -> None:
    with opened("window") as session:
        need = session.capacity.device_bytes
    with opened("window", gpu_memory_bytes=need) as session, opened("window") as other:
        rows = [one.add() for one in (session, other)]
        for one, row in zip((session, other), rows, strict=True):
            one.prefill(row, prompt(40))
        with pytest.raises(CapacityError, match="device memory"):
            session.set_budget(64)
        close(session.decode({rows[0]: 3}).logits, other.decode({rows[1]: 3}).logits)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="a graph is what a GPU does by itself")
def test_a_graph_without_a_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="graph=True needs a CUDA device"):
        opened(graph=True)


@pytest.mark.parametrize(("selector", "runtime"), [("oracle", "offload-sync"), ("dense", "offload-prefetch")])
def test_what_a_selector_cannot_do_is_refused_before_memory_is_taken(
    selector: str, runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparda_core.runtimes.gpu.machinery.GpuTiers", lambda *_, **__: pytest.fail("took memory"))
    with pytest.raises(ConfigError, match=r"no GPU half|every block"):
        GpuSession(
            models()[1], runtime=RUNTIMES.make(runtime), selector=SELECTORS.make(selector), spec=SPEC,
            options=GpuOptions(tokens=96),
        )  # fmt: skip


def test_dense_offloads_only_what_has_a_slot_for_every_block() -> None:
    with pytest.raises(ConfigError, match=r"budget=4 must be >= 6 for selector 'dense'"):
        opened("dense")

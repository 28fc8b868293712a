"""Bad calls are refused before anything changes; whatever interrupts a step, the rows are as they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from sparda_core.compose import compose
from sparda_core.errors import CapacityError, ConfigError, RowError, SpardaError
from sparda_core.models.tiny import tiny_model
from sparda_core.plan import Op
from sparda_core.runtimes.session import CpuSession
from tests.agreement.worlds import MODEL, SHAPE, SPEC, TOKENS, pair


class _Boom(BaseException):
    """Stands for an interrupt at an awkward moment."""


def expect_unharmed(session: CpuSession, row: int, spoil: Callable[[], Any], failure: type[BaseException]) -> None:
    """`spoil` fails, and afterwards the row answers as if it had never been tried."""
    twin = session.fork(row)
    length = session.length(row)
    with pytest.raises(failure):
        spoil()
    assert session.length(row) == length
    for token in TOKENS[:20]:
        logits = session.decode({row: token, twin: token}).logits
        torch.testing.assert_close(logits[0], logits[1])


@pytest.mark.parametrize("runtime", ["resident", "offload-sync", "offload-prefetch"])
@pytest.mark.parametrize("kind", ["project", "entries", "select", "append", "attend", "mlp", "head"])
@pytest.mark.parametrize("work", ["decode", "prefill"])
def test_an_interrupt_in_any_operation_leaves_the_row_as_it_was(
    runtime: str, kind: str, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pair("forecast", runtime).open() as session:
        row = session.add()
        session.prefill(row, TOKENS[:53])
        for token in TOKENS[53:64]:
            session.decode({row: token})
        steps = session._decode if work == "decode" else session._prefill
        mode = "selector" if kind == "select" else "dense"

        def spoil() -> None:
            def boom(op: Op, state: Any) -> None:
                if op.layer in (2, -1):
                    raise _Boom
                real(op, state)

            executor = session._executor if work == "decode" else session._prefill_executor(mode)
            found = [step for step in executor._steps if step.op.kind == kind]
            real = found[0].run
            for step in found:
                object.__setattr__(step, "run", boom)
            try:
                if work == "decode":
                    session.decode({row: 5})
                else:
                    session.prefill(row, TOKENS[:30], mode=mode, chunk=11)
            finally:
                for step in found:
                    object.__setattr__(step, "run", real)

        assert steps is not None
        expect_unharmed(session, row, spoil, _Boom)


def test_a_host_store_that_is_full_refuses_the_prompt_and_keeps_the_row() -> None:
    block_bytes = 2 * SPEC.block * SHAPE.head_dim * 8
    limit = block_bytes * 2 * SHAPE.kv_heads * (SHAPE.layers - 1) * 4
    with pair("forecast", "offload-prefetch", host_limit_bytes=limit).open() as session:
        row = session.add()
        session.prefill(row, TOKENS[:10])
        with pytest.raises(CapacityError, match="tier='host'"):
            session.prefill(row, TOKENS * 3)
        assert session.length(row) == 10
        session.decode({row: 1})


@pytest.mark.parametrize(
    ("call", "failure", "message"),
    [
        (lambda s, r: s.decode({}), ConfigError, "tokens is empty"),
        (lambda s, r: s.decode({r: 23}), ConfigError, r"ids between 0 and 22; got 23\.\.23"),
        (lambda s, r: s.decode({r: -1}), ConfigError, "ids between 0 and 22"),
        (lambda s, r: s.decode({99: 1}), RowError, "row=99 is not in this session"),
        (lambda s, r: s.prefill(r, []), ConfigError, "tokens is empty"),
        (lambda s, r: s.prefill(r, [1], chunk=0), ConfigError, "chunk=0 must be >= 1"),
        (lambda s, r: s.prefill(r, [1], mode="fast"), ConfigError, "mode='fast' is unknown; known: dense, selector"),
        (lambda s, r: s.crop(r, 11), ConfigError, "tokens=11 must be between 0 and the row's length 10"),
        (lambda s, r: s.crop(r, -1), ConfigError, "tokens=-1"),
        (lambda s, r: s.reorder([]), ConfigError, "must name every row once"),
        (lambda s, r: s.reorder([r, r]), ConfigError, "must name every row once"),
        (lambda s, r: s.set_budget(2), ConfigError, "budget=2 must be >= 3"),
        (lambda s, r: s.fork(7), RowError, "row=7"),
        (lambda s, r: s.retire(7), RowError, "row=7"),
    ],
)
def test_a_bad_call_is_one_clear_error(call: Callable[..., Any], failure: type[Exception], message: str) -> None:
    with pair("forecast", "offload-prefetch").open() as session:
        row = session.add()
        session.prefill(row, TOKENS[:10])
        with pytest.raises(failure, match=message):
            call(session, row)
        assert session.rows == (row,)
        assert session.length(row) == 10
        session.decode({row: 1})


def test_fixed_slots_bound_the_budget() -> None:
    with pair("forecast", "offload-prefetch", runtime_options={"slots": 6}).open() as session:
        with pytest.raises(ConfigError, match="slots=6 must be >= budget=7"):
            session.set_budget(7)
        session.set_budget(6)


def test_a_closed_session_says_so() -> None:
    session = pair("forecast", "offload-prefetch").open()
    row = session.add()
    session.close()
    session.close()
    for call in (session.add, lambda: session.decode({row: 1}), lambda: session.length(row)):
        with pytest.raises(SpardaError, match="session is closed"):
            call()


def test_missing_forecast_weights_say_how_to_train_or_what_to_choose() -> None:
    bare = tiny_model(SHAPE, seed=1, dtype=torch.float64, forecast=False)
    with pytest.raises(ConfigError, match=r"needs Forecast weights .* `sparda train`.* choose selector 'query'"):
        compose(bare, "forecast", "resident", spec=SPEC).open()


def test_a_tier_of_half_precision_is_refused_on_a_cpu() -> None:
    half = tiny_model(SHAPE, seed=1, dtype=torch.bfloat16)
    with pytest.raises(ConfigError, match="cannot be a CPU tier; load the model in float32"):
        compose(half, "window", "resident", spec=SPEC).open()


def test_a_gpu_engine_is_refused_on_a_cpu() -> None:
    with pytest.raises(ConfigError, match="engine='uva' needs a GPU"):
        pair("forecast", "offload-prefetch", runtime_options={"engine": "uva"}).open()


def test_options_are_checked_by_name_and_value() -> None:
    with pytest.raises(ConfigError, match="session option 'speed' is unknown"):
        pair("forecast", "resident").open(speed=3)
    with pytest.raises(ConfigError, match="link_bytes_per_s=0"):
        pair("forecast", "resident").open(link_bytes_per_s=0)


def test_a_shape_alone_plans_and_predicts_but_does_not_run() -> None:
    shape_only = compose(SHAPE, "forecast", "offload-prefetch", spec=SPEC)
    assert "attend/3" in shape_only.plan()
    with pytest.raises(ConfigError, match="is only a shape"):
        shape_only.open()
    with pytest.raises(ConfigError, match="give all three"):
        pair("forecast", "resident").predict("h200", batch=1)


@pytest.mark.parametrize(
    ("prompt", "new", "message"),
    [([], 4, "prompt is empty"), (TOKENS, 0, "max_new_tokens=0"), (TOKENS * 25, 1, "exceeds the model's context")],
)
def test_generation_refuses_what_cannot_be_generated(prompt: list[int], new: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pair("forecast", "resident").generate(prompt, new)


def test_generation_is_greedy_and_the_same_everywhere() -> None:
    made = [pair("forecast", runtime).generate(TOKENS[:60], 30) for runtime in ("resident", "offload-prefetch")]
    assert made[0].tokens == made[1].tokens
    assert len(made[1].facts) == 29
    stop = made[0].tokens[3]
    stopped = pair("forecast", "resident").generate(TOKENS[:60], 9, stop=[stop])
    assert stopped.tokens == made[0].tokens[: made[0].tokens.index(stop) + 1]


def test_sampling_repeats_with_its_seed() -> None:
    def draw(seed: int) -> tuple[int, ...]:
        return pair("forecast", "resident").generate(TOKENS[:60], 20, temperature=1.5, top_p=0.9, seed=seed).tokens

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_measure_steps_every_row_of_a_batch_and_counts_after_the_warm_up() -> None:
    combination = pair("forecast", "offload-prefetch")
    measured = combination.measure(TOKENS[:60], TOKENS[60:80], batch=3, warmup=5, timeline=True)
    assert len(measured.step_s) == len(measured.facts) == len(measured.timelines) == 15
    assert all(facts.rows == 3 for facts in measured.facts)
    assert measured.median_step_s > 0
    assert MODEL.shape is SHAPE

"""Bad calls are refused before anything changes; whatever interrupts a step, the rows are as they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from sparda_core.compose import compose
from sparda_core.errors import CapacityError, ConfigError, RowError, SpardaError
from sparda_core.models.tiny import tiny_model
from sparda_core.plan import Op
from sparda_core.runtimes.offload_sync import OffloadSync
from sparda_core.runtimes.session import CpuSession
from sparda_core.selectors.query import Query
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
    with pair("forecast", runtime).open_cpu() as session:
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
    with pair("forecast", "offload-prefetch", host_limit_bytes=limit).open_cpu() as session:
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
        (lambda s, r: s.prefill(r, [1], chunk=0), ConfigError, "chunk=0 must be an integer >= 1"),
        (lambda s, r: s.prefill(r, [1], mode="fast"), ConfigError, "mode='fast' is unknown; known: dense, selector"),
        (lambda s, r: s.crop(r, 11), ConfigError, "tokens=11 must be an integer from 0 to the row's length 10"),
        (lambda s, r: s.crop(r, -1), ConfigError, "tokens=-1"),
        (lambda s, r: s.crop(r, 1.5), ConfigError, "tokens=1.5 must be an integer"),
        (lambda s, r: s.decode({r: 1.7}), ConfigError, "a token id is never rounded"),
        (lambda s, r: s.decode({r: True}), ConfigError, "must be integers, not torch.bool"),
        (lambda s, r: s.decode({r: "a"}), ConfigError, "flat list of token ids"),
        (lambda s, r: s.prefill(r, [2**70]), ConfigError, "flat list of token ids"),
        (lambda s, r: s.prefill(r, [[1, 2]]), ConfigError, "ids between 0 and 22"),
        (lambda s, r: s.prefill(r, [1], chunk=1.5), ConfigError, "chunk=1.5 must be an integer"),
        (lambda s, r: s.reorder([r, "a"]), ConfigError, "must name every row once"),
        (lambda s, r: s.set_budget(10**12), ConfigError, r"budget=1000000000000 must be < 2\*\*31"),
        (lambda s, r: s.adopt(None), ConfigError, "snapshot=None must be what"),
        (lambda s, r: s.adopt(attrs.evolve(s.snapshot(r), tokens=9)), ConfigError, "snapshot has keys"),
        (lambda s, r: s.adopt(attrs.evolve(s.snapshot(r), queries=np.zeros((1, 2, 3, 4)))), ConfigError, "has queries"),
        (lambda s, r: s.adopt(attrs.evolve(s.snapshot(r), values=None)), ConfigError, "snapshot has values"),
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
    calls = (session.add, lambda: session.decode({row: 1}), lambda: session.length(row), lambda: session.used_bytes)
    for call in calls:
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
    with pytest.raises(ConfigError, match="option 'speed' of a CPU session is unknown"):
        pair("forecast", "resident").open(speed=3)
    for name, value in (
        ("link_bytes_per_s", 0), ("link_bytes_per_s", float("inf")), ("link_bytes_per_s", "x"), ("threads", 1.5),
        ("threads", 10**9), ("page_blocks", 1.5), ("page_blocks", None), ("host_limit_bytes", True),
        ("keep_queries", -1),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=f"{name}={value!r} must be"):
            pair("forecast", "resident").open(**{name: value})


@pytest.mark.parametrize("options", [{"slots": 7.5}, {"slots": 10**30}, {"resident_layers": "x"}])
def test_a_runtime_takes_whole_numbers(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(options))}="):
        pair("forecast", "offload-prefetch", runtime_options=options)


def test_parts_of_another_kind_are_refused_when_they_are_composed() -> None:
    model: Any = tiny_model(SHAPE)
    for parts in ((None,), (model, None), (model, 5), (model, "forecast", model), (model, "forecast", 7)):
        with pytest.raises(ConfigError, match=r"must be a|is neither"):
            compose(*parts)
    with pytest.raises(ConfigError, match="must be a BlockSpec"):
        compose(model, spec="x")  # type: ignore[arg-type]


def test_options_beside_an_object_are_refused_since_nobody_would_read_them() -> None:
    model = tiny_model(SHAPE)
    with pytest.raises(ConfigError, match=r"selector_options=\{'seed': 3\} go to a selector by name; set them on"):
        compose(model, Query(), "resident", selector_options={"seed": 3})
    with pytest.raises(ConfigError, match=r"runtime_options=\{'slots': 9\} go to a runtime by name"):
        compose(model, "query", OffloadSync(), runtime_options={"slots": 9})


def test_a_snapshot_of_other_precision_is_taken_by_every_selector() -> None:
    wide = tiny_model(SHAPE, seed=1, dtype=torch.float64)
    narrow = tiny_model(SHAPE, seed=1, dtype=torch.float32)
    with compose(wide, "window", "resident", spec=SPEC).open(keep_queries=20) as session:
        row = session.add()
        session.prefill(row, TOKENS)
        snapshot = session.snapshot(row)
        want = session.decode({row: 1}).logits
    for name, options in (("random", {}), ("infinigen", {"channels": 2}), ("window", {})):
        with compose(narrow, name, "resident", spec=SPEC, selector_options=options).open() as session:
            row = session.adopt(snapshot)
            got = session.decode({row: 1}).logits
        assert torch.isfinite(got).all()
        if name == "window":
            torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)


def test_a_shape_alone_plans_and_predicts_but_does_not_run() -> None:
    shape_only = compose(SHAPE, "forecast", "offload-prefetch", spec=SPEC)
    assert "attend/3" in shape_only.plan()
    with pytest.raises(ConfigError, match="is only a shape"):
        shape_only.open()
    with pytest.raises(ConfigError, match="give all three"):
        pair("forecast", "resident").predict("h200", batch=1)


@pytest.mark.parametrize(
    ("prompt", "new", "message"),
    [
        ([], 4, "prompt is empty"), (TOKENS, 0, "max_new_tokens=0"), (TOKENS, 1.5, "max_new_tokens=1.5"),
        (TOKENS * 25, 1, "exceeds the model's context"),
    ],
)
def test_generation_refuses_what_cannot_be_generated(prompt: list[int], new: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pair("forecast", "resident").generate(prompt, new)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 1.5}, r"seed=1\.5 must be an integer"),
        ({"temperature": "hot"}, "temperature='hot' must be a number"),
        ({"temperature": float("inf")}, "temperature=inf must be >= 0 and below"),
        ({"top_p": float("nan")}, "top_p=nan must be in"),
    ],
)  # fmt: skip
def test_sampling_has_the_bounds_of_a_gpu_session(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pair("forecast", "resident").generate(TOKENS[:60], 3, **options)


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
    prompt: Any = np.array(TOKENS[:60])  # as `generate` takes it, too
    as_array = combination.measure(prompt, TOKENS[60:66], warmup=5)
    assert len(as_array.step_s) == 1


def test_measure_refuses_a_warm_up_that_leaves_nothing_or_is_none() -> None:
    for warmup, message in ((-1, "warmup=-1 must be an integer >= 0"), (5, "5 ids, which must be more than warmup=5")):
        with pytest.raises(ConfigError, match=message):
            pair("forecast", "resident").measure(TOKENS[:60], TOKENS[60:65], warmup=warmup)


@pytest.mark.parametrize("value_bytes", [0, -2, float("nan"), 100])
def test_a_prediction_refuses_values_of_no_size(value_bytes: float) -> None:
    with pytest.raises(ConfigError, match=r"value_bytes=.* must be between 0\.5 and 8, or None"):
        pair("forecast", "resident").predict("h200", batch=1, context=200, churn=0.1, value_bytes=value_bytes)


@pytest.mark.parametrize(
    "act", ["decode", "prefill", "add", "retire", "fork", "crop", "reorder", "set_budget", "close"]
)
def test_an_observer_that_changes_the_session_is_refused_and_the_step_undone(act: str) -> None:
    with pair("forecast", "offload-prefetch").open_cpu() as session:
        row = session.add()
        session.prefill(row, TOKENS[:60])
        copy = session.fork(row)
        calls: dict[str, Callable[[], Any]] = {
            "decode": lambda: session.decode({row: 1}), "prefill": lambda: session.prefill(row, [1]),
            "add": session.add, "retire": lambda: session.retire(row), "fork": lambda: session.fork(row),
            "crop": lambda: session.crop(row, 5), "reorder": lambda: session.reorder([copy, row]),
            "set_budget": lambda: session.set_budget(9), "close": session.close,
        }  # fmt: skip
        session.on_layer = lambda view: calls[act]() and None
        with pytest.raises(SpardaError, match="in the middle of a step"):
            session.decode({row: 1})
        session.on_layer = None
        assert session.rows == (row, copy)
        logits = session.decode({row: 1, copy: 1}).logits
        torch.testing.assert_close(logits[0], logits[1])

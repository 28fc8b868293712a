"""What goes wrong, or changes, between and within steps costs no more than it must."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
import torch

from sparda_core.errors import CapacityError, ConfigError, SpardaError
from sparda_core.facts import StepFacts
from sparda_core.kernels.gather.runs import MOST_CTAS
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.runtimes.gpu.machinery import Machinery
from sparda_core.runtimes.gpu.options import GpuOptions
from sparda_core.runtimes.gpu.session import GpuSession
from tests.gpu.session.worlds import SPEC, models, prompt
from tests.gpu_env import DEVICE


def opened(selector: str = "window", runtime: str = "offload-prefetch", **options: Any) -> GpuSession:
    return GpuSession(
        models()[1], runtime=RUNTIMES.make(runtime), selector=SELECTORS.make(selector), spec=SPEC,
        options=GpuOptions.of(**{"places": 3, "tokens": 96, "page_blocks": 2, **options}),
    )  # fmt: skip


def test_what_a_step_left_is_told_of_the_row_that_made_it_even_when_that_row_has_moved() -> None:
    session = opened("query", "offload-sync")
    for length in (5, 40, 70):
        session.prefill(session.add(), prompt(length, length))
    made = session.decode({0: 1, 1: 2, 2: 3})
    lists = session.last_selection()
    session.retire(0)  # the row of the last place moves into the first
    torch.testing.assert_close(session.last_logits(), made.logits[1:], rtol=0, atol=0)
    np.testing.assert_array_equal(session.last_facts().selected, made.facts.selected[:, 1:])
    np.testing.assert_array_equal(session.last_facts().misses, made.facts.misses[:, 1:])
    np.testing.assert_array_equal(session.last_selection(), lists[:, 1:])
    session.close()


def test_a_new_budget_leaves_nothing_to_be_told_of_the_step_before() -> None:
    session = opened("query", "offload-sync", places=1)
    session.prefill(session.add(), prompt(70))
    session.decode({0: 1})
    session.set_budget(SPEC.budget + 1)
    assert not session.last_facts().active.any()
    with pytest.raises(ConfigError, match="not decoded yet"):
        session.last_logits()
    session.close()


def test_the_largest_seed_serves_every_row() -> None:
    session = opened(seed=2**63 - 1)
    assert [session.add() for _ in range(3)] == [0, 1, 2]
    session.close()


@pytest.mark.parametrize("call", ["add", "fork"])
def test_a_row_that_could_not_begin_leaves_its_place_free(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(*_: object) -> None:
        raise KeyboardInterrupt

    session = opened(places=2)
    session.prefill(session.add(), prompt(20))
    used = session.used_bytes
    monkeypatch.setattr(Machinery, "set_sampling", cut)
    monkeypatch.setattr(Machinery, "_same", cut)
    with pytest.raises(KeyboardInterrupt):
        session.add() if call == "add" else session.fork(0)
    monkeypatch.undo()
    assert (session.rows, session.used_bytes) == ((0,), used)
    assert session.fork(0) == 1
    session.close()


def test_steps_that_find_no_room_cost_neither_tokens_nor_what_the_last_step_left() -> None:
    session = opened(places=1, host_limit_bytes=2 * 2 * 16 * 32 * 4 * 2)  # two pages of two blocks
    session.prefill(session.add(), prompt(20))
    made, drawn = session.decode({0: 1}), session.tokens()
    for grow in (lambda: session.run(60), lambda: session.prefill(0, prompt(60))):
        with pytest.raises(CapacityError, match="tier='host'"):
            grow()
        assert (session.length(0), session.tokens()) == (21, drawn)
        torch.testing.assert_close(session.last_logits(), made.logits, rtol=0, atol=0)
    session.run(1)  # goes on with the token that it had drawn
    again = opened(places=1)
    again.prefill(again.add(), prompt(20))
    again.decode({0: 1})
    again.decode({0: drawn[0]})
    torch.testing.assert_close(session.last_logits(), again.last_logits(), rtol=1e-5, atol=1e-5)
    session.close()
    again.close()


def test_drawn_tokens_that_nobody_got_were_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    session = opened("query", "offload-sync", places=1)
    session.prefill(session.add(), prompt(20))
    run, tolist, cuts = session._run, torch.Tensor.tolist, list[torch.Tensor]()

    def cut_once(tensor: torch.Tensor) -> Any:
        if cuts:
            return tolist(tensor)
        cuts.append(tensor)
        raise KeyboardInterrupt

    def then_cut(*given: Any) -> None:
        run(*given)
        monkeypatch.setattr(torch.Tensor, "tolist", cut_once)

    monkeypatch.setattr(session, "_run", then_cut)
    with pytest.raises(KeyboardInterrupt):
        session.draw(3, {0: 5})
    monkeypatch.undo()
    assert len(cuts) == 1
    assert session.length(0) == 20
    other = opened("query", "offload-sync", places=1)
    other.prefill(other.add(), prompt(20))
    assert session.draw(3, {0: 5}) == other.draw(3, {0: 5})
    session.close()
    other.close()


def test_a_step_whose_results_nobody_got_was_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host waits for a step where it reads the results, so that is where Ctrl-C comes."""

    def cut(*_: object) -> StepFacts:
        raise KeyboardInterrupt

    session = opened("query", "offload-sync", places=2)
    for length in (20, 31):
        session.prefill(session.add(), prompt(length))
    with monkeypatch.context() as patched:
        patched.setattr(Machinery, "facts", cut)
        with pytest.raises(KeyboardInterrupt):
            session.decode({0: 1, 1: 2})
    assert [session.length(row) for row in session.rows] == [20, 31]
    got = session.decode({0: 1, 1: 2}).logits
    other = opened("query", "offload-sync", places=2)
    for length in (20, 31):
        other.prefill(other.add(), prompt(length))
    torch.testing.assert_close(got, other.decode({0: 1, 1: 2}).logits, rtol=1e-5, atol=1e-5)
    session.close()
    other.close()


def test_a_snapshot_of_any_layout_and_float_is_taken_over() -> None:
    session = opened()
    session.prefill(session.add(), prompt(33))
    kept = session.snapshot(0)
    want = session.decode({0: 4}).logits[0]
    for change in (
        lambda array: array[..., ::-1].copy()[..., ::-1],  # negative strides
        lambda array: array.astype(np.longdouble),
        lambda array: array.astype(array.dtype.newbyteorder()),
        lambda array: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape),  # read only
    ):
        parts: dict[str, Any] = {name: change(getattr(kept, name)) for name in ("keys", "values", "queries")}
        row = session.adopt(attrs.evolve(kept, **parts))
        torch.testing.assert_close(session.decode({row: 4}).logits[1], want, rtol=1e-5, atol=1e-5)
        session.retire(row)
    session.close()


@pytest.mark.parametrize("host_dtype", ["same", "fp8"])
def test_an_empty_row_is_taken_out_and_over(host_dtype: str) -> None:
    session = opened(host_dtype=host_dtype)
    row = session.adopt(session.snapshot(session.add()))
    assert session.length(row) == 0
    logits = session.decode({0: 7, row: 7}).logits
    torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=0)
    session.close()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"temperature": 1e39}, "temperature=1e\\+39 must be >= 0 and below"),
        ({"temperature": "hot"}, "temperature='hot' must be a number"),
        ({"top_p": None}, "top_p=None must be a number"),
        ({"copy_ctas": MOST_CTAS + 1}, f"ctas={MOST_CTAS + 1} must be"),
        ({"copy_in_flight_bytes": 3000}, "in_flight_bytes=3000 must be a power of two"),
    ],
)
def test_options_that_no_step_could_use_are_refused_before_memory_is_taken(
    options: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        GpuOptions.of(**options)


def test_host_memory_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(ConfigError, match="host_memory is a ndarray"):
        opened(host_memory=np.zeros(10, np.uint8))


@pytest.mark.parametrize("failing", ["bind_device", "_capacity"])
def test_a_budget_that_cannot_be_had_costs_no_row_its_next_token(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_: object, **__: object) -> None:
        monkeypatch.undo()  # the old budget can be had
        raise CapacityError(tier="device", need=2, free=1, unit="bytes", hint="lower places")

    session = opened("query", "offload-sync", places=1)
    logits = session.prefill(session.add(), prompt(40))
    monkeypatch.setattr(Machinery if failing == "_capacity" else type(session.machinery.selector), failing, short)
    with pytest.raises(CapacityError, match="lower places"):
        session.set_budget(SPEC.budget + 1)
    assert session.spec == SPEC
    assert session.tokens() == {0: int(logits.argmax())}
    session.run(1)
    assert session.length(0) == 41
    session.close()


def test_where_neither_budget_can_be_had_the_session_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_: object) -> None:
        raise CapacityError(tier="device", need=2, free=1, unit="bytes", hint="lower places")

    session = opened("query", "offload-sync", places=1)
    session.prefill(session.add(), prompt(20))
    monkeypatch.setattr(Machinery, "_capacity", short)
    with pytest.raises(CapacityError):
        session.set_budget(SPEC.budget + 1)
    with pytest.raises(SpardaError, match="closed"):
        session.decode({0: 1})
    session.close()


def test_a_budget_too_small_for_dense_attention_is_refused_before_anything_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = GpuSession(
        models()[1], runtime=RUNTIMES.make("offload-sync", policy="lru"), selector=SELECTORS.make("dense"),
        spec=SPEC.with_budget(6), options=GpuOptions.of(places=1, tokens=96, page_blocks=2),
    )  # fmt: skip
    session.prefill(session.add(), prompt(20))
    monkeypatch.setattr(Machinery, "reopen", lambda *_: pytest.fail("memory was given up"))
    with pytest.raises(ConfigError, match=r"budget=5 must be >= 6"):
        session.set_budget(5)
    session.close()


@pytest.mark.skipif(DEVICE.type == "cuda", reason="a graph can be had there")
def test_a_graph_that_cannot_be_had_is_refused_before_memory_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machinery, "_open", lambda _: pytest.fail("memory was taken"))
    with pytest.raises(ConfigError, match="graph=True needs a CUDA device"):
        opened(graph=True)


def test_a_device_that_is_full_is_told_in_our_words_wherever_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    session = opened(places=1)
    session.prefill(session.add(), prompt(20))
    where = "sparda_core.runtimes.gpu"
    for what, call in (
        (f"{where}.session.prefill_chunk", lambda: session.prefill(0, [1, 2])),
        (f"{where}.machinery.Machinery._drawing", lambda: session.run(1)),
        (f"{where}.machinery.attend_scratch", opened),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(what, full)
            with pytest.raises(CapacityError, match="tier='device'"):
                call()
        assert session.length(0) == 20
    session.run(1, {0: 1})  # the step that failed may have drawn another
    session.close()


def test_a_prompt_that_is_cut_short_leaves_a_float8_rows_last_block_exact() -> None:
    """Its slots are the only place that has it whole; later chunks fill it up and need slots themselves."""

    def cut(done: int) -> None:
        if done == 36:
            raise KeyboardInterrupt

    session = GpuSession(
        models()[1], runtime=RUNTIMES.make("offload-prefetch", policy="lru"), selector=SELECTORS.make("forecast"),
        spec=SPEC, options=GpuOptions.of(places=1, tokens=160, page_blocks=2, host_dtype="fp8"),
    )  # fmt: skip
    session.prefill(session.add(), prompt(70))
    session.decode({0: 1})  # fills the slots
    before = session.snapshot(0)
    with pytest.raises(KeyboardInterrupt):
        session.prefill(0, prompt(40), chunk=9, progress=cut)
    after = session.snapshot(0)
    np.testing.assert_array_equal(after.keys, before.keys)
    np.testing.assert_array_equal(after.values, before.values)
    session.close()

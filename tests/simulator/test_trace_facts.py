from __future__ import annotations

import attrs
import numpy as np
import pytest

from sparda_core.cli.record import record as record_command
from sparda_core.compose import compose
from sparda_core.errors import ConfigError, UnknownNameError
from sparda_core.facts import StepFacts
from sparda_core.layer_view import LayerView
from sparda_core.selectors.recording import Recorder, Recording
from sparda_core.simulator.trace_facts import mean_facts, recorded_facts
from tests.agreement.worlds import SHAPE, SPEC, TOKENS, pair
from tests.simulator.scenes import gpu

STEPS = 24


def record(
    selector: str, runtime: str, prompts: tuple[int, ...], **options: object
) -> tuple[Recording, list[StepFacts]]:
    """Rows of these prompt lengths decode side by side; every third step the last one sits out."""
    pairing = pair(selector, runtime, runtime_options=options)
    recorder = Recorder(shape=SHAPE, spec=SPEC, selector=selector)
    seen: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    facts = []

    def keep(view: LayerView) -> None:
        assert view.selection is not None
        seen[view.layer] = view.positions.numpy().copy(), view.selection.numpy().copy()

    with pairing.open_cpu() as session:
        rows = [session.add() for _ in prompts]
        for row, tokens in zip(rows, prompts, strict=True):
            session.prefill(row, TOKENS[:tokens])
        session.on_selection = keep
        for step in range(STEPS):
            active = rows if len(rows) == 1 or step % 3 else rows[:-1]
            facts.append(session.decode(dict.fromkeys(active, TOKENS[step])).facts)
            where = np.full((len(rows), 1), -1)
            ids = np.full((SHAPE.layers, len(rows), SHAPE.kv_heads, 1, SPEC.budget), -1)
            for layer, (positions, chosen) in seen.items():
                where[: len(active)] = positions
                ids[layer, : len(active), ..., : chosen.shape[-1]] = chosen
            recorder.add(where, ids)
            recorder.add_facts(facts[-1])
    return recorder.recording(), facts


@pytest.mark.parametrize(
    ("selector", "runtime", "prompts", "options"),
    [
        ("forecast", "offload-prefetch", (75,), {}),
        ("forecast", "offload-prefetch", (72, 101), {"slots": 8, "policy": "lru"}),
        ("query", "offload-sync", (64, 41), {"slots": 7, "policy": "last-selection"}),
        ("query", "offload-sync", (130,), {"slots": 6, "policy": "lru", "resident_layers": 2}),
    ],
)
def test_a_recording_played_again_meets_what_the_session_met(
    selector: str, runtime: str, prompts: tuple[int, ...], options: dict[str, object]
) -> None:
    recording, met = record(selector, runtime, prompts, **options)
    pairing = pair(selector, runtime, runtime_options=options)
    played = recorded_facts(
        recording, slots=pairing.runtime.slots, policy=pairing.runtime.policy,
        resident_layers=pairing.plan().resident_layers,
    )  # fmt: skip
    assert len(played) == STEPS
    for ours, theirs in zip(played, met, strict=True):
        assert ours == attrs.evolve(theirs, late=theirs.late * 0)
    assert any(facts.misses.any() for facts in met)
    assert any(facts.opened.any() for facts in met)


@pytest.mark.parametrize("times", [1, 2, 4])
@pytest.mark.parametrize(("selector", "runtime"), [("forecast", "offload-prefetch"), ("query", "offload-sync")])
def test_what_pools_under_score_miss_is_counted_while_a_run_is_recorded(
    selector: str, runtime: str, times: int
) -> None:
    options = {"slots": times * SPEC.budget, "policy": "score"}
    pairing = pair(selector, runtime, runtime_options=options)
    made = record_command(pairing, [TOKENS[:99], TOKENS[20:88]], steps=STEPS, report=lambda *_: None)
    resident = pairing.plan().resident_layers
    played = recorded_facts(made, slots=times * SPEC.budget, policy="score", resident_layers=resident)
    for ours, theirs in zip(played, made.facts, strict=True):
        assert ours == attrs.evolve(theirs, late=theirs.late * 0)
    assert any(facts.misses.any() for facts in played)


def test_misses_under_score_are_those_of_pools_that_were_counted_or_refused() -> None:
    made = record_command(pair("forecast", "offload-prefetch"), [TOKENS[:99]], steps=STEPS, report=lambda *_: None)
    small, plain = (recorded_facts(made, policy=policy) for policy in ("score", "last-selection"))
    assert small == plain, "a pool of one selection keeps just that"
    with pytest.raises(ConfigError, match="slots=15: misses under policy='score' were counted for 5, 10, 20 slots"):
        recorded_facts(made, slots=15, policy="score")
    with pytest.raises(ConfigError, match="did not count its misses"):
        recorded_facts(attrs.evolve(made, scored=None), policy="score")
    without = record_command(pair("window", "offload-prefetch"), [TOKENS[:99]], steps=2, report=lambda *_: None)
    assert without.scored is None


def test_steps_that_are_skipped_still_fill_the_slots() -> None:
    recording, _ = record("forecast", "offload-prefetch", (75,))
    whole = recorded_facts(recording, slots=8, policy="lru")
    assert recorded_facts(recording, slots=8, policy="lru", skip=5) == whole[5:]


def test_layers_that_stay_resident_miss_nothing_and_do_not_shift_the_others() -> None:
    recording, _ = record("forecast", "offload-prefetch", (75,))
    every, some = (recorded_facts(recording, resident_layers=n) for n in (0, 2))
    for one, other in zip(every, some, strict=True):
        np.testing.assert_array_equal(one.misses[2:], other.misses[2:])
        assert not other.misses[:2].any()


@pytest.mark.parametrize(
    ("options", "kind", "told"),
    [
        ({"slots": 4}, ConfigError, "slots=4 must be >= budget=5"),
        ({"policy": "last"}, UnknownNameError, "known: last-selection, lru"),
        ({"skip": STEPS}, ConfigError, f"skip={STEPS} must be < steps={STEPS}"),
        ({"resident_layers": 9}, ConfigError, "resident_layers=9 must be <= layers=4"),
    ],
)
def test_what_a_recording_cannot_give_is_refused(
    options: dict[str, object], kind: type[Exception], told: str
) -> None:
    recording, _ = record("forecast", "offload-prefetch", (75,))
    with pytest.raises(kind, match=told):
        recorded_facts(recording, **options)  # type: ignore[arg-type]


def test_a_recording_is_predicted_under_slots_that_it_never_had() -> None:
    recording, _ = record("forecast", "offload-prefetch", (130,))
    times = []
    for slots, policy in ((5, "last-selection"), (10, "lru"), (40, "lru")):
        options = {"slots": slots, "policy": policy, "engine": "uva"}
        pairing = compose(SHAPE, "forecast", "offload-prefetch", spec=SPEC, runtime_options=options)
        met = recorded_facts(recording, slots=slots, policy=policy, resident_layers=1, skip=STEPS // 2)
        times.append(pairing.predict(gpu(link=1e6), facts=met).step_s)
        mean_s = pairing.predict(gpu(link=1e6), facts=mean_facts(met)).step_s
        assert 0.5 * times[-1] < mean_s <= times[-1] + 1e-8, "bursts of misses wait, their mean hides"
    assert times[0] > times[1] > times[2]

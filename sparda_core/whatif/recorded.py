"""The recording of a scenario, and the facts of a step that misses what it misses. Files are read once a process."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from sparda_core.errors import UnknownNameError
from sparda_core.selectors.recording import Recording, load
from sparda_core.selectors.shipped import SUFFIX, path_of, recording_names
from sparda_core.simulator.recorded_load import RecordedShares, load_facts, recorded_shares

if TYPE_CHECKING:
    from sparda_core.compose import Combination
    from sparda_core.facts import StepFacts
    from sparda_core.whatif.scenario import Scenario


def recording_of(scenario: Scenario) -> Recording:
    """The scenario's recording; raises UnknownNameError with the nearest name, RecordingError for an unsound file."""
    assert scenario.recording is not None
    return _loaded(*_key(scenario.recording))


def miss_share(scenario: Scenario, budget: int) -> float:
    """Misses / selected blocks with the scenario's slots and policy; `budget` is that of the selector's own cut."""
    return _shares(scenario, budget).mean


def facts_of_recording(scenario: Scenario, pair: Combination, resident_layers: int) -> tuple[StepFacts, ...]:
    """One mean step, or as many steps as the scenario asks for."""
    return load_facts(
        _shares(scenario, pair.spec.budget), shape=pair.shape, spec=pair.spec, batch=scenario.batch,
        context=scenario.context, slots=scenario.slot_count(pair.spec.budget), resident_layers=resident_layers,
        steps=scenario.steps,
    )  # fmt: skip


def _shares(scenario: Scenario, budget: int) -> RecordedShares:
    assert scenario.recording is not None
    return _played(_key(scenario.recording), scenario.slot_count(budget), budget, scenario.policy)


def _key(name: str) -> tuple[str, int]:
    """A file is read again when it changes."""
    path = path_of(name)
    if path.suffix != SUFFIX:
        raise UnknownNameError(what="recording", name=name, known=recording_names(), suffix=SUFFIX)
    try:
        return str(path), path.stat().st_mtime_ns
    except (OSError, ValueError):  # loading it says why
        return str(path), 0


@functools.lru_cache(maxsize=16)
def _loaded(path: str, _: int) -> Recording:
    return load(Path(path))


@functools.lru_cache(maxsize=128)
def _played(key: tuple[str, int], slots: int, budget: int, policy: str) -> RecordedShares:
    return recorded_shares(_loaded(*key), slots=slots, budget=budget, policy=policy)

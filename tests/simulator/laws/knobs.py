"""The law of knobs: each field of a Scenario has a scene in which turning it changes time, memory or feasibility."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from hypothesis import strategies as st

from sparda_core.errors import SpardaError
from sparda_core.whatif.scenario import Scenario
from tests.simulator.laws.law import law

Turns = Mapping[str, Any]
OFFLOADED: Turns = {"batch": 4, "context": 32768}
COMPUTE: Turns = {"batch": 256, "context": 4096, "runtime": "resident", "selector": "query"}
PREFILL: Turns = {"phase": "prefill", "batch": 1, "context": 32768}
LOCAL: Turns = {**OFFLOADED, "locality": "infllm-v2", "steps": 4}
DEEP: Turns = {**LOCAL, "runtime": "offload-sync", "slot_factor": 2.0, "policy": "lru"}

#: By knob: the other knobs of a scene, and a value that differs there from the knob's default.
SCENES: dict[str, tuple[Turns, Any]] = {
    "shape": ({}, "smollm2-135m"),
    "phase": (OFFLOADED, "prefill"),
    "batch": ({}, 9),
    "context": ({}, 65536),
    "chunk": (PREFILL, 512),
    "prefill": (PREFILL, "selector"),
    "churn": ({}, 0.3),
    "locality": (OFFLOADED, "infllm-v2"),
    "recording": (OFFLOADED, "smollm2/forecast-16"),
    "steps": (LOCAL, 7),
    "seed": (DEEP, 1),
    "value_bytes": ({}, 4),
    "profile": ({}, "h100-sxm"),
    "gpus": ({"engine": "cpu-gather", "churn": 0.5}, 8),
    "pcie": ({"churn": 0.5}, 4),
    "link_gb_s": ({"churn": 0.5}, 20.0),
    "hbm_gb_s": ({}, 2000.0),
    "tflop_s": (COMPUTE, 50.0),
    "host_gb": ({"batch": 24}, 10.0),
    "launches": ({}, "eager"),
    "extrapolate": ({"ctas": 100}, True),
    "selector": ({}, "infinigen"),
    "selector_options": ({"selector": "infinigen"}, {"channels": 8}),
    "lead": ({"churn": 0.5}, 2),
    "runtime": ({}, "offload-sync"),
    "resident_layers": ({}, 8),
    "slots": ({}, 200),
    "slot_factor": ({}, 2.0),
    "policy": ({**LOCAL, "slot_factor": 4.0}, "lru"),
    "engine": ({}, "copy-engine"),
    "ctas": ({"churn": 0.5}, 1),
    "cluster": ({"churn": 0.5, "ctas": 2}, 2),
    "in_flight_kib": ({"churn": 0.5}, 16.0),
    "host_dtype": ({"churn": 0.5}, "fp8"),
    "budget": ({}, 128),
    "sink": (DEEP, 8),
    "local": (DEEP, 16),
    "block": ({}, 128),
    "window": ({}, 64),
    "stride": ({}, 32),
}


def outcome(turns: Turns) -> object:
    """Time, memory and feasibility of a scene; of one that is refused, that it is."""
    try:
        got = Scenario.of(turns).predict()
    except SpardaError as refused:
        return type(refused).__name__, str(refused)
    return got.feasible, attrs.astuple(got.need), got.step_s if got.feasible else None


def refusal(told: object) -> str | None:
    return told[1] if isinstance(told, tuple) and isinstance(told[0], str) else None


DROPPED = {"stride-is-dropped": "stride", "batch-is-dropped": "batch"}


@law(st.sampled_from(sorted(SCENES)), examples=200, mutants=DROPPED)
def every_knob_moves_some_output(name: str) -> None:
    scene, value = SCENES[name]
    before, after = outcome(scene), outcome({**scene, name: value})
    assert refusal(after) is None, f"{name}={value!r}: {refusal(after)}"
    assert after != before, f"{name}={value!r} changes nothing"

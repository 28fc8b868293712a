"""Predicted step times: of what was measured here, with the error, and of the 8B shape on GPUs. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from sparda_core.compose import Combination, compose
from sparda_core.facts import StepFacts
from sparda_core.shapes import BlockSpec, named_shape
from sparda_core.simulator.predict import Prediction
from sparda_core.simulator.profile import Profile
from sparda_core.simulator.profile_file import load_profile

GPU_PROFILES = ("h200", "h100-sxm")
GPU_SHAPE = "minicpm4.1-8b"
#: Block spec of the 8B model's own sparse configuration: 34 forced blocks, 62 free ones.
GPU_SPEC = BlockSpec(block=64, window=32, stride=16, sink=1, local=32, budget=96)
GPU_CONTEXT = 131072
GPU_BATCHES = (8, 16)
GPU_CHURNS = (0.03, 0.10)
#: (selector, runtime, engine); infinigen on a GPU both as published, gathered by the host, and with our engine.
GPU_METHODS = (
    ("query", "resident", "uva"),
    ("query", "offload-sync", "uva"),
    ("infinigen", "offload-prefetch", "cpu-gather"),
    ("infinigen", "offload-prefetch", "uva"),
    ("forecast", "offload-sync", "uva"),
    ("forecast", "offload-prefetch", "uva"),
)


@attrs.frozen(kw_only=True)
class PredictedStep:
    """One prediction as figures. Seconds per step; all None where it does not fit, and `problem` says why.

    device_bytes, host_bytes  memory it takes, whether it fits or not
    rests_on                  how many of the profile's numbers are measured, from a datasheet, or priors
    """

    step_s: float | None
    tokens_per_s: float | None
    transfer_s: float | None
    exposed_s: float | None
    hidden_s: float | None
    bound: str | None
    device_bytes: float
    host_bytes: float
    problem: str | None
    rests_on: str


def figures(prediction: Prediction) -> PredictedStep:
    """The figures of a prediction."""
    times = ("step_s", "tokens_per_s", "transfer_s", "exposed_s", "hidden_s", "bound")
    return PredictedStep(
        **{name: getattr(prediction, name) if prediction.feasible else None for name in times},
        device_bytes=prediction.need.device, host_bytes=prediction.need.host,
        problem=None if prediction.problem is None else str(prediction.problem),
        rests_on=prediction.provenance["numbers"],
    )  # fmt: skip


def predict_measured(
    combination: Combination, facts: Sequence[StepFacts], profile: Profile, *, link_bytes_per_s: float | None
) -> Prediction:
    """Predict the very steps that were measured, on this machine's profile and over the same emulated link."""
    here = profile if link_bytes_per_s is None else profile.with_link(link_bytes_per_s)
    return combination.predict(here, facts=tuple(facts))


def predict_gpus() -> Iterator[dict[str, Any]]:
    """Rows for the 8B shape at 128K tokens: every method, profile, batch and churn."""
    shape = named_shape(GPU_SHAPE)
    for name in GPU_PROFILES:
        profile = load_profile(name)
        for batch in GPU_BATCHES:
            for churn in GPU_CHURNS:
                for selector, runtime, engine in GPU_METHODS:
                    combination = compose(shape, selector, runtime, spec=GPU_SPEC, runtime_options={"engine": engine})
                    prediction = combination.predict(profile, batch=batch, context=GPU_CONTEXT, churn=churn)
                    yield {
                        "profile": name, "shape": GPU_SHAPE, "context": GPU_CONTEXT, "budget": GPU_SPEC.budget,
                        "batch": batch, "churn": churn, "selector": selector, "runtime": runtime, "engine": engine,
                        **attrs.asdict(figures(prediction)),
                    }  # fmt: skip

"""Scenario: one point of a study. Every field is a knob, under the name that the command line gives it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from sparda_core.compose import Combination, compose
from sparda_core.shapes import BlockSpec, named_shape

if TYPE_CHECKING:
    from sparda_core.simulator.predict import Prediction
    from sparda_core.simulator.profile import Profile


@attrs.frozen(kw_only=True)
class Scenario:
    """A combination, a machine and a load.

    profile          name of a shipped profile, or the path of a file
    churn            share of a selection that was not in the row's previous one
    slots            per row and KV head of an offloaded layer; None: as many as the budget
    link_gb_s        another speed of the host link, 1e9 bytes a second; None: the profile's
    """

    shape: str = "minicpm4.1-8b"
    profile: str = "h200"
    selector: str = "forecast"
    runtime: str = "offload-prefetch"
    batch: int = 8
    context: int = 131072
    budget: int = 96
    sink: int = 1
    local: int = 32
    churn: float = 0.03
    slots: int | None = None
    policy: str = "last-selection"
    engine: str = "uva"
    link_gb_s: float | None = None

    def spec(self) -> BlockSpec:
        """How the scenario cuts a row into blocks."""
        return BlockSpec(sink=self.sink, local=self.local, budget=self.budget)

    def machine(self) -> Profile:
        """The profile, with the knobs that change it turned."""
        from sparda_core.simulator.profile_file import load_profile

        profile = load_profile(self.profile)
        return profile if self.link_gb_s is None else profile.with_link(self.link_gb_s * 1e9)

    def combination(self) -> Combination:
        """Selector and runtime, checked against each other; raises as `compose` does."""
        options = {"engine": self.engine, "slots": self.slots, "policy": self.policy}
        return compose(
            named_shape(self.shape), self.selector, self.runtime, spec=self.spec(), runtime_options=options
        )  # fmt: skip

    def predict(self) -> Prediction:
        """Step time, bound and memory of this point; infeasible points say so and hold no time."""
        return self.combination().predict(self.machine(), batch=self.batch, context=self.context, churn=self.churn)

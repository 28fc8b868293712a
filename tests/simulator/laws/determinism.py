"""Laws of determinism: the same to the byte in every process, at any hash seed, after anything else."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

from hypothesis import strategies as st

from tests.house.tree import ROOT
from tests.simulator.laws.law import law
from tests.simulator.laws.points import POINTS

#: Predicts in a process of its own; a mutant of another process is asked for by name.
SCRIPT = """
import os, sys
import pytest
from tests.simulator.laws import mutants_of_predictions
from tests.simulator.laws.points import POINTS, as_json
if name := os.environ.get("SPARDA_LAW_MUTANT"):
    getattr(mutants_of_predictions, name)(pytest.MonkeyPatch())
step = int(sys.argv[1])
sys.stdout.write("\\n".join([as_json(point.predict()) for point in POINTS[::step]][::step]))
"""


def predicted(seed: int, step: int) -> str:
    """See `_predicted`; under one mutant a process is asked once."""
    return _predicted(seed, step, os.environ.get("SPARDA_LAW_MUTANT"))


@functools.cache
def _predicted(seed: int, step: int, _: str | None) -> str:
    """The predictions of POINTS by a fresh process with this hash seed, the last one made first where step is -1."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(step)], capture_output=True, text=True, check=True, cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": "."},
    )  # fmt: skip
    return done.stdout


@law(
    st.integers(2, 2**32 - 1), examples=1,
    mutants=dict.fromkeys(("order-of-a-set-of-names", "prices-remembered-by-name"), 4711),
)  # fmt: skip
def a_prediction_is_the_same_to_the_byte_in_every_process_whatever_was_predicted_before(seed: int) -> None:
    forwards, backwards = predicted(1, 1).splitlines(), predicted(seed, -1).splitlines()
    assert len(set(forwards)) == len(POINTS)
    assert backwards == forwards

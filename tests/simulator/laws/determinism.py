"""Laws of determinism: the same to the byte in every process, whatever hash seed, whatever was predicted before."""

from __future__ import annotations

import os
import subprocess
import sys

from hypothesis import strategies as st

from tests.house.tree import ROOT
from tests.simulator.laws.law import law
from tests.simulator.laws.points import ENGINES, Point, as_json, points

#: Predicts in a process of its own; a mutant of another process is asked for by name.
SCRIPT = """
import os, sys
import pytest
from tests.simulator.laws import mutants
from tests.simulator.laws.points import POINTS, as_json
if name := os.environ.get("SPARDA_LAW_HASHES"):
    getattr(mutants, name)(pytest.MonkeyPatch())
sys.stdout.write("\\n".join(as_json(point.predict()) for point in POINTS))
"""


def predicted(seed: int) -> str:
    """The predictions of POINTS by a fresh process with this hash seed."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": "."},
    )  # fmt: skip
    return done.stdout


@law(st.tuples(st.just(1), st.integers(2, 2**32 - 1)), examples=1, mutants={"order-of-a-set-of-names": (1, 4711)})
def a_prediction_is_the_same_to_the_byte_in_every_process(case: tuple[int, int]) -> None:
    one, other = map(predicted, case)
    assert one == other
    assert one.count("\n") > 0, "nothing was predicted"


@law(st.tuples(points(engines=ENGINES), points(engines=ENGINES)), mutants=["prices-remembered-by-name"])
def a_prediction_does_not_depend_on_what_was_predicted_before(case: tuple[Point, Point]) -> None:
    point, other = case
    once = as_json(point.predict())
    other.predict()
    assert as_json(point.predict()) == once
    first = as_json(other.predict())
    point.predict()
    assert as_json(other.predict()) == first

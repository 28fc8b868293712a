"""What NOSA is for: the blocks that no query chose stay from step to step. And every runtime of it has a prediction."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sparda_core.selector import Selector
from sparda_core.selectors.nosa import Nosa
from sparda_core.selectors.query import Query
from sparda_core.shapes import BlockSpec
from sparda_core.whatif.scenario import Scenario
from tests.selectors.world import Drive, World

SPEC = BlockSpec(block=16, window=8, stride=4, sink=1, local=1, budget=8)


def churn(selector: Selector) -> float:
    """Share of a selection that was not in the last one, over 60 steps of two texts with 20 blocks and more."""
    drive = Drive(selector, World.random(texts=2, tokens=400, spec=SPEC))
    chosen = [drive.decode([0, 1], [320 + step] * 2) for step in range(60)]
    new = [~(now[..., :, None] == before[..., None, :]).any(-1) for before, now in itertools.pairwise(chosen)]
    return float(np.mean(new))


def test_the_more_blocks_go_by_the_bias_the_less_of_a_selection_is_new() -> None:
    # 1 of select_blocks is the query's own block: no free block, two, four, all five by the query.
    shares = [churn(Nosa(select_blocks=count)) for count in (1, 3, 5, 6)]
    assert shares == sorted(shares)
    assert shares[0] < 0.02  # a block leaves or enters the local band once in 16 steps
    assert shares[-1] == churn(Query()) > 0.2


@pytest.mark.parametrize(
    ("selector", "runtime"),
    [
        ("nosa", "resident"), ("nosa", "offload-sync"), ("nosa-forecast", "resident"),
        ("nosa-forecast", "offload-sync"), ("nosa-forecast", "offload-prefetch"),
    ],
)  # fmt: skip
def test_every_runtime_that_fits_is_predicted_with_the_biases_it_keeps(selector: str, runtime: str) -> None:
    batch = 4 if runtime == "resident" else 16
    base = Scenario(shape="nosa-8b", local=16, selector=selector, runtime=runtime, batch=batch, locality="nosa")
    got = base.predict()
    assert got.need.bias == batch * 64 * (131072 + 8191) * 4
    plain = base.turned(selector={"nosa": "query"}.get(selector, "forecast")).predict()
    assert plain.need.bias == got.need.bias
    assert 0 < got.step_s - plain.step_s < 0.05 * plain.step_s  # the shortlist is all that the method adds

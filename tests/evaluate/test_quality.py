"""Quality against a tiny model: what is fed, what is judged, and the selectors that must be perfect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from sparda_core.compose import compose
from sparda_core.errors import ConfigError
from sparda_core.evaluate.passages import Passage, answer_of, continue_passages, open_passages, windows_of
from sparda_core.evaluate.quality import dense_logits, evaluate_selector, score_task
from sparda_core.models.tiny import tiny_model
from sparda_core.runtimes.snapshot import RowSnapshot
from sparda_core.selectors.dense import Dense
from sparda_core.selectors.oracle import Oracle
from sparda_core.selectors.query import Query
from sparda_core.selectors.uniform import Uniform
from sparda_core.shapes import BlockSpec

SPEC = BlockSpec(block=8, window=8, stride=4, sink=1, local=1, budget=6)
WIDE = SPEC.with_budget(32)
TOKENS = tuple(np.random.default_rng(3).integers(1, 97, 181).tolist())


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model(dtype=torch.float64).decoder


@pytest.fixture(scope="module")
def snapshot(model: Any) -> Iterator[RowSnapshot]:
    with compose(model, Dense(), "resident", spec=WIDE, threads=1).open() as session:
        row = session.add()
        session.prefill(row, TOKENS[:-1], chunk=64)
        yield session.snapshot(row)


@pytest.fixture(scope="module")
def passages(snapshot: RowSnapshot) -> tuple[Passage, ...]:
    task = answer_of(snapshot, "passkey", TOKENS[:120], TOKENS[120:124])
    return (*windows_of(snapshot, TOKENS, windows=3, steps=10), task)


@pytest.fixture(scope="module")
def dense(model: Any, passages: tuple[Passage, ...]) -> list[torch.Tensor]:
    return dense_logits(compose(model, Dense(), "resident", spec=WIDE, threads=1), passages)


def run(model: Any, selector: Any, passages: Any, dense: Any, spec: BlockSpec = SPEC) -> Any:
    pair = compose(model, selector, "resident", spec=spec, threads=1)
    return evaluate_selector(pair, passages, dense, spec=SPEC, references={"query": Query(), "oracle": Oracle()})


def test_windows_feed_the_last_tokens_once_each(snapshot: RowSnapshot) -> None:
    windows = windows_of(snapshot, TOKENS, windows=3, steps=10)
    assert [token for w in windows for token in w.feed] == list(TOKENS[-31:-1])
    assert [token for w in windows for token in w.targets] == list(TOKENS[-30:])
    assert [w.start for w in windows] == [150, 160, 170]


def test_dense_logits_are_those_of_a_plain_forward(
    model: Any, passages: tuple[Passage, ...], dense: list[torch.Tensor]
) -> None:
    whole = model.dense_forward(torch.tensor([TOKENS]))[0]
    torch.testing.assert_close(torch.cat(dense[:3]), whole[150:180], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(dense[3], whole[119:123], rtol=1e-9, atol=1e-9)


def test_a_budget_that_holds_everything_loses_nothing(model: Any, passages: Any, dense: Any) -> None:
    got = run(model, Query(), passages, dense, spec=WIDE).quality
    assert got.document.tokens == 30
    assert got.document.agreement == 1
    assert got.document.kl < 1e-12
    assert got.recall["oracle"].free == got.recall["query"].all == 1


def test_a_reference_recalls_itself_and_a_draw_sits_at_chance(model: Any, passages: Any, dense: Any) -> None:
    for name, selector in (("query", Query()), ("oracle", Oracle())):
        got = run(model, selector, passages, dense).quality
        assert got.recall[name].free == got.recall[name].all == got.recall[name].corrected == 1
        assert all(layer.free == 1 for layer in got.layers[name])
    drawn = run(model, Uniform(seed=1), passages, dense).quality
    assert abs(drawn.recall["query"].corrected) < 0.2
    assert drawn.recall["query"].free < 0.5
    assert drawn.document.kl > 1e-4
    assert drawn.churn.free > 0.5


def test_every_selection_of_the_document_is_kept_in_order_of_position(model: Any, passages: Any, dense: Any) -> None:
    got = run(model, Query(), passages, dense)
    assert got.positions.tolist() == list(range(150, 180))
    assert got.selections.shape == (30, 3, 2, 6)
    assert (got.selections[..., 0] == 0).all()  # the sink
    assert (got.selections[..., -1] == (got.positions // 8)[:, None, None]).all()  # the current block


def test_rows_that_end_early_leave_the_others_as_they_were(model: Any, snapshot: RowSnapshot) -> None:
    long, short = (
        Passage(name=str(n), snapshot=snapshot, start=100, feed=TOKENS[100 : 100 + n], targets=TOKENS[101 : 101 + n])
        for n in (6, 2)
    )
    pair = compose(model, Query(), "resident", spec=SPEC, threads=1)
    with pair.open() as session:
        together = continue_passages(session, [short, long], open_passages(session, [short, long]))
        assert session.rows == ()
    alone = dense_logits(pair, [long])[0]
    torch.testing.assert_close(together[1], alone, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(together[0], alone[:2], rtol=1e-9, atol=1e-9)


def test_a_task_is_exact_if_and_only_if_greedy_decoding_gives_the_answer(model: Any, snapshot: RowSnapshot) -> None:
    pair = compose(model, Dense(), "resident", spec=WIDE, threads=1)
    greedy = pair.generate(TOKENS[:120], 4).tokens
    right = answer_of(snapshot, "t", TOKENS[:120], greedy)
    assert score_task(dense_logits(pair, [right])[0], right.target_ids).exact
    wrong = answer_of(snapshot, "t", TOKENS[:120], (*greedy[:3], (greedy[3] + 1) % 97))
    got = score_task(dense_logits(pair, [wrong])[0], wrong.target_ids)
    assert not got.exact
    assert got.accuracy == 0.75


def test_passages_that_cannot_be_continued_are_refused(snapshot: RowSnapshot, model: Any) -> None:
    with pytest.raises(ConfigError, match="start=999"):
        Passage(name="x", snapshot=snapshot, start=999, feed=(1,), targets=(1,))
    with pytest.raises(ConfigError, match="as many of both"):
        Passage(name="x", snapshot=snapshot, start=9, feed=(1, 2), targets=(1,))
    with pytest.raises(ConfigError, match="windows=9 x steps=40"):
        windows_of(snapshot, TOKENS, windows=9, steps=40)
    with pytest.raises(ConfigError, match="need a document"):
        run(model, Query(), [answer_of(snapshot, "t", TOKENS[:9], (1,))], [torch.zeros(1, 97)])


def test_churn_of_a_run_is_that_of_its_selections_one_after_another(model: Any, passages: Any, dense: Any) -> None:
    got = run(model, Query(), passages, dense)
    fresh = selected = 0
    for step in range(1, 30):
        if step % 10:  # each window of ten starts anew
            pair = (got.selections[at].reshape(-1, 6) for at in (step, step - 1))
            for now, last in zip(*pair, strict=True):
                fresh, selected = fresh + len(set(now) - set(last)), selected + len(now)
    assert got.quality.churn.count == selected
    assert got.quality.churn.all == pytest.approx(fresh / selected)

"""Each method's scores and choices against plain loops."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import ConfigError, PlanError, WeightsError
from sparda_core.plan import Phase
from sparda_core.selector import Selector
from sparda_core.selectors.dense import Dense
from sparda_core.selectors.forecast import Forecast
from sparda_core.selectors.infinigen import InfiniGen
from sparda_core.selectors.nosa import Nosa, NosaForecast
from sparda_core.selectors.oracle import Oracle
from sparda_core.selectors.query import Query
from sparda_core.selectors.window import Window
from tests.selectors import brute
from tests.selectors.world import GROUP, SHAPE, SPEC, Drive, World, query_of

WORLD = World.random(texts=2, tokens=200, seed=3)
positions = st.integers(8, 190)


def choices(selector: Selector, layer: int, position: int) -> torch.Tensor:
    """What a selector chooses for two texts at one decode position, [2, Hk, budget]."""
    drive = Drive(selector, WORLD)
    if isinstance(selector, InfiniGen):
        for text in (0, 1):
            drive.prefill(text, position)
    return torch.from_numpy(drive.decode([0, 1], [position, position])[layer, :, :, 0])


def expected(score: Callable[[int, int], list[float]], position: int) -> list[list[list[int]]]:
    return [[brute.best(score(text, head), position, SPEC) for head in range(SHAPE.kv_heads)] for text in (0, 1)]


def own_query(text: int, head: int, layer: int, position: int, *, source: int | None = None) -> torch.Tensor:
    x = WORLD.x[text, layer if source is None else source, position][None, None]
    query = query_of(layer, x, torch.tensor([[position]]))[0, :, 0]
    return query[GROUP * head : GROUP * (head + 1)]


@given(position=positions, layer=st.integers(0, SHAPE.layers - 1))
def test_query_chooses_as_plain_loops_do(position: int, layer: int) -> None:
    want = expected(
        lambda text, head: brute.query_scores(
            own_query(text, head, layer, position), WORLD.keys[text, layer, head], position, SPEC
        ),
        position,
    )
    assert choices(Query(), layer, position).tolist() == want


@pytest.mark.parametrize("select_blocks", [1, 2, 3])
@given(position=positions, layer=st.integers(0, SHAPE.layers - 1))
def test_nosa_takes_the_queries_best_and_fills_up_by_the_bias_as_plain_loops_do(
    select_blocks: int, position: int, layer: int
) -> None:
    keep = SPEC.sink + SPEC.local + select_blocks
    for selector in (Nosa(select_blocks=select_blocks), NosaForecast(select_blocks=select_blocks)):

        got = choices(selector, layer, position).tolist()
        for text, head in itertools.product((0, 1), range(SHAPE.kv_heads)):
            keys, bias = WORLD.keys[text, layer, head], WORLD.biases[text, layer, head, :, 0]
            if selector.lead:
                first = brute.dot_scores(WORLD.forecasts[text, layer, head, position], keys, position, SPEC)
            else:
                first = brute.query_scores(own_query(text, head, layer, position), keys, position, SPEC)
            then = brute.bias_scores(bias, position, SPEC)
            assert got[text][head] == brute.two_stages(first, then, position, SPEC, keep=keep)


@given(position=positions, layer=st.integers(0, SHAPE.layers - 1))
def test_forecast_chooses_as_plain_loops_do_though_it_has_not_seen_the_newest_token(position: int, layer: int) -> None:
    want = expected(
        lambda text, head: brute.dot_scores(
            WORLD.forecasts[text, layer, head, position], WORLD.keys[text, layer, head], position, SPEC
        ),
        position,
    )
    assert choices(Forecast(), layer, position).tolist() == want


@given(position=positions, layer=st.integers(0, SHAPE.layers - 1))
def test_oracle_chooses_the_blocks_with_the_most_attention(position: int, layer: int) -> None:
    want = expected(
        lambda text, head: brute.mass(
            own_query(text, head, layer, position), WORLD.keys[text, layer, head], position, SPEC
        ),
        position,
    )
    assert choices(Oracle(), layer, position).tolist() == want


@given(start=st.integers(0, 150), length=st.integers(1, 20))
def test_the_oracle_hands_out_all_attention_and_no_more(start: int, length: int) -> None:
    at = [list(range(start, start + length))]
    bound = Oracle().bind(shape=SHAPE, spec=SPEC)
    view = WORLD.view([1], at, layer=2, phase=Phase.PREFILL)
    bound.run("score", view)
    assert view.scores is not None
    torch.testing.assert_close(view.scores.sum(-1), torch.full((1, SHAPE.kv_heads, length), GROUP, dtype=torch.float64))
    for t, position in enumerate(at[0]):
        for head in range(SHAPE.kv_heads):
            want = brute.mass(own_query(1, head, 2, position), WORLD.keys[1, 2, head], position, SPEC)
            got = view.scores[0, head, t]
            torch.testing.assert_close(got[: len(want)], torch.tensor(want, dtype=torch.float64))
            assert (got[len(want) :] == 0).all()


def test_the_oracle_scores_the_same_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    view = WORLD.view([0, 1], [list(range(50, 80))] * 2, layer=0, phase=Phase.PREFILL)
    bound = Oracle().bind(shape=SHAPE, spec=SPEC)
    bound.run("score", view)
    whole = view.scores
    monkeypatch.setattr("sparda_core.selectors.tensors.oracle._MAX_LOGITS", 7 * 2 * SHAPE.q_heads * 80)
    bound.run("score", view)
    assert whole is not None
    torch.testing.assert_close(view.scores, whole)


PROXIES = {"entry-raw": brute.dot_scores, "entry-softmax": brute.query_scores, "token": brute.token_scores}


@given(position=positions, layer=st.integers(1, SHAPE.layers - 1), scoring=st.sampled_from(sorted(PROXIES)))
def test_infinigen_with_every_channel_chooses_as_plain_loops_do(position: int, layer: int, scoring: str) -> None:
    def score(text: int, head: int) -> list[float]:
        proxy = own_query(text, head, layer, position, source=layer - 1)
        given_query = proxy.sum(0) if scoring == "entry-raw" else proxy
        return PROXIES[scoring](given_query, WORLD.keys[text, layer, head], position, SPEC)

    selector = InfiniGen(scoring=scoring, channels=None)
    got = choices(selector, layer, position).tolist()
    if scoring != "entry-softmax":
        # dots do not depend on the newest entry; a softmax that has not seen it may weigh heads otherwise
        assert got == expected(score, position)
        return
    seen = position // SPEC.stride * SPEC.stride + SPEC.window - 1
    if SPEC.entry_count(position) == SPEC.entry_count(position + 1) and seen:
        assert got == expected(score, position)


def test_infinigen_selects_by_its_own_query_in_prefill_and_in_the_first_layer() -> None:
    proxy, own = Drive(InfiniGen(channels=4), WORLD), Drive(Query(), WORLD)
    assert (proxy.prefill(0, 120) == own.prefill(0, 120)).all()
    assert (proxy.decode([0], [120])[0] == own.decode([0], [120])[0]).all()
    assert InfiniGen().operations(0, Phase.DECODE, 0) == ("score", "select")
    assert InfiniGen().operations(1, Phase.PREFILL, 0) == ("score", "select")
    assert InfiniGen().operations(1, Phase.DECODE, 1) == ("proxy", "score", "select")


@given(position=st.integers(0, 199))
def test_dense_lists_every_block_and_window_the_forced_ones(position: int) -> None:
    world = World.random(texts=1, tokens=200, spec=SPEC.with_budget(14))
    for selector, want in ((Dense(), range(position // SPEC.block + 1)), (Window(), SPEC.forced_blocks(position))):
        got = Drive(selector, world, lead=1).decode([0], [position])
        assert (got == [*want, *[-1] * (14 - len(want))]).all()


@given(sink=st.integers(0, 4), local=st.integers(1, 4), position=st.integers(0, 199))
def test_window_needs_no_more_than_the_forced_budget(sink: int, local: int, position: int) -> None:
    forced = SPEC.__class__(block=16, window=8, stride=4, sink=sink, local=local, budget=sink + local + 1)
    world = World.random(texts=1, tokens=200, spec=forced)
    got = Drive(Window(), world, lead=0).decode([0], [position])[0, 0, 0, 0]
    assert got[got >= 0].tolist() == list(forced.forced_blocks(position))


def test_dense_refuses_a_budget_that_cannot_hold_every_block() -> None:
    drive = Drive(Dense(), WORLD, lead=0)
    drive.decode([0], [SPEC.budget * SPEC.block - 1])
    with pytest.raises(ConfigError, match=r"budget=5 must be >= 6 for selector 'dense' at position 80"):
        drive.decode([0], [SPEC.budget * SPEC.block])


def test_forecast_without_weights_says_how_to_get_them() -> None:
    bound = Forecast().bind(shape=SHAPE, spec=SPEC)
    view = WORLD.view([0], [[100]], layer=1, source=0)
    view.forecast = None
    with pytest.raises(WeightsError, match=r"layer 1.*`sparda train`.*selector 'query'"):
        bound.run("score", view)


@pytest.mark.parametrize("selector", [Query(), Oracle()], ids=lambda s: s.name)
def test_a_method_that_needs_the_true_query_refuses_to_be_early(selector: Selector) -> None:
    bound = selector.bind(shape=SHAPE, spec=SPEC)
    with pytest.raises(PlanError, match=r"layer 1 runs during layer 0.*own query"):
        bound.run("score", WORLD.view([0], [[100]], layer=1, source=0))


def test_the_oracle_refuses_keys_that_lack_the_newest_token() -> None:
    view = WORLD.view([0], [[100]], layer=1)
    full = view.keys()
    view.keys = lambda: (full[0], full[1] - 1)
    with pytest.raises(PlanError, match=r"every key up to position 100 of row 0.*gave 100"):
        Oracle().bind(shape=SHAPE, spec=SPEC).run("score", view)


def test_selecting_before_scoring_is_refused() -> None:
    with pytest.raises(PlanError, match="select/1 runs before score/1"):
        Query().bind(shape=SHAPE, spec=SPEC).run("select", WORLD.view([0], [[100]], layer=1))

"""NOSA's two stages and InfiniGen's few dimensions in a study, against loops and against the selectors."""

from __future__ import annotations

import attrs
import pytest
import torch

from sparda_core.errors import ConfigError
from sparda_core.evaluate.study.judge import judge_choices
from sparda_core.evaluate.study.methods import Method, parse_method
from sparda_core.evaluate.study.order import by_score
from sparda_core.evaluate.study.path import run_dense, run_path
from sparda_core.evaluate.study.ranks import Bounds, rank_free
from sparda_core.evaluate.study.scene import Scene
from sparda_core.evaluate.study.scores import Scorer, bias_scores
from sparda_core.kernels.shortlist.reference import shortlist_scores
from sparda_core.kernels.topk.reference import choose_blocks
from sparda_core.layer_view import EntryView
from sparda_core.models.token_bias import token_bias
from tests.evaluate import study_world as world

SPEC = world.SPEC


def scenes(*, biased: bool = True, channels: int = 0) -> list[Scene]:
    found: list[Scene] = []
    run_dense(
        world.decoder(biased=biased), world.ids(), first=world.FIRST, spec=SPEC, reach=2, channels=channels,
        consume=found.append,
    )  # fmt: skip
    return found


def scorer(select_blocks: int = 0) -> Scorer:
    return attrs.evolve(world.scorer(), select_blocks=select_blocks)


def method(name: str) -> Method:
    return parse_method(name, spec=SPEC, forecasts=world.GRIDS)


def worth(scene: Scene, group: int, row: int, block: int, grid: tuple[int, int]) -> float:
    """Best mean of the biases of a window that reaches into the block and ends no later than the query."""
    assert scene.bias is not None
    bias, position = scene.bias[group].tolist(), int(scene.positions[row])
    window, stride = grid
    first, last = block * SPEC.block, (block + 1) * SPEC.block
    starts = [s for s in range(0, position + 2 - window, stride) if s < last and s + window > first]
    best: float = max(sum(bias[start : start + window]) / window for start in starts)
    return best


@pytest.mark.parametrize(("name", "grid"), [("nosa", (4, 2)), ("nosa@8/8", (8, 8)), ("nosa-forecast:two", (4, 2))])
@pytest.mark.parametrize("select_blocks", [0, 3])
def test_some_blocks_go_by_the_score_and_all_others_by_their_bias(
    name: str, grid: tuple[int, int], select_blocks: int
) -> None:
    mine = method(name)
    stages = []
    for scene in scenes():
        bounds = Bounds.of(scene.positions, scene.blocks, SPEC)
        score = world.scorer()(mine, scene)
        order = scorer(select_blocks).order(mine, scene, bounds)
        for free in (3, 7):
            first = 2 if select_blocks else max(1, round(free * 23 / 78))
            for row, group in ((0, 1), (29, 0), (59, 1)):
                there = bounds.free[row].nonzero()[:, 0].tolist()
                by_score_ = sorted(there, key=lambda b: (-float(score[group, row, b]), b))[:first]
                others = [b for b in there if b not in by_score_]
                by_bias = sorted(others, key=lambda b: (-worth(scene, group, row, b, grid), b))[: free - first]
                got = order.chosen(free)[group, row].nonzero()[:, 0].tolist()
                assert got == sorted([*by_score_, *by_bias]), (scene.layer, free, row, group)
                stages.append((set(by_score_), set(by_bias), set(there)))
    assert any(by_bias and by_bias != there - by_score_ for by_score_, by_bias, there in stages)


@pytest.mark.parametrize("name", ["nosa", "nosa-forecast:a.s0"])
def test_a_study_chooses_what_the_selector_does(name: str) -> None:
    mine, select_blocks = method(name), 3
    spec = SPEC.with_budget(8)
    for scene in scenes():
        assert scene.bias is not None
        bounds = Bounds.of(scene.positions, scene.blocks, spec)
        bias_GC = scene.bias.unfold(-1, SPEC.window, SPEC.stride).mean(-1)
        counts = torch.tensor([bias_GC.shape[1]])
        means = EntryView(buffer=bias_GC[None, ..., None], rows=torch.tensor([0]), counts=counts)
        keep = spec.sink + spec.local + select_blocks
        positions = scene.positions[None]
        ranked = shortlist_scores(world.scorer()(mine, scene)[None], means, positions, spec, keep=keep)
        want = choose_blocks(ranked, positions, spec)[0]
        got = scorer(select_blocks).order(mine, scene, bounds).chosen(spec.free) | bounds.forced
        for group, row in ((0, 0), (1, 31), (1, 59)):
            assert got[group, row].nonzero()[:, 0].tolist() == [b for b in want[group, row].tolist() if b >= 0]


def test_as_many_blocks_go_by_the_score_as_at_the_published_budget_in_proportion() -> None:
    assert by_score(78, 0) == 23  # 96 blocks, of which sink 1 and local 16 + 1 are forced
    assert [by_score(free, 0) for free in (1, 3, 7, 11, 27)] == [1, 1, 2, 3, 8]
    assert by_score(78, 24) == 23


def test_a_path_and_choices_of_two_stages_differ_from_those_of_one() -> None:
    decoder, spec = world.decoder(biased=True), SPEC
    dense = run_dense(decoder, world.ids(), first=world.FIRST, spec=spec)
    out = {
        name: run_path(decoder, dense, method(name), 9, scorer=scorer(), spec=spec)
        for name in ("query", "nosa", "nosa-forecast:a.s0")
    }
    assert not torch.allclose(out["query"], out["nosa"])
    assert not torch.allclose(out["nosa"], out["nosa-forecast:a.s0"])
    all_of_them = spec.block_count(world.TOKENS) + 3
    everything = run_path(decoder, dense, method("nosa"), all_of_them, scorer=scorer(), spec=spec)
    torch.testing.assert_close(everything, dense.out, rtol=1e-10, atol=1e-11)


def test_misses_of_two_stages_are_counted_at_every_budget_under_every_policy() -> None:
    names = ("query", "nosa", "nosa-forecast:a.s0")
    methods = tuple(method(name) for name in names)
    config = world.config(slot_budgets=(6, 9))
    _, row = judge_choices(world.decoder(biased=True), world.ids(), methods, config, scorer())
    for name in names:
        for budget in ("6", "9"):
            found = row["misses"][name][budget]
            assert found["all"] == int(budget)
            assert found["lru"]["1"] == pytest.approx(found["fresh"])
            assert found["score"]["1"] == pytest.approx(found["fresh"])
            assert found["score"]["4"] <= found["score"]["2"] <= found["score"]["1"]
    churn = row["choice"]["nosa"]["churn"]["9"]
    assert all(0 <= value <= 1 for value in churn)
    assert row["choice"]["nosa"]["recall_query"]["9"] != [1, 1, 1]


def test_a_model_without_a_bias_has_no_second_stage() -> None:
    scene = scenes(biased=False)[0]
    with pytest.raises(ConfigError, match="no token bias"):
        bias_scores(scene, (4, 2))


def test_the_bias_of_a_scene_is_the_models_own() -> None:
    decoder, seen = world.decoder(biased=True), scenes()
    positions = torch.arange(world.TOKENS)[None]
    p = decoder.project(0, decoder.embed(world.ids()[None]), positions)
    weights = decoder.layer_weights(0).token_bias
    assert weights is not None
    assert seen[0].bias is not None
    torch.testing.assert_close(seen[0].bias, token_bias(weights, p.v)[0])


@pytest.mark.parametrize("channels", [3, 8])
def test_infinigen_as_released_scores_keys_in_the_dimensions_that_the_text_before_is_strong_in(channels: int) -> None:
    mine = attrs.evolve(method("infinigen-released"), channels=channels)
    for scene in scenes(biased=False, channels=channels)[1:]:
        bounds = Bounds.of(scene.positions, scene.blocks, SPEC)
        rank = rank_free(world.scorer()(mine, scene), bounds.free)
        if channels == 8:  # all there are
            every = rank_free(world.scorer()(method("infinigen-token"), scene), bounds.free)
            assert bool((rank == every).all())
            continue
        skew = scene.skew
        assert skew is not None
        assert skew.shape == (2, 8, 3)
        proxy = scene.proxy()
        for group, row in ((0, 0), (1, 30), (0, 59)):
            position, best = int(scene.positions[row]), {}
            kept = scene.k[group] @ skew[group] @ skew[group].T  # what is left of each key
            for block in bounds.free[row].nonzero()[:, 0].tolist():
                tokens = range(max(0, block * SPEC.block - 1), min(position + 1, (block + 1) * SPEC.block))
                logits = [sum(float(proxy[h, row] @ kept[t]) for h in (2 * group, 2 * group + 1)) for t in tokens]
                best[block] = max(logits)
            order = sorted(best, key=lambda b: (-best[b], b))
            assert rank[group, row].argsort()[: len(order)].tolist() == order


def test_the_rotation_is_made_from_the_first_tokens_and_its_dimensions_chosen_by_all_before_the_judged_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sparda_core.evaluate.study.path.CALIBRATION", 20)
    positions = torch.arange(world.FIRST)[None]
    decoder = world.decoder()
    q_HTD = decoder.project(0, decoder.embed(world.ids()[None, : world.FIRST]), positions).q[0]
    skew = scenes(biased=False, channels=3)[0].skew
    assert skew is not None
    for group in range(2):
        mine = q_HTD[2 * group : 2 * group + 2]
        mean = mine[:, :20].mean(0)
        _, vectors = torch.linalg.eigh(mean.T @ mean)
        strength = (mine @ vectors).abs().sum((0, 1))
        kept = vectors[:, strength.argsort(descending=True)[:3]]
        # The same directions, in whatever order.
        torch.testing.assert_close(skew[group] @ skew[group].T, kept @ kept.T)


def test_infinigen_as_released_is_calibrated_before_the_first_judged_position() -> None:
    a: list[Scene] = []
    b: list[Scene] = []
    tokens = world.ids()
    other = tokens.clone()
    other[world.FIRST :] = other[world.FIRST :].flip(0)
    for found, ids in ((a, tokens), (b, other)):
        run_dense(world.decoder(), ids, first=world.FIRST, spec=SPEC, channels=3, consume=found.append)
    for mine, theirs in zip(a, b, strict=True):
        torch.testing.assert_close(mine.skew, theirs.skew)
    with pytest.raises(ConfigError, match="skew"):
        world.scorer()(method("infinigen-released"), scenes(biased=False)[1])

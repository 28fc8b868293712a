"""Scores, ranks and paths of a study against loops that anyone can read, in float64."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from sparda_core.evaluate.study import path as path_module
from sparda_core.evaluate.study import scores as scores_module
from sparda_core.evaluate.study.answers import compare
from sparda_core.evaluate.study.methods import Method
from sparda_core.evaluate.study.path import run_dense, run_path
from sparda_core.evaluate.study.ranks import Bounds, captured, chance, churn, rank_free, recall
from sparda_core.evaluate.study.scene import Scene
from sparda_core.models.decoder import Decoder
from sparda_core.models.tiny import tiny_model
from tests.evaluate import study_world as world

SPEC = world.SPEC


def scenes(decoder: Decoder) -> list[Scene]:
    found: list[Scene] = []
    run_dense(decoder, world.ids(), first=world.FIRST, spec=SPEC, reach=2, consume=found.append)
    return found


def brute(method: Method, scene: Scene, group: int, row: int) -> list[float]:
    """Block scores of one query and KV head, entry by entry."""
    position, layer = int(scene.positions[row]), scene.layer
    k = scene.k[group]
    size = world.SHAPE.group
    kind = method.kind
    lead = {"a": 1, "t": 2}[method.label[0]] if kind == "forecast" else int(kind.startswith("infinigen"))
    source = layer - lead if layer >= lead else layer
    if kind.startswith("infinigen") and not layer:
        kind = "query"  # it has no earlier layer to look at

    def rotated(weight: torch.Tensor) -> torch.Tensor:
        flat = (scene.inputs[source][row] @ weight.t()).view(1, 1, -1, 8)
        return scene.decoder.rotation(torch.tensor([[position]])).apply(flat)[0, 0]

    if kind == "forecast":
        queries = rotated(world.scorer().forecasts[method.label].by_target[layer])[group : group + 1]
    elif kind.startswith("infinigen"):
        queries = rotated(scene.decoder.query_weight(layer))[size * group : size * (group + 1)]
    else:
        queries = scene.q[size * group : size * (group + 1), row]
    if kind in ("oracle", "infinigen-token"):
        window, stride = 1, 1
    else:
        window, stride = method.grid or (SPEC.window, SPEC.stride)
    starts = [s for s in range(0, len(k), stride) if s + window - 1 <= position]
    means = [k[s : s + window].mean(0).tolist() for s in starts]
    logits = [[sum(map(operator.mul, q, c)) / math.sqrt(8) for c in means] for q in queries.tolist()]
    if kind == "oracle" and scene.bias is not None:
        logits = [[x + float(b) for x, b in zip(row_, scene.bias[group], strict=False)] for row_ in logits]
    if kind in ("query", "infinigen-softmax", "oracle"):
        shares = [[math.exp(x) / sum(math.exp(y) for y in row_) for x in row_] for row_ in logits]
        values = [sum(column) for column in zip(*shares, strict=True)]
    else:
        values = [sum(column) for column in zip(*logits, strict=True)]
    blocks = []
    for block in range(scene.blocks):
        first, last = block * SPEC.block, (block + 1) * SPEC.block
        reach = 1 if kind == "infinigen-token" else 0  # the release's pool takes the token before, too
        mine = [v for s, v in zip(starts, values, strict=True) if s < last and s + window + reach > first]
        blocks.append((sum(mine) if kind == "oracle" else max(mine)) if mine else -math.inf)
    return blocks


RANKING = [method for method in world.methods() if method.kind not in ("random", "window", "infinigen-released")]


@pytest.mark.parametrize(
    ("method", "biased"),
    [*((method, False) for method in RANKING), *((method, True) for method in RANKING if method.name == "oracle")],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_every_method_ranks_free_blocks_as_a_loop_does(method: Method, *, biased: bool) -> None:
    scorer = world.scorer()
    for scene in scenes(world.decoder(biased=biased)):
        bounds = Bounds.of(scene.positions, scene.blocks, SPEC)
        rank = rank_free(scorer(method, scene), bounds.free)
        for row in (0, 29, 59):
            free = bounds.free[row].nonzero()[:, 0].tolist()
            for group in range(2):
                want = brute(method, scene, group, row)
                order = sorted(free, key=lambda b: (-want[b], b))
                assert rank[group, row].argsort()[: len(free)].tolist() == order, (scene.layer, row, group)


def test_the_loop_would_notice_another_grid_or_layer() -> None:
    scene = scenes(world.decoder())[2]
    query, coarse, forecast, early = world.methods("query", "query@8/8", "forecast:a.s0", "infinigen-entry")
    tables = [brute(m, scene, 0, 5) for m in (query, coarse, forecast, early)]
    assert len({tuple(table) for table in tables}) == 4


@pytest.mark.parametrize("name", ["query", "oracle", "infinigen-token", "forecast:a.s1", "query@1/1"])
def test_a_few_queries_at_a_time_score_as_all_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer, (method,) = world.scorer(), world.methods(name)
    scene = scenes(world.decoder())[1]
    whole = scorer(method, scene)
    monkeypatch.setattr(scores_module, "MOST_LOGITS", {"cpu": 7 * 2 * world.TOKENS})
    torch.testing.assert_close(scorer(method, scene), whole, rtol=1e-12, atol=1e-14)


def test_attention_mass_is_that_of_every_block_and_sums_to_one() -> None:
    scene = scenes(world.decoder())[1]
    (oracle,) = world.methods("oracle")
    mass = world.scorer()(oracle, scene)
    torch.testing.assert_close(mass.sum(-1), torch.ones_like(mass[..., 0]))
    want = [share / world.SHAPE.group for share in brute(oracle, scene, 1, 7)[:10]]
    torch.testing.assert_close(mass[1, 7, :10], torch.tensor(want, dtype=torch.float64))


def by_hand(decoder: Decoder, method: Method, budget: int) -> torch.Tensor:
    """The sparse path position by position and head by head, from scratch."""
    ids, scorer, free = world.ids(), world.scorer(), budget - SPEC.forced
    x = decoder.embed(ids[None])
    positions = torch.arange(world.TOKENS)
    inputs: dict[int, torch.Tensor] = {}
    for layer in range(3):
        p = decoder.project(layer, x, positions[None])
        inputs[layer] = p.x_norm[0, world.FIRST :]
        scene = Scene(
            decoder=decoder, spec=SPEC, layer=layer, positions=positions[world.FIRST :], q=p.q[0, :, world.FIRST :],
            k=p.k[0], inputs=dict(inputs), turn=decoder.rotation(positions[None, world.FIRST :]),
            bias=None if p.bias is None else p.bias[0],
        )  # fmt: skip
        score = scorer(method, scene)
        out = torch.zeros(4, world.TOKENS, 8, dtype=torch.float64)
        for head in range(4):
            for position in range(world.TOKENS):
                seen = list(range(position + 1))
                if position >= world.FIRST:  # before, everything is dense
                    forced = set(SPEC.forced_blocks(position))
                    mine = score[head // 2, position - world.FIRST].tolist()
                    others = [b for b in range(position // 8 + 1) if b not in forced]
                    blocks = forced | set(sorted(others, key=lambda b: (-mine[b], b))[:free])
                    seen = [t for t in seen if t // 8 in blocks]
                logit = p.q[0, head, position] @ p.k[0, head // 2, seen].t() / math.sqrt(8)
                logit = logit if p.bias is None else logit + p.bias[0, head // 2, seen]
                out[head, position] = logit.softmax(-1) @ p.v[0, head // 2, seen]
        x = decoder.mlp(layer, decoder.output(layer, x, out[None]))
    return x[0, world.FIRST :]


@pytest.mark.parametrize(
    ("name", "biased"),
    [("query", False), ("forecast:two", False), ("infinigen-token", False), ("query", True), ("oracle", True)],
)
def test_a_sparse_path_is_what_a_loop_over_heads_and_positions_gives(
    name: str, *, biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_module, "MOST_MASK", {"cpu": 11 * 4 * world.TOKENS})
    decoder, (method,) = world.decoder(biased=biased), world.methods(name)
    dense = run_dense(decoder, world.ids(), first=world.FIRST, spec=SPEC)
    got = run_path(decoder, dense, method, 6, scorer=world.scorer(), spec=SPEC)
    torch.testing.assert_close(got, by_hand(decoder, method, 6), rtol=1e-10, atol=1e-11)
    assert not torch.allclose(got, dense.out)


@pytest.mark.parametrize(("name", "biased"), [("random", False), ("forecast:a.s1", False), ("random", True)])
def test_a_budget_for_every_block_is_the_dense_model(name: str, *, biased: bool) -> None:
    decoder, (method,) = world.decoder(biased=biased), world.methods(name)
    dense = run_dense(decoder, world.ids(), first=world.FIRST, spec=SPEC)
    out = run_path(decoder, dense, method, SPEC.block_count(world.TOKENS) + 3, scorer=world.scorer(), spec=SPEC)
    torch.testing.assert_close(out, dense.out, rtol=1e-10, atol=1e-11)
    found = compare(decoder, dense.out[:-1], out[:-1], world.ids()[world.FIRST + 1 :])
    assert found.kl == pytest.approx(0, abs=1e-12)
    assert found.agreement == 1
    assert found.nll == pytest.approx(found.dense_nll)


def test_answers_are_those_of_all_logits_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from sparda_core.evaluate import metrics
    from sparda_core.evaluate.study import answers

    decoder, (method,) = world.decoder(), world.methods("window")
    dense = run_dense(decoder, world.ids(), first=world.FIRST, spec=SPEC)
    out = run_path(decoder, dense, method, 6, scorer=world.scorer(), spec=SPEC)
    target = world.ids()[world.FIRST + 1 :]
    monkeypatch.setattr(answers, "MOST", {"cpu": 9 * world.SHAPE.vocab})
    found = compare(decoder, dense.out[:-1], out[:-1], target)
    right, sparse = (decoder.head(x[None, :-1])[0] for x in (dense.out, out))
    assert found.kl == pytest.approx(float(metrics.kl_from_dense(right, sparse).mean()))
    assert found.agreement == pytest.approx(float(metrics.next_token_match(right, sparse).double().mean()))
    assert found.nll == pytest.approx(float(metrics.token_nll(sparse, target).mean()))
    assert found.kl > 0


def test_answers_of_a_bfloat16_model_come_from_unrounded_logits() -> None:
    narrow = tiny_model(dtype=torch.bfloat16, forecast=False).decoder
    _, head, norm = (weight.double() for weight in narrow.table_weights)
    x = torch.randn(40, 32, generator=torch.Generator().manual_seed(1)).bfloat16()
    other = (x.float() + 0.01).bfloat16()

    def kl(logits: Callable[[torch.Tensor], torch.Tensor]) -> float:
        log_p, log_q = (logits(y).log_softmax(-1) for y in (x, other))
        return float((log_p.exp() * (log_p - log_q)).sum(-1).mean())

    want = kl(lambda y: F.rms_norm(y.double(), (32,), norm, narrow.config.norm_eps) @ head.t())
    found = compare(narrow, x, other, torch.zeros(40, dtype=torch.int64)).kl
    assert found == pytest.approx(want, rel=1e-3)
    assert kl(lambda y: narrow.head(y[None])[0].double()) != pytest.approx(want, rel=1e-2)


def test_equal_scores_go_to_the_lower_id_and_free_blocks_come_first() -> None:
    free = torch.tensor([[False, True, True, True, False]])
    score = torch.tensor([[[9.0, 1.0, 2.0, 1.0, 9.0]], [[0.0, -math.inf, -math.inf, 0.0, 5.0]]])
    rank = rank_free(score, free)
    assert rank[:, 0].tolist() == [[3, 1, 0, 2, 4], [3, 1, 2, 0, 4]]


def test_recall_mass_chance_and_churn_are_what_counting_gives() -> None:
    bounds = Bounds.of(torch.arange(40, 44), 6, SPEC)  # blocks 1 .. 3 are free, 0, 4 and 5 forced
    assert bounds.free[0].tolist() == [False, True, True, True, False, False]
    assert bounds.forced[0].tolist() == [True, False, False, False, True, True]
    rank = torch.tensor([[[5, 0, 1, 2, 5, 5], [5, 0, 2, 1, 5, 5], [5, 0, 2, 1, 5, 5], [5, 2, 0, 1, 5, 5]]])
    chosen = bounds.chosen(rank, 2)
    assert churn(chosen, bounds.forced) == pytest.approx(2 / 6)  # one new at the second step, one at the fourth
    other = bounds.chosen(torch.tensor([[[5, 2, 1, 0, 5, 5]] * 4]), 2)
    assert recall(chosen, other) == pytest.approx((1 + 1 + 1 + 2) / 8)
    assert chance(bounds.free, 2) == pytest.approx(2 / 3)
    mass = torch.tensor([0.1, 0.2, 0.3, 0.1, 0.1, 0.2]).expand(1, 4, 6)
    assert captured(mass, chosen) == pytest.approx((0.5 + 0.3 + 0.3 + 0.4) / 4)


def test_churn_is_that_of_the_tally_of_selections() -> None:
    from sparda_core.evaluate.churn import ChurnTally

    scene = scenes(world.decoder())[1]
    bounds = Bounds.of(scene.positions, scene.blocks, SPEC)
    (query,) = world.methods("query")
    chosen = bounds.chosen(rank_free(world.scorer()(query, scene), bounds.free), 3)
    tally = ChurnTally(spec=SPEC)
    selected = (chosen | bounds.forced)[None].numpy()
    ids = [[[[b for b in range(scene.blocks) if row[b]] for row in head] for head in selected[0]]]
    import numpy as np

    lists = np.full((*selected.shape[:3], 6), -1, np.int32)
    for h, head in enumerate(ids[0]):
        for t, row in enumerate(head):
            lists[0, h, t, : len(row)] = row
    tally.add(lists[:, :, 1:], lists[:, :, :-1], scene.positions[None, 1:].numpy())
    assert churn(chosen, bounds.forced) == pytest.approx(tally.result().free)

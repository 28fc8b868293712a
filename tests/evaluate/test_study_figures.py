"""Names of methods, intervals over documents, and figures made from rows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sparda_core.errors import ConfigError, UnknownNameError
from sparda_core.evaluate.study.bootstrap import Draws
from sparda_core.evaluate.study.config import StudyConfig
from sparda_core.evaluate.study.figures import corrected, pairs, window_values
from sparda_core.evaluate.study.methods import KINDS, parse_method, parse_methods
from sparda_core.evaluate.study.report import make_report
from sparda_core.shapes import BlockSpec, named_shape

SPEC = BlockSpec()
SHAPE = named_shape("smollm2-135m")


def test_a_method_is_known_by_its_name_grid_and_bytes() -> None:
    forecasts = {"fine": (32, 16), "own-grid": (4, 4)}
    names = [
        "oracle", "query", "query@8/8", "forecast", "forecast:fine@4/4", "infinigen-token", "infinigen-released",
        "nosa", "nosa-forecast:fine",
    ]  # fmt: skip
    got = {m.name: m for m in parse_methods(names, spec=SPEC, forecasts=forecasts)}
    grids = {name: m.grid for name, m in got.items()}
    assert grids == {
        "oracle": None, "query": (32, 16), "query@8/8": (8, 8), "forecast:fine": (32, 16), "forecast:own-grid": (4, 4),
        "forecast:fine@4/4": (4, 4), "infinigen-token": None, "infinigen-released": None, "nosa": (32, 16),
        "nosa-forecast:fine": (32, 16),
    }  # fmt: skip
    assert got["query"].share_of_k(SHAPE) == 1 / 16
    assert got["forecast:fine@4/4"].index_bytes_per_token(SHAPE) == 2 * 3 * 64 / 4
    assert got["infinigen-token"].share_of_k(SHAPE) == 1
    assert got["infinigen-released"].share_of_k(SHAPE) == 1 / 2
    assert got["nosa"].index_bytes_per_token(SHAPE) == (2 * 3 * 64 + 4 * 3) / 16


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("qeury", UnknownNameError, "query"),
        ("query@7/7", ConfigError, "multiple of stride"),
        ("query:fine", ConfigError, "only a forecast"),
        ("oracle@8/8", ConfigError, "no grid"),
        ("forecast:coarse", UnknownNameError, "fine"),
        ("query@8", ConfigError, "KIND@WINDOW/STRIDE"),
    ],
)
def test_a_method_that_cannot_be_is_refused_with_the_way_out(text: str, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        parse_method(text, spec=SPEC, forecasts={"fine": (32, 16)})


def test_a_forecast_without_a_file_is_left_out_of_the_default_and_refused_by_name() -> None:
    kinds = [m.kind for m in parse_methods(tuple(KINDS), spec=SPEC, forecasts={})]
    assert kinds == [kind for kind in KINDS if kind not in ("forecast", "nosa-forecast")]
    with pytest.raises(ConfigError, match="LABEL=FILE"):
        parse_method("forecast@8/8", spec=SPEC, forecasts={})
    with pytest.raises(ConfigError, match="named twice"):
        parse_methods(["query", "query"], spec=SPEC, forecasts={})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"budgets": (5, 8)}, "forced=5"),
        ({"budgets": (16, 8)}, "must rise"),
        ({"budgets": ()}, "at least one"),
        ({"first": 8191}, "two positions"),
        ({"tasks": ("riddle",)}, "passkey"),
        ({"select_blocks": 5}, r"8 must be >= 9 = sink \+ local \+ select_blocks=5"),
    ],
)
def test_a_study_that_cannot_be_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        StudyConfig(**changes)  # type: ignore[arg-type]


def test_an_interval_draws_whole_documents() -> None:
    documents = ["a", "a", "a", "b", "c", "d"]
    values = [1.0, 1.0, 1.0, 2.0, 3.0, 4.0]
    draws = Draws.of(documents, seed=0)
    # Rows of one document always come together, and all documents are drawn as often as there are some.
    assert (draws.weights[:, 0] == draws.weights[:, 2]).all()
    assert (draws.weights[:, [0, 3, 4, 5]].sum(1) == 4).all()
    got = draws.mean(values)
    assert got.value == 2.0
    each = [np.average(values, weights=w) for w in draws.weights]
    assert (got.low, got.high) == pytest.approx((np.percentile(each, 2.5), np.percentile(each, 97.5)))
    apart = Draws.of([str(i) for i in range(6)], seed=0).mean(values)
    assert got.high - got.low > apart.high - apart.low
    assert Draws.of(documents, seed=0).mean(values) == got
    assert Draws.of(documents, seed=1).mean(values) != got


def test_pairs_are_tighter_than_what_they_are_made_of() -> None:
    rng = np.random.default_rng(0)
    hard = rng.lognormal(0, 1, 12)  # documents differ far more than methods do
    ours, theirs = hard * 0.9 * rng.lognormal(0, 0.02, 12), hard
    draws = Draws.of([str(i) for i in range(12)], seed=0)
    ratio = draws.ratio(list(ours), list(theirs))
    assert ratio.value == pytest.approx(math.exp(np.log(ours / theirs).mean()))
    assert 0.87 < ratio.low < ratio.value < ratio.high < 0.93
    assert draws.ratio_of_means(list(ours), list(theirs)).value == pytest.approx(ours.mean() / theirs.mean())
    assert draws.difference(list(ours), list(theirs)).high < 0
    assert draws.mean(list(ours)).high > draws.mean(list(theirs)).low


def test_what_was_not_measured_is_nan_and_left_out_of_means() -> None:
    draws = Draws.of(["a", "b"], seed=0)
    assert math.isnan(draws.mean([math.nan, math.nan]).value)
    assert draws.mean([1.0, math.nan]).value == 1.0
    with pytest.raises(ConfigError, match="no rows"):
        Draws.of([], seed=0)


def row(document: str, level: float) -> dict[str, object]:
    """A window's row with two methods and layers; layer 0 holds nonsense that no mean may see."""

    def choice(recall: float) -> dict[str, dict[str, list[float]]]:
        layers = [9.0, recall, recall + 0.2]
        return {name: {"8": layers} for name in ("recall_query", "recall_oracle", "free_mass", "churn")}

    def path(kl: float) -> dict[str, dict[str, float]]:
        return {"8": {"kl": kl, "agreement": 0.9, "nll": 2.0, "dense_nll": 1.9, "tokens": 5}}

    def moved(fresh: float) -> dict[str, object]:
        lru, score = {"1": fresh, "2": fresh / 2}, {"1": fresh, "2": fresh / 4}
        return {"8": {"all": 8.0, "free": 3.0, "fresh": fresh, "lru": lru, "score": score}}

    names = ("query", "oracle", "forecast:a.s0", "forecast:a.s1")
    scale = dict(zip(names, (1.0, 0.25, 0.8, 1.2), strict=True))
    return {
        "document": document, "chance": {"8": 0.1}, "forced_mass": [9.0, 0.5, 0.7],
        "choice": {n: choice(0.3 + 0.1 * i + level) for i, n in enumerate(names)},
        "path": {n: path(level * s) for n, s in scale.items()},
        "misses": {n: moved(s) for n, s in scale.items()},
    }  # fmt: skip


ROWS = [row("a", 0.1), row("a", 0.12), row("b", 0.2)]


def test_figures_are_means_over_layers_1_and_up_and_seeds_are_a_method_of_their_own() -> None:
    values = window_values(ROWS)
    assert values["recall_oracle", "query", 8] == pytest.approx([0.5, 0.52, 0.6])
    assert values["recall_oracle_from_2", "query", 8] == pytest.approx([0.6, 0.62, 0.7])
    assert values["total_mass", "query", 8] == pytest.approx([1.1, 1.12, 1.2])
    assert values["kl", "forecast:a (2 seeds)", 8] == pytest.approx([0.1, 0.12, 0.2])
    assert values["recall_query", "forecast:a (2 seeds)", 8] == pytest.approx([0.75, 0.77, 0.85])


def test_a_report_holds_corrected_recall_ratios_of_kl_differences_and_misses() -> None:
    report = make_report(ROWS, [], study={"config": {}}, provenance={}, methods=[], seed=0)

    def value(metric: str, method: str, **more: str) -> float:
        figure = report.find(metric, method, 8, **more)
        assert figure is not None, (metric, method, more)
        assert figure.estimate.low <= figure.estimate.value <= figure.estimate.high
        return figure.estimate.value

    assert value("recall_oracle_corrected", "query") == pytest.approx((0.54 - 0.1) / 0.9)
    assert value("kl", "forecast:a.s0", against="query") == pytest.approx(0.8)
    assert value("recall_oracle", "forecast:a.s0", against="query") == pytest.approx(0.2)
    assert value("free_mass", "query", against="oracle") == pytest.approx(0.54 / 0.64)
    assert value("misses", "oracle", detail="lru x2") == pytest.approx(0.125)
    assert value("misses", "oracle", detail="last-selection x2") == pytest.approx(0.25)
    assert value("misses", "oracle", detail="score x2", against="query") == pytest.approx(0.0625 - 0.25)
    assert value("perplexity", "query", against="dense") == pytest.approx(math.exp(0.1))
    assert value("perplexity", "query") == pytest.approx(math.exp(2.0))
    assert report.find("kl", "query", 8, against="query") is None


def prompt(sample: int, dense: float, found: dict[str, float]) -> dict[str, object]:
    """A prompt's row: exact, accuracy and loss of every method at budget 8."""
    methods = {name: {"8": [0.0, accuracy, 1.0]} for name, accuracy in found.items()}
    document = f"task-copy.{sample}"
    return {
        "task": "copy", "sample": sample, "document": document, "note": "", "tokens": 9, "dense": [1.0, dense, 0.5],
        "methods": methods,
    }  # fmt: skip


def test_tasks_are_paired_with_dense_query_driven_selection_and_every_forecast_once() -> None:
    rows = [
        prompt(0, 0.9, {"query": 0.5, "forecast:a": 0.6, "forecast:b": 0.3}),
        prompt(1, 0.8, {"query": 0.4, "forecast:a": 0.2, "forecast:b": 0.5}),
    ]
    report = make_report([], rows, study={"config": {}}, provenance={}, methods=[], seed=0)
    found = {
        (f.method, f.against): f.estimate.value for f in report.figures if f.metric == "task_accuracy" and f.against
    }
    assert found["forecast:a", "forecast:b"] == pytest.approx(0.0)
    assert found["forecast:b", "query"] == pytest.approx(-0.05)
    assert found["forecast:b", "dense"] == pytest.approx(-0.45)
    told = [(f.metric, f.method, f.budget, f.against) for f in report.figures]
    assert len(told) == len(set(told))


def test_a_path_without_any_loss_is_compared_by_difference() -> None:
    lossless = {"8": {"kl": 0.0, "agreement": 1, "nll": 1, "dense_nll": 1}}
    rows = [{**ROWS[0], "path": {"query": lossless, "oracle": lossless}}]
    found = [f for f in pairs(window_values(rows), Draws.of(["a"], seed=0), ("query",)) if f.metric == "kl"]
    assert [f.form for f in found] == ["difference"]


def test_recall_above_chance_is_no_number_where_a_blind_choice_takes_everything() -> None:
    values = {("recall_query", "query", budget): [0.75, 1.0] for budget in (8, 32)}
    got = {f.budget: f.estimate.value for f in corrected(values, {8: 0.5, 32: 1.0}, Draws.of(["a", "b"], seed=0))}
    assert got[8] == 0.75
    assert math.isnan(got[32])

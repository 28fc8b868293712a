from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from sparda_core.bench.config import CompareConfig
from sparda_core.bench.contenders import RUNTIME_NAMES, combine, contenders, refusals
from sparda_core.errors import ConfigError
from sparda_core.registry import SELECTORS
from sparda_core.selectors.recording import Recorder
from sparda_core.shapes import BlockSpec, named_shape

CONFIG = CompareConfig(spec=BlockSpec(budget=16))
SHAPE = named_shape("smollm2-135m")
BIASED = attrs.evolve(SHAPE, token_bias=True)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    recorder = Recorder(shape=SHAPE, spec=CONFIG.spec, selector="query")
    ids = [[[[0, 1, 2, 3, 4]] * SHAPE.kv_heads]] * SHAPE.layers
    recorder.add([300], ids)
    recorder.recording().save(tmp_path / "r.npz")
    return tmp_path / "r.npz"


def test_every_registered_selector_competes_and_labels_are_unique() -> None:
    every = contenders(CONFIG, BIASED, blocks=64, has_forecast=True)
    assert {c.selector for c in every} == set(SELECTORS.names())
    assert len({c.label for c in every}) == len(every)
    plain = {c.selector for c in contenders(CONFIG, SHAPE, blocks=64, has_forecast=True)}
    assert plain == set(SELECTORS.names()) - {"nosa", "nosa-forecast"}
    order = [c.label for c in every]
    assert order[0] == "dense"
    assert order.index("query") < order.index("replay")


def test_all_have_the_same_budget_but_dense() -> None:
    every = {c.label: c for c in contenders(CONFIG, SHAPE, blocks=64, has_forecast=True)}
    assert {c.spec.budget for label, c in every.items() if label != "dense"} == {16}
    assert every["dense"].spec.budget == 64
    assert every["window"].spec.forced == 16
    assert "forecast" not in {c.label for c in contenders(CONFIG, SHAPE, blocks=64, has_forecast=False)}


def test_only_pairs_that_cannot_work_are_refused_and_say_why(recording: Path) -> None:
    refused = refusals(SHAPE, contenders(CONFIG, SHAPE, blocks=64, has_forecast=True), CONFIG, recording)
    assert set(refused) == {
        "dense + offload-sync", "dense + offload-prefetch", "query + offload-prefetch", "oracle + offload-prefetch",
    }  # fmt: skip
    assert "slots=16 must be >= budget=64" in refused["dense + offload-sync"]
    assert "nearest workable choice" in refused["query + offload-prefetch"]


def test_nosa_competes_with_its_papers_share_of_blocks_by_the_query(recording: Path) -> None:
    every = contenders(attrs.evolve(CONFIG, spec=BlockSpec(local=16, budget=96)), BIASED, blocks=400, has_forecast=True)
    assert {c.options["select_blocks"] for c in every if c.selector.startswith("nosa")} == {24}
    refused = refusals(BIASED, contenders(CONFIG, BIASED, blocks=64, has_forecast=True), CONFIG, recording)
    assert [pair for pair in refused if pair.startswith("nosa")] == ["nosa + offload-prefetch"]
    without = {c.label for c in contenders(CONFIG, BIASED, blocks=64, has_forecast=False)}
    assert "nosa" in without
    assert without.isdisjoint({"forecast", "nosa-forecast"})


def test_a_replay_without_its_recording_is_refused() -> None:
    replay = next(c for c in contenders(CONFIG, SHAPE, blocks=64, has_forecast=True) if c.replays)
    with pytest.raises(ConfigError, match="needs the recording"):
        combine(SHAPE, replay, RUNTIME_NAMES[0], CONFIG)

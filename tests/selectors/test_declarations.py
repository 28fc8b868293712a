"""Declarations: torch-free, frozen, and honest about leads, operations and work."""

from __future__ import annotations

import subprocess
import sys

import attrs
import pytest

from sparda_core.compose import compose
from sparda_core.errors import ConfigError, PlanError
from sparda_core.facts import StepFacts, steady_facts
from sparda_core.plan import Op, Phase
from sparda_core.selector import Selector
from sparda_core.selectors.declaration import ScoringDeclaration
from sparda_core.selectors.infinigen import InfiniGen
from sparda_core.selectors.nosa import Nosa, NosaForecast
from sparda_core.shapes import BlockSpec, named_shape
from sparda_core.work import WorkContext
from tests.selectors.cases import CASES, ROOT, entry_points, factory
from tests.selectors.world import SHAPE, SPEC

OPTIONS = {"replay": {"path": "recording.npz"}}
LEADS = {
    "dense": None, "forecast": 1, "infinigen": 1, "nosa": 0, "nosa-forecast": 1, "oracle": 0, "query": 0,
    "random": None, "replay": None, "window": None,
}  # fmt: skip
MODEL = named_shape("smollm2-135m")
CONTEXT = WorkContext(shape=MODEL, spec=BlockSpec())


def facts(*, batch: int = 2, context: int = 4096) -> StepFacts:
    return steady_facts(shape=MODEL, spec=CONTEXT.spec, batch=batch, context=context, churn=0.1)


def every() -> list[Selector]:
    made = [factory(name)(**OPTIONS.get(name, {})) for name in CASES]
    return [*made, InfiniGen(scoring="entry-raw"), InfiniGen(scoring="entry-softmax"), InfiniGen(channels=None)]


EVERY = pytest.mark.parametrize("selector", every(), ids=repr)


def kinds(selector: Selector) -> set[str]:
    lead = 1 if selector.lead is None else selector.lead
    return {kind for phase in Phase for early in (0, lead) for kind in selector.operations(5, phase, early)}


def test_declaring_and_asking_for_work_never_loads_torch_or_numba() -> None:
    script = """
import sys, importlib
from sparda_core.plan import Op, Phase
from sparda_core.facts import steady_facts
from sparda_core.shapes import BlockSpec, named_shape
from sparda_core.work import WorkContext
shape, spec = named_shape("smollm2-135m"), BlockSpec()
facts = steady_facts(shape=shape, spec=spec, batch=1, context=4096, churn=0.1)
for point in sys.argv[1:]:
    module, _, name = point.partition(":")
    factory = getattr(importlib.import_module(module), name)
    selector = factory(path="r.npz") if name == "Replay" else factory()
    for phase in Phase:
        for lead in (0, 1):
            for kind in selector.operations(2, phase, lead):
                selector.work(Op(kind=kind, layer=2, source=2 - lead), facts, WorkContext(shape=shape, spec=spec))
import sparda_core.selectors.observer
loaded = {"torch", "numba"} & set(sys.modules)
sys.exit(f"loaded {loaded}" if loaded else 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, *entry_points().values()], cwd=ROOT, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_leads_are_those_that_were_settled() -> None:
    assert {name: factory(name)(**OPTIONS.get(name, {})).lead for name in CASES} == LEADS


@EVERY
def test_options_are_frozen_and_selectors_with_equal_options_are_equal(selector: Selector) -> None:
    same = attrs.evolve(selector)  # type: ignore[misc]
    assert selector == same
    assert hash(selector) == hash(same)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        selector.lead = 3


@EVERY
def test_the_last_operation_selects_and_each_has_work(selector: Selector) -> None:
    for phase in Phase:
        for lead in (0, 1):
            ops = selector.operations(5, phase, lead)
            assert ops[-1] == "select"
            for kind in ops:
                work = selector.work(Op(kind=kind, layer=5, source=5 - lead), facts(), CONTEXT)
                assert min(work.flops, work.hbm_bytes, work.h2d_bytes, work.launches) >= 0
                assert (work.flops + work.hbm_bytes > 0) != selector.measuring
                # A scored choice before a diff is the diff's.
                along = kind == "select" and isinstance(selector, ScoringDeclaration)
                assert (work.launches > 0) != (selector.measuring or along)


@EVERY
def test_work_of_an_undeclared_kind_is_refused(selector: Selector) -> None:
    with pytest.raises(PlanError, match="'attend/5'"):
        selector.work(Op(kind="attend", layer=5), facts(), CONTEXT)


@EVERY
def test_more_rows_are_never_less_work(selector: Selector) -> None:
    for kind in kinds(selector):
        op = Op(kind=kind, layer=5, source=4)
        small, large = (selector.work(op, facts(batch=batch), CONTEXT) for batch in (1, 4))
        assert large.flops >= small.flops
        assert large.hbm_bytes >= small.hbm_bytes
        if not selector.measuring:
            assert large.hbm_bytes > small.hbm_bytes


def test_scoring_fewer_channels_reads_less() -> None:
    op = Op(kind="score", layer=5, source=4)
    narrow, wide = (InfiniGen(channels=c).work(op, facts(), CONTEXT) for c in (16, None))
    assert narrow.hbm_bytes < wide.hbm_bytes
    assert narrow.flops < wide.flops


def test_the_proxy_is_one_product_with_the_targets_query_weights() -> None:
    op = Op(kind="proxy", layer=5, source=4)
    work = InfiniGen(scoring="entry-raw").work(op, facts(batch=3), CONTEXT)
    outputs = MODEL.q_heads * MODEL.head_dim
    assert work.flops == 2 * 3 * MODEL.hidden * outputs
    assert work.hbm_bytes == 2 * MODEL.hidden * outputs + 3 * 2 * (MODEL.hidden + outputs)
    assert work.launches == 2  # the product, its rotary
    kept = InfiniGen(channels=8).work(op, facts(batch=3), CONTEXT)
    assert kept.launches == 4  # and the query's channels, the new key's channels
    assert kept.flops - work.flops == 2 * 3 * 8 * MODEL.head_dim * (MODEL.q_heads + MODEL.kv_heads)


@pytest.mark.parametrize(("layer", "slots", "launches"), [(5, 0, 1), (5, 32, 0), (0, 32, 1)])
def test_a_scored_choice_is_the_diffs_where_one_follows(layer: int, slots: int, launches: int) -> None:
    made = attrs.evolve(facts(), slots=slots)
    op = Op(kind="select", layer=layer)
    assert factory("query")().work(op, made, attrs.evolve(CONTEXT, resident_layers=1)).launches == launches


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channels": 0}, "channels=0 must be an integer >= 1, or None"),
        ({"channels": 2.0}, "channels=2.0 must be"),
        ({"channels": True}, "channels=True must be"),
        ({"calibration_tokens": 0}, "calibration_tokens=0 must be"),
        ({"scoring": "tokens"}, "scoring='tokens' is unknown; known: token, entry-raw, entry-softmax"),
    ],
)
def test_a_bad_option_is_refused_when_it_is_given(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        InfiniGen(**options)  # type: ignore[arg-type]


def test_nosa_is_refused_where_its_first_stage_has_no_room_or_the_model_no_bias() -> None:
    nosa, spec = named_shape("nosa-8b"), BlockSpec(sink=1, local=16, budget=96)
    assert Nosa().keep(spec) == 41
    Nosa().check(nosa, spec)
    with pytest.raises(ConfigError, match=r"budget=40 must be >= 41 for selector 'nosa-forecast'.*lower select_blocks"):
        NosaForecast().check(nosa, spec.with_budget(40))
    with pytest.raises(ConfigError, match="'smollm2-135m' has none: take a NOSA model"):
        compose(MODEL, "nosa", "resident", spec=spec)
    with pytest.raises(ConfigError, match="select_blocks=0 must be an integer >= 1"):
        Nosa(select_blocks=0)


def test_more_channels_than_dimensions_are_refused_when_the_model_is_known() -> None:
    with pytest.raises(ConfigError, match="channels=9 must be <= head_dim=8"):
        InfiniGen(channels=9).bind(shape=SHAPE, spec=SPEC)
    InfiniGen(channels=9, scoring="entry-raw").bind(shape=SHAPE, spec=SPEC)

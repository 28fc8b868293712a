"""Forecasts of any lead: taken from the weights, made from the input of the layer so far before, refused elsewhere."""

from __future__ import annotations

import attrs
import pytest
import torch

from sparda_core.compose import compose, make_selector
from sparda_core.errors import ConfigError
from sparda_core.facts import steady_facts
from sparda_core.kernels.linear.work import project_work
from sparda_core.layer_view import LayerView
from sparda_core.models.decoder import Decoder
from sparda_core.models.tiny import tiny_model
from sparda_core.plan import Kind, Op
from sparda_core.work import WorkContext
from tests.agreement.worlds import SHAPE, SPEC, TOKENS
from tests.simulator.test_same_order import names, simulated

FIVE = attrs.evolve(SHAPE, layers=5)


@pytest.mark.parametrize("runtime", ["resident", "offload-sync", "offload-prefetch"])
@pytest.mark.parametrize("lead", [1, 2, 4])
def test_each_layer_selects_by_the_input_of_the_layer_so_far_before_it(runtime: str, lead: int) -> None:
    model = tiny_model(FIVE, seed=7, dtype=torch.float64, lead=lead)
    pair = compose(model, runtime=runtime, spec=SPEC)
    forecasts: dict[int, torch.Tensor] = {}
    inputs: dict[int, torch.Tensor] = {}

    def chosen(view: LayerView) -> None:
        assert view.forecast is not None
        assert view.layer - view.source == (lead if view.layer >= lead else 0)
        forecasts[view.layer] = view.forecast.clone()

    def attended(view: LayerView) -> None:
        inputs[view.layer] = view.x.clone()

    with pair.open_cpu(page_blocks=2) as session:
        session.on_selection, session.on_layer = chosen, attended
        row = session.add()
        session.prefill(row, TOKENS[:70])
        for token in TOKENS[70:76]:
            position = session.length(row)
            session.decode({row: token})
            for layer in range(FIVE.layers):
                made_of = inputs[layer - lead if layer >= lead else layer]
                want = by_hand(model.decoder, layer, made_of, position)
                torch.testing.assert_close(forecasts[layer], want, rtol=1e-10, atol=1e-10)


def by_hand(decoder: Decoder, target: int, x_norm: torch.Tensor, position: int) -> torch.Tensor:
    """W x, rotated to the token's position, [1, Hk, 1, D]."""
    assert decoder.forecast is not None
    flat = (x_norm[0, 0] @ decoder.forecast.by_target[target].T).view(1, 1, FIVE.kv_heads, FIVE.head_dim)
    return decoder.rotation(torch.tensor([[position]])).apply(flat).transpose(1, 2)


def test_a_named_selector_takes_the_lead_of_the_weights_and_an_option_wins() -> None:
    model = tiny_model(FIVE, seed=7, dtype=torch.float64, lead=3)
    assert compose(model, "forecast", spec=SPEC).plan().lead == 3
    assert compose(model.decoder, "forecast", spec=SPEC).plan().resident_layers == 3
    assert make_selector(FIVE, "forecast").lead == 1
    assert make_selector(model, "infinigen").lead == 1
    asked = compose(model, "forecast", spec=SPEC, selector_options={"lead": 2})
    assert asked.plan().lead == 2
    with pytest.raises(ConfigError, match=r"lead=2 of selector 'forecast' must be 3.*leave lead out"):
        asked.open()


def test_selectors_that_need_no_forecast_do_not_care_for_its_lead() -> None:
    model = tiny_model(FIVE, seed=7, dtype=torch.float64, lead=3)
    with compose(model, "query", "offload-sync", spec=SPEC).open_cpu() as session:
        row = session.add()
        session.prefill(row, TOKENS[:40])
        assert session.decode({row: 1}).logits.isfinite().all()


@pytest.mark.parametrize("lead", [1, 2, 4])
def test_the_work_of_a_projection_counts_the_rows_that_a_layer_has(lead: int) -> None:
    decoder = tiny_model(FIVE, seed=7, dtype=torch.float64, lead=lead).decoder
    context = WorkContext(shape=FIVE, spec=SPEC, forecast=True, forecast_lead=lead)
    facts = steady_facts(shape=FIVE, spec=SPEC, batch=3, context=90, churn=0.1)
    for layer in range(FIVE.layers):
        work = project_work(Op(kind=Kind.PROJECT, layer=layer), facts, context)
        assert work.flops == 2 * 3 * decoder.layer_weights(layer).fused.numel()


@pytest.mark.parametrize("runtime", ["offload-sync", "offload-prefetch"])
def test_what_ran_with_a_longer_lead_is_what_is_simulated_in_the_same_order(runtime: str) -> None:
    model = tiny_model(FIVE, seed=7, dtype=torch.float64, lead=2)
    pair = compose(model, "forecast", runtime, spec=SPEC, page_blocks=2)
    with pair.open(timeline=True) as session:
        row = session.add()
        session.prefill(row, TOKENS[:90])
        for token in TOKENS[90:94]:
            result = session.decode({row: token})
            assert result.timeline is not None
            assert names(result.timeline) == names(simulated(pair, result.facts))

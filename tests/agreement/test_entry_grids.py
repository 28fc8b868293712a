"""Sessions under any grid of entries choose what brute force chooses from all keys, whatever the runtime."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from sparda_core.compose import compose
from sparda_core.layer_view import LayerView
from sparda_core.models.tiny import tiny_model
from sparda_core.shapes import BlockSpec
from tests.agreement.worlds import SHAPE, TOKENS
from tests.selectors import brute

#: Window / stride in blocks of 8: not overlapping, every token, reaching in once, three and seven times, a block.
GRIDS = ((4, 4), (2, 2), (1, 1), (4, 2), (8, 2), (8, 1), (8, 8))
PROMPT, STEPS = 75, 14


def chosen(
    selector: str, runtime: str, spec: BlockSpec, *, chunk: int = 2048,
    check: Callable[[LayerView, torch.Tensor, list[torch.Tensor]], None] | None = None,
) -> list[torch.Tensor]:  # fmt: skip
    """Every selection of some steps, layer by layer; `check` gets each layer's own view and what was chosen for it."""
    model, out = tiny_model(SHAPE, seed=5, dtype=torch.float64), []
    options = {"scoring": "entry-softmax"} if selector == "infinigen" else {}
    found: dict[int, torch.Tensor] = {}
    made: dict[int, list[torch.Tensor]] = {}

    def keep(view: LayerView) -> None:
        assert view.selection is not None
        found[view.layer] = view.selection[0, :, 0]
        made[view.layer] = [] if view.forecast is None else [view.forecast]

    def attended(view: LayerView) -> None:
        if check is not None:
            check(view, found[view.layer], made[view.layer])

    pair = compose(model, selector, runtime, spec=spec, selector_options=options, page_blocks=2)
    with pair.open_cpu() as session:
        row = session.add()
        session.prefill(row, TOKENS[:PROMPT], chunk=chunk)
        session.on_selection, session.on_layer = keep, attended
        for token in TOKENS[PROMPT : PROMPT + STEPS]:
            session.decode({row: token})
            out += [found[layer] for layer in range(SHAPE.layers)]
    return out


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: f"{grid[0]}-{grid[1]}")
@pytest.mark.parametrize("selector", ["forecast", "query"])
def test_selections_equal_brute_force_over_all_keys_of_the_row(selector: str, grid: tuple[int, int]) -> None:
    spec = BlockSpec(block=8, window=grid[0], stride=grid[1], sink=1, local=1, budget=5)

    def check(view: LayerView, found: torch.Tensor, forecast: list[torch.Tensor]) -> None:
        keys, position = view.keys()[0][0], int(view.positions[0, 0])
        for head in range(SHAPE.kv_heads):
            if selector == "forecast":
                scores = brute.dot_scores(forecast[0][0, head, 0], keys[head], position, spec)
            else:
                assert view.query is not None
                queries = view.query[0, head * SHAPE.group : (head + 1) * SHAPE.group, 0]
                scores = brute.query_scores(queries, keys[head], position, spec)
            assert found[head].tolist() == brute.best(scores, position, spec)

    assert len(chosen(selector, "resident", spec, check=check)) == STEPS * SHAPE.layers


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: f"{grid[0]}-{grid[1]}")
def test_runtimes_and_chunks_choose_alike(grid: tuple[int, int]) -> None:
    spec = BlockSpec(block=8, window=grid[0], stride=grid[1], sink=1, local=1, budget=5)
    for selector in ("forecast", "infinigen"):
        want = chosen(selector, "resident", spec)
        for runtime in ("offload-sync", "offload-prefetch"):
            got = chosen(selector, runtime, spec, chunk=7)
            assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))

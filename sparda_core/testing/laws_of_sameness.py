"""Laws of what must not matter: neighbours, chunks, order, memory that nobody may look at."""

from __future__ import annotations

import numpy as np
import torch

from sparda_core.layer_view import LayerView
from sparda_core.testing.drive import Drive, Ids
from sparda_core.testing.law import Law, require
from sparda_core.testing.trial import Trial, all_equal
from sparda_core.testing.world import World


def _same_again(trial: Trial) -> None:
    all_equal(trial.play(trial.drive()), trial.chosen, "a second session")


def _neighbours(trial: Trial) -> None:
    for row, together in enumerate(trial.chosen):
        all_equal(trial.play(trial.drive(), [row]), [together], f"row {row} alone")


def _order_of_rows(trial: Trial) -> None:
    rows = list(range(len(trial.scene.tokens)))
    turned = trial.play(trial.drive(), rows[::-1])
    all_equal(turned[::-1], trial.chosen, "rows in reverse order")


def _inactive(trial: Trial) -> None:
    """A row that sits a step out selects nothing, and the others do not notice."""
    alone, beside = trial.drive(), trial.drive()
    at, last = trial.scene.tokens[0], len(trial.scene.tokens)
    for driven in (alone, beside):
        driven.prefill(0, at)
    got, want = beside.decode([last, 0], [-1, at]), alone.decode([0], [at])
    require((got[:, 0] == -1).all(), lambda: f"a row at position -1 selected {got[:, 0].max(axis=(1, 2, 3)).tolist()}")
    all_equal([got[:, 1]], [want[:, 0]], "beside a row that sits out")


def _chunks(trial: Trial) -> None:
    # Token by token takes long, and short prompts have every edge.
    for chunk in {1 if max(trial.scene.tokens) <= 2 * trial.spec.block else trial.spec.block, trial.scene.chunk}:
        all_equal(trial.play(trial.drive(), chunk=chunk), trial.chosen, f"prompts in chunks of {chunk}")


def _unseen(trial: Trial) -> None:
    for poison in (float("inf"), float("-inf"), 1e300):
        got = trial.play(trial.drive(trial.world(poison=poison)))
        all_equal(got, trial.chosen, f"{poison} in place of NaN beyond what is visible")


def _nan_in_sight(trial: Trial) -> None:
    """NaN in keys that are visible costs no law: what is chosen is still lawful."""
    world = trial.world()
    world.keys[:, :, :, :: trial.spec.block] = float("nan")
    world.biases[:, :, :, :: trial.spec.block] = float("nan")
    spoilt = _made_anew(world)

    def lawful(view: LayerView) -> None:
        assert view.selection is not None
        for (row, head, query), _ in np.ndenumerate(view.selection[..., 0].numpy()):
            ids, position = view.selection[row, head, query].tolist(), int(view.positions[row, query])
            kept = [block for block in ids if block >= 0]
            ascending = kept == sorted(set(kept)) and ids[: len(kept)] == kept
            forced = set(trial.spec.forced_blocks(position)) <= set(kept)
            past = max(kept, default=0) <= position // trial.spec.block
            require(ascending and forced and past, f"{ids} at position {position}, layer {view.layer}")

    trial.play(Drive(trial.selector, spoilt, lead=trial.lead, seen=lawful))


def _made_anew(world: World) -> World:
    """The same world, its entries made anew from what its keys now are."""
    return World(
        keys=world.keys, x=world.x, forecasts=world.forecasts, biases=world.biases, spec=world.spec,
        poison=world.poison, shape=world.shape,
    )  # fmt: skip


def _leaves_the_view(trial: Trial) -> None:
    before: dict[str, torch.Tensor] = {}

    class Watched(Drive):
        def _select(self, view: LayerView, layer: int) -> Ids:
            before.update({name: tensor.clone() for name, tensor in _shown(view).items()})
            return super()._select(view, layer)

    def unchanged(view: LayerView) -> None:
        for name, tensor in _shown(view).items():
            same = torch.equal(tensor.nan_to_num(nan=1.5), before[name].nan_to_num(nan=1.5))
            require(same, f"view.{name} of layer {view.layer} was written to")

    trial.play(Watched(trial.selector, trial.world(), lead=trial.lead, seen=unchanged))


def _shown(view: LayerView) -> dict[str, torch.Tensor]:
    shown = {
        "x": view.x, "positions": view.positions, "query": view.query, "forecast": view.forecast,
        "entries.buffer": view.entries.buffer, "entries.counts": view.entries.counts,
        "entries.rows": view.entries.rows, "bias.buffer": None if view.bias is None else view.bias.buffer,
    }  # fmt: skip
    return {name: tensor for name, tensor in shown.items() if tensor is not None}


SAMENESS_LAWS: tuple[Law[Trial], ...] = (
    Law("same-again", "the same scene gives the same selections in every session", _same_again),
    Law("neighbours", "what else is in the batch changes no selection", _neighbours),
    Law("order-of-rows", "the order of the batch changes no selection", _order_of_rows),
    Law("inactive-rows", "a row that sits a step out selects nothing and disturbs nobody", _inactive),
    Law("chunks", "how a prompt is cut into chunks changes no selection", _chunks),
    Law("unseen-memory", "what lies beyond the visible entries and tokens changes no selection", _unseen),
    Law("nan-in-sight", "NaN in visible keys or biases leaves every selection lawful", _nan_in_sight),
    Law("leaves-the-view", "a selector writes to scores and selection of a view and to nothing else", _leaves_the_view),
)

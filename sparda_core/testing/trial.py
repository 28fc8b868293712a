"""Trial: one selector in one scene, and what it chose there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import attrs
import numpy as np
import torch

from sparda_core.errors import ConfigError
from sparda_core.layer_view import LayerView
from sparda_core.plan import Phase
from sparda_core.registry import SELECTORS
from sparda_core.selector import Selector
from sparda_core.shapes import BlockSpec, ModelShape
from sparda_core.testing.drive import Drive, Ids
from sparda_core.testing.scene import Scene
from sparda_core.testing.world import World

#: What `check_selector` takes: a declaration, a registered name, or something that makes one for a scene.
Given = Selector | str | Callable[[Scene], Selector]


@attrs.frozen(kw_only=True, eq=False)
class Sight:
    """All that one KV head of a layer may know when one query selects, for scores by plain loops.

    query     [G, D]; with a lead, that of the source layer's state through the target's projection
    forecast  [D]
    keys      [N, D] and bias [N], of the tokens up to `position`
    lead      how many layers early the query selects; 0 in prefill, too
    """

    query: torch.Tensor
    forecast: torch.Tensor
    keys: torch.Tensor
    bias: torch.Tensor
    position: int
    lead: int
    spec: BlockSpec


Reference = Callable[[Sight], Sequence[float]]


@attrs.define(slots=False, eq=False, kw_only=True)
class Trial:
    """What laws look at. `reference`: see check_selector; `device`: where the GPU half runs, None for nowhere."""

    given: Given
    scene: Scene
    reference: Reference | None = None
    device: str | None = None

    @functools.cached_property
    def selector(self) -> Selector:
        """The declaration."""
        if isinstance(self.given, Selector):
            return self.given
        made = SELECTORS.make(self.given) if isinstance(self.given, str) else self.given(self.scene)
        if not isinstance(made, Selector):
            raise ConfigError(f"selector={self.given!r} made a {type(made).__name__}, not a Selector")
        return made

    @property
    def lead(self) -> int:
        """Layers between selecting and attending."""
        return self.scene.lead if self.selector.lead is None else self.selector.lead

    @functools.cached_property
    def shape(self) -> ModelShape:
        """The model's shape."""
        return self.scene.shape(token_bias="token_bias" in self.selector.needs)

    @functools.cached_property
    def spec(self) -> BlockSpec:
        """The cut that the selector asks for."""
        return self.selector.cut(self.scene.spec, self.most_tokens)

    @property
    def most_tokens(self) -> int:
        """Tokens that a GPU half is made for: no row has more."""
        return max(self.scene.last, 2 * self.scene.spec.window)

    def refusal(self) -> str | None:
        """Why the selector does not serve this scene; None where it does."""
        if self.lead >= self.shape.layers:
            return f"lead={self.lead} must be < layers={self.shape.layers}"
        try:
            self.selector.check(self.shape, self.spec)
            self.drive()
        except ConfigError as wrong:
            return str(wrong)
        return None

    def world(self, *, poison: float = float("nan")) -> World:
        """A fresh world: a text for each row, and one more for rows that change their minds."""
        drawn = self.drawn
        return attrs.evolve(drawn, keys=drawn.keys.clone(), biases=drawn.biases.clone(), poison=poison)

    @functools.cached_property
    def drawn(self) -> World:
        """What every fresh world starts from; to be read only."""
        return World.random(
            texts=len(self.scene.tokens) + 1, tokens=self.scene.last + 2 * self.spec.block, seed=self.scene.seed,
            shape=self.shape, spec=self.spec,
        )  # fmt: skip

    def drive(self, world: World | None = None, seen: Callable[[LayerView], None] = lambda _view: None) -> Drive:
        """A fresh session of the selector, in a fresh world unless one is given."""
        return Drive(self.selector, self.world() if world is None else world, lead=self.lead, seen=seen)

    def play(
        self, driven: Drive, texts: Sequence[int] | None = None, *, chunk: int = 10**6, prompts: bool = True
    ) -> list[Ids]:
        """Read every text's prompt, then decode all of them as one batch: [L, Hk, T, budget] a text."""
        rows = list(range(len(self.scene.tokens))) if texts is None else list(texts)
        parts: list[list[Ids]] = []
        for text in rows:
            read = driven.prefill(text, self.scene.tokens[text], chunk=chunk)
            parts.append([read[:, 0]] if prompts else [])
        for step in range(self.scene.steps):
            chosen = driven.decode(rows, [self.scene.tokens[text] + step for text in rows])
            for i in range(len(rows)):
                parts[i].append(chosen[:, i])
        return [np.concatenate(part, axis=2) for part in parts]

    @functools.cached_property
    def chosen(self) -> list[Ids]:
        """What it chose when nothing was done to it."""
        self.views.clear()
        return self.play(self.drive(seen=self.views.append))

    @functools.cached_property
    def views(self) -> list[LayerView]:
        """Every view of `chosen`, once that is there."""
        return []

    @functools.cached_property
    def seen(self) -> list[LayerView]:
        """Every view of an undisturbed play, its selection made."""
        assert self.chosen is not None
        return self.views

    def sight(self, view: LayerView, row: int, head: int, query: int) -> Sight:
        """What one head of a view's query may know; the row's text is its id."""
        world, text, layer = self.drawn, view.rows[row], view.layer
        position = int(view.positions[row, query])
        heads = slice(head * self.shape.group, (head + 1) * self.shape.group)
        at = torch.tensor([[position]])
        own = world.query_of(layer, world.x[text, view.source, position][None, None], at)
        return Sight(
            query=own[0, heads, 0], forecast=world.forecasts[text, layer, head, position],
            keys=world.keys[text, layer, head, : position + 1], bias=world.biases[text, layer, head, : position + 1, 0],
            position=position, lead=layer - view.source, spec=self.spec,
        )  # fmt: skip

    @property
    def makes_scores(self) -> bool:
        """Whether its last operation chooses by view.scores."""
        kinds = self.selector.operations(self.shape.layers - 1, Phase.DECODE, self.lead)
        return len(kinds) > 1 and all(view.scores is not None for view in self.seen)


def all_equal(got: Sequence[Ids], want: Sequence[Ids], what: str) -> None:
    """Raise AssertionError at the first row, layer, head and query where two plays differ."""
    for row, (left, right) in enumerate(zip(got, want, strict=True)):
        if left.shape == right.shape and (left == right).all():
            continue
        if left.shape != right.shape:
            raise AssertionError(f"{what}: row {row} has selections {left.shape}, want {right.shape}")
        layer, head, query = (int(at) for at in np.argwhere((left != right).any(-1))[0])
        raise AssertionError(
            f"{what}: row {row}, layer {layer}, head {head}, query {query} of those compared chose "
            f"{left[layer, head, query].tolist()}, before {right[layer, head, query].tolist()}"
        )

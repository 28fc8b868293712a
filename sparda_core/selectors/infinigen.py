"""infinigen: blocks chosen one layer early by a proxy query, without training (InfiniGen)."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from sparda_core.errors import ConfigError
from sparda_core.facts import StepFacts
from sparda_core.plan import Op, Phase
from sparda_core.selector import BoundSelector, DeviceRoom, DeviceSelector, DeviceSizes
from sparda_core.selectors.declaration import SCORE, SELECT, ScoringDeclaration, layers_alike, own_query_bytes
from sparda_core.shapes import BlockSpec, ModelShape
from sparda_core.work import Work, WorkContext

#: The operation that runs the target's query projection on the source layer's input.
PROXY = "proxy"
#: What the proxy query is held against; see InfiniGen.
SCORINGS = ("token", "entry-raw", "entry-softmax")


@attrs.frozen(kw_only=True)
class InfiniGen(ScoringDeclaration):
    """A proxy query: the target's own projection and rotary, on the input of the layer before it.

    scoring says what it is held against:

    token          logits with every token's key in `channels` skewed dimensions, summed over the group,
                   max-pooled to blocks 65 wide at block 64 (the SparDA release's baseline, our default)
    entry-raw      logits with the entries, summed over the group, max-pooled
    entry-softmax  with the entries exactly as query-driven selection does

    channels            dimensions kept of each key; None keeps all of them, unskewed
    calibration_tokens  first tokens read, per row, whose queries make the rotation (the skew)

    Both matter to `token` only. Prefill and the layers that no layer is early enough before select
    by their own query.

    A row's dimensions are those in which all of its own prompts' queries are strongest, chosen after each prompt, as
    the release chooses them for a request; partial keys are then made anew. The rotation stays that of the first
    `calibration_tokens`. Whatever is read counts, a later prompt too; what is generated does not. After the first
    `calibration_tokens` a block of the row counts where it was read whole, so that a row can be cropped anywhere:
    at the end of a prompt fewer than a block's tokens do not. See `selectors.tensors.prompt_strength`.
    """

    name: ClassVar[str] = "infinigen"
    lead = 1

    channels: int | None = attrs.field(default=32)
    #: A rotation by 2,048 finds .005 more of the oracle's blocks and holds four times the queries (docs/design.md).
    calibration_tokens: int = attrs.field(default=512)
    scoring: str = attrs.field(default="token")

    @channels.validator
    def _some_channels(self, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ConfigError(f"channels={value!r} must be an integer >= 1, or None for every dimension")

    @calibration_tokens.validator
    def _some_tokens(self, attribute: attrs.Attribute[Any], value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"calibration_tokens={value!r} must be an integer >= 1")

    @scoring.validator
    def _known_scoring(self, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value not in SCORINGS:
            raise ConfigError(f"scoring={value!r} is unknown; known: {', '.join(SCORINGS)}")

    def operations(self, target: int, phase: Phase, lead: int) -> tuple[str, ...]:
        """`proxy`, `score`, `select` where a layer early; else as query-driven selection."""
        return (PROXY, SCORE, SELECT) if lead and phase is Phase.DECODE else (SCORE, SELECT)

    @layers_alike
    def work(self, op: Op, facts: StepFacts, context: WorkContext) -> Work:
        """`proxy` is one matrix product with the target's query weights, and what makes a few channels of it."""
        if op.kind != PROXY:
            return super().work(op, facts, context)
        from sparda_core.kernels.linear.work import query_work

        query = query_work(facts.rows * facts.new_tokens, context)
        return query if self.scoring != "token" else _with_channels(query, facts, context, self.channels)

    @layers_alike
    def score_work(self, op: Op, facts: StepFacts, context: WorkContext) -> Work:
        """Of the scoring chosen; own-query scoring where the operation runs in its own layer."""
        if self.scoring == "entry-softmax" or op.source == op.layer:
            from sparda_core.kernels.score_query.work import work

            return work(op, facts, context)
        if self.scoring == "entry-raw":
            from sparda_core.kernels.score_forecast.work import work

            return work(op, facts, context)
        from sparda_core.kernels.score_proxy.work import work as proxy_work

        return proxy_work(op, facts, context, channels=self._width(context.shape))

    def bind(self, *, shape: ModelShape, spec: BlockSpec) -> BoundSelector:
        """The tensor half, which keeps partial keys per row and layer; raises ConfigError for too many channels."""
        width = self._width(shape)
        from sparda_core.selectors.tensors.infinigen import BoundInfiniGen
        from sparda_core.selectors.tensors.proxy_scores import make_scorer

        scorer = make_scorer(
            self.scoring, shape=shape, channels=width, lead=self.lead,
            # Where every dimension is kept there is nothing to choose.
            calibration_tokens=0 if width == shape.head_dim else self.calibration_tokens,
        )  # fmt: skip
        return BoundInfiniGen(scorer)

    def device_bytes(self, sizes: DeviceSizes) -> int:
        """Own-query scoring's logits; on tokens, also every key's channels, the rows' skews, and one layer's query."""
        shape, bytes_ = sizes.shape, own_query_bytes(sizes)
        if self.scoring == "token":
            width, heads = self._width(shape), sizes.places * shape.kv_heads
            each = (shape.layers - sizes.lead) * heads * (sizes.tokens + shape.head_dim)
            bytes_ += each * width * sizes.value_bytes + heads * width * 4
        return bytes_

    def bind_device(self, room: DeviceRoom) -> DeviceSelector:
        """The GPU half, which keeps partial keys per place and layer; raises ConfigError for too many channels."""
        from sparda_core.selectors.device.infinigen import DeviceInfiniGen

        return DeviceInfiniGen(room, scoring=self.scoring, channels=self._width(room.shape))

    def _width(self, shape: ModelShape) -> int:
        width = shape.head_dim if self.channels is None else self.channels
        if width > shape.head_dim and self.scoring == "token":
            raise ConfigError(
                f"channels={width} must be <= head_dim={shape.head_dim}; lower it, or give None for every dimension"
            )
        return width


def _with_channels(query: Work, facts: StepFacts, context: WorkContext, channels: int | None) -> Work:
    """Behind the query: every row's projection, applied to it and to the new tokens' keys (a launch each)."""
    shape, launches = context.shape, query.launches + 2
    if channels is None:
        return attrs.evolve(query, launches=launches)
    tokens = facts.rows * facts.new_tokens
    projections = facts.rows * shape.kv_heads * shape.head_dim * channels
    return attrs.evolve(
        query,
        flops=query.flops + 2.0 * tokens * (shape.q_heads + shape.kv_heads) * shape.head_dim * channels,
        hbm_bytes=query.hbm_bytes
        + (projections + tokens * shape.kv_heads * channels) * context.entry_bytes
        + tokens * (shape.q_heads + shape.kv_heads) * shape.head_dim * context.activation_bytes,
        launches=launches,
    )

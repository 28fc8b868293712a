"""Work of the matrix products and of the small operations fused around them."""

from __future__ import annotations

import attrs

from sparda_core.facts import StepFacts
from sparda_core.kernels.counts import new_token_count
from sparda_core.kernels.norm.work import norm_heads_work
from sparda_core.kernels.sample.work import LOGIT_BYTES, greedy_work
from sparda_core.plan import Op
from sparda_core.work import Work, WorkContext


def product_work(
    tokens: int, inputs: int, outputs: int, context: WorkContext, *, launches: int = 1, bias: bool = False
) -> Work:
    """[tokens, inputs] times [inputs, outputs]: weights read once, activations read and written once.

    bias  one number an output, added in the same launch
    """
    added = outputs if bias else 0
    return Work(
        flops=2.0 * tokens * inputs * outputs + tokens * added,
        hbm_bytes=(inputs * outputs + added) * context.weight_bytes
        + tokens * (inputs + outputs) * context.activation_bytes,
        launches=launches,
    )


def embed_work(op: Op, facts: StepFacts, context: WorkContext) -> Work:
    """One table row read and one residual stream written a token (two launches: counters and lists begin anew)."""
    values = new_token_count(facts) * context.shape.hidden
    return Work(hbm_bytes=values * (context.weight_bytes + context.activation_bytes), launches=2)


def project_work(op: Op, facts: StepFacts, context: WorkContext) -> Work:
    """Norm, then query, key, value and Forecast rows in one product, then rotary embedding (three launches).

    Norms of heads, where the model has them, are one launch more.

    With a Forecast every layer but the last `lead` adds Hk heads for the layer that it forecasts, and the first
    `lead` Hk more for themselves (SparDA, section 3, at lead 1).
    """
    shape, lead = context.shape, context.forecast_lead
    forecasts = (op.layer + lead < shape.layers) + (op.layer < lead) if context.forecast else 0
    heads = shape.q_heads + (2 + forecasts) * shape.kv_heads
    return with_head_norms(
        product_work(
            new_token_count(facts), shape.hidden, heads * shape.head_dim, context, launches=3, bias=shape.qkv_bias
        ),
        new_token_count(facts), context,
    )  # fmt: skip


def query_work(tokens: int, context: WorkContext) -> Work:
    """A layer's query projection alone, on another layer's input, and its rotary: InfiniGen's proxy (two launches)."""
    shape = context.shape
    heads = shape.q_heads * shape.head_dim
    product = product_work(tokens, shape.hidden, heads, context, launches=2, bias=shape.qkv_bias)
    return with_head_norms(product, tokens, context, keys=False)


def with_head_norms(work: Work, tokens: int, context: WorkContext, *, keys: bool = True) -> Work:
    """The same and the norms of heads behind it, where the model has them."""
    if not context.shape.qk_norm:
        return work
    norms = norm_heads_work(tokens, context, keys=keys)
    return attrs.evolve(
        work, flops=work.flops + norms.flops, hbm_bytes=work.hbm_bytes + norms.hbm_bytes,
        launches=work.launches + norms.launches,
    )  # fmt: skip


def output_work(op: Op, facts: StepFacts, context: WorkContext) -> Work:
    """Attention's heads back to the residual stream, which is added in the same kernel."""
    shape = context.shape
    return product_work(new_token_count(facts), shape.q_heads * shape.head_dim, shape.hidden, context)


def mlp_work(op: Op, facts: StepFacts, context: WorkContext) -> Work:
    """Norm, gate and up in one product, activation, down (four launches); the residual is added in the last."""
    shape = context.shape
    tokens = new_token_count(facts)
    values = tokens * (2 * shape.hidden + 4 * shape.ffn)
    return Work(
        flops=2.0 * tokens * 3 * shape.hidden * shape.ffn,
        hbm_bytes=3 * shape.hidden * shape.ffn * context.weight_bytes + values * context.activation_bytes,
        launches=4,
    )


def head_work(op: Op, facts: StepFacts, context: WorkContext) -> Work:
    """Norm and logits of every active row's last token, and the likeliest of them: a step's next tokens.

    Logits of a narrow dtype are widened to float32 (a launch of its own). Launches: norm, product, widening, the best
    logit in two, and one that moves every row on.
    """
    vocab, narrow = context.shape.vocab, context.activation_bytes < LOGIT_BYTES
    product, drawn = product_work(facts.rows, context.shape.hidden, vocab, context), greedy_work(facts.rows, context)
    widened = facts.rows * vocab * (context.activation_bytes + LOGIT_BYTES) if narrow else 0.0
    return attrs.evolve(
        product, flops=product.flops + drawn.flops, hbm_bytes=product.hbm_bytes + widened + drawn.hbm_bytes,
        launches=3 + narrow + drawn.launches,
    )  # fmt: skip

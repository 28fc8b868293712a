"""Work of the matrix products and of the small operations fused around them."""

from __future__ import annotations

from sparda_core.facts import StepFacts
from sparda_core.kernels.counts import new_token_count
from sparda_core.plan import Op
from sparda_core.work import Work, WorkContext


def product_work(tokens: int, inputs: int, outputs: int, context: WorkContext, *, launches: int = 1) -> Work:
    """[tokens, inputs] times [inputs, outputs]: weights read once, activations read and written once."""
    return Work(
        flops=2.0 * tokens * inputs * outputs,
        hbm_bytes=inputs * outputs * context.weight_bytes + tokens * (inputs + outputs) * context.activation_bytes,
        launches=launches,
    )


def embed_work(op: Op, facts: StepFacts, context: WorkContext) -> Work:
    """One table row read and one residual stream written a token."""
    values = new_token_count(facts) * context.shape.hidden
    return Work(hbm_bytes=values * (context.weight_bytes + context.activation_bytes))


def project_work(op: Op, facts: StepFacts, context: WorkContext) -> Work:
    """Norm, then query, key, value and Forecast rows in one product, then rotary embedding (three launches).

    With a Forecast every layer but the last `lead` adds Hk heads for the layer that it forecasts, and the first
    `lead` Hk more for themselves (SparDA, section 3, at lead 1).
    """
    shape, lead = context.shape, context.forecast_lead
    forecasts = (op.layer + lead < shape.layers) + (op.layer < lead) if context.forecast else 0
    heads = shape.q_heads + (2 + forecasts) * shape.kv_heads
    return product_work(new_token_count(facts), shape.hidden, heads * shape.head_dim, context, launches=3)


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
    """Norm and logits of every active row's last token (two launches)."""
    return product_work(facts.rows, context.shape.hidden, context.shape.vocab, context, launches=2)

"""Work of attention over chosen blocks."""

from __future__ import annotations

from sparda_core.facts import StepFacts
from sparda_core.footprint import BIAS_BYTES
from sparda_core.kernels.attend.occupancy import H200
from sparda_core.kernels.attend.splitting import Cut, cut_lists
from sparda_core.kernels.attend_dense.work import work as dense_work
from sparda_core.kernels.counts import new_token_count, query_positions
from sparda_core.plan import Op
from sparda_core.work import Work, WorkContext

#: Weighted values of a piece, its largest logit and its sum of weights are float32.
_PART_BYTES = 4.0


def work(op: Op, facts: StepFacts, context: WorkContext) -> Work:
    """Two products for each (query head, visible token); keys and values read once for a whole group, and the
    bias of each token where the model has one.

    Visible are all tokens of the selected blocks but those after the query in its own block. A list that is cut leaves
    a result of each piece for whoever adds them up. In a prefill chunk `facts.selected` adds up the selections of all
    its queries; a chunk that selected nothing in this layer was dense, and its work is that of dense attention.
    """
    shape, spec = context.shape, context.spec
    selected = float(facts.selected[op.layer].sum())
    if facts.new_tokens > 1 and not selected:
        return dense_work(op, facts, context)
    cut = _cut(facts, context, int(facts.selected[op.layer].max()))
    unseen = (spec.block - 1 - query_positions(facts) % spec.block).sum()
    tokens = selected * spec.block - float(unseen) * shape.kv_heads if selected else 0.0
    bias = tokens if shape.token_bias else 0.0
    moved = 2.0 * new_token_count(facts) * shape.q_heads * shape.head_dim
    pairs = new_token_count(facts) * shape.kv_heads
    ctas = pairs * (cut.splits if cut else 1)
    left = 2 * _PART_BYTES * ctas * shape.group * (shape.head_dim + 2) if ctas > pairs else 0.0
    return Work(
        flops=4.0 * tokens * shape.group * shape.head_dim + bias * shape.group,
        hbm_bytes=2.0 * tokens * shape.head_dim * context.kv_bytes + moved * context.activation_bytes
        + bias * BIAS_BYTES + left,
        passed_bytes=left, ctas=ctas, ctas_per_sm=cut.ctas_per_sm if cut else 1,
        launches=cut.launches if cut else 1,
    )  # fmt: skip


def _cut(facts: StepFacts, context: WorkContext, blocks: int) -> Cut | None:
    """How decode cuts lists of up to `blocks` blocks; None where no list is cut: a prefill's are whole.

    The device is taken to have the multiprocessors of an H200: a work knows none.
    """
    pairs = new_token_count(facts) * context.shape.kv_heads
    if facts.new_tokens > 1 or not pairs:
        return None
    return cut_lists(
        pairs, blocks, block=context.spec.block, group=context.shape.group, head_dim=context.shape.head_dim,
        value_bytes=context.kv_bytes, sms=H200,
    )  # fmt: skip

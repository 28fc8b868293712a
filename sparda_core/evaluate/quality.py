"""Quality of one selector: the real continuation of a text, and two tasks with far answers, against dense."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import torch

from sparda_core.errors import ConfigError
from sparda_core.evaluate.churn import Churn, ChurnTally
from sparda_core.evaluate.metrics import kl_from_dense, next_token_match, perplexity, token_nll
from sparda_core.evaluate.passages import Passage, continue_passages, open_passages
from sparda_core.evaluate.recall import Recall
from sparda_core.evaluate.watcher import Watcher
from sparda_core.selection import Selection
from sparda_core.selector import Selector
from sparda_core.shapes import BlockSpec

#: Every how many steps a reference is run. The oracle reads all keys, so it is asked less often.
JUDGE_EVERY = {"query": 8, "oracle": 16}


@attrs.frozen(kw_only=True)
class DocumentScore:
    """Continuation of the document. Losses in nats per token.

    tokens      tokens scored
    agreement   share of positions where the likeliest next token is the dense model's
    kl          mean KL(dense || sparse)
    perplexity  of the true text
    """

    tokens: int
    agreement: float
    kl: float
    perplexity: float


@attrs.frozen(kw_only=True)
class TaskScore:
    """One task. `exact`: greedy decoding gives the whole answer; `nll`: nats per answer token."""

    exact: bool
    accuracy: float
    nll: float


@attrs.frozen(kw_only=True)
class Quality:
    """All of it for one selector; `recall` by reference name, `layers` the same layer by layer."""

    document: DocumentScore
    tasks: dict[str, TaskScore]
    recall: dict[str, Recall]
    layers: dict[str, tuple[Recall, ...]]
    churn: Churn


@attrs.frozen(kw_only=True, eq=False)
class Run:
    """A judged run, and the selections of the document's rows that it saw, in order of position.

    positions   int64 [steps]
    selections  int32 [steps, L, Hk, width]
    """

    quality: Quality
    positions: npt.NDArray[np.int64]
    selections: Selection


def score_document(dense: torch.Tensor, sparse: torch.Tensor, targets: torch.Tensor) -> DocumentScore:
    """Judge logits [N, vocab] against the dense ones of the same positions and the true next tokens [N]."""
    return DocumentScore(
        tokens=len(targets),
        agreement=float(next_token_match(dense, sparse).double().mean()),
        kl=float(kl_from_dense(dense, sparse).double().mean()),
        perplexity=perplexity(token_nll(sparse, targets)),
    )


def score_task(logits: torch.Tensor, targets: torch.Tensor) -> TaskScore:
    """Judge an answer from its teacher-forced logits [N, vocab].

    Greedy decoding gives the answer exactly if and only if every argmax along the answer is right, so
    that no separate decoding is needed.
    """
    hit = logits.argmax(-1) == targets
    return TaskScore(
        exact=bool(hit.all()),
        accuracy=float(hit.double().mean()),
        nll=float(token_nll(logits, targets).double().mean()),
    )


def dense_logits(combination: Any, passages: Sequence[Passage]) -> list[torch.Tensor]:
    """Logits [n, vocab] of each passage under a combination, unwatched: the reference of all others."""
    with combination.open() as session:
        return continue_passages(session, passages, open_passages(session, passages))


def evaluate_selector(
    combination: Any, passages: Sequence[Passage], dense: Sequence[torch.Tensor], *, spec: BlockSpec,
    references: Mapping[str, Selector], progress: Callable[[int, int], None] | None = None,
) -> Run:  # fmt: skip
    """Continue all passages under one selector and judge what comes out.

    combination  composed of model, selector and runtime; its own spec may differ from `spec`
    passages     those called "document" are the text, others are tasks named by themselves
    dense        logits of `dense_logits` for the same passages
    spec         says which blocks count as free, and what the references choose by
    progress     called with steps done and steps in all
    """
    if len(dense) != len(passages) or not any(p.name == "document" for p in passages):
        raise ConfigError(
            f"{len(passages)} passages need a document among them and as many dense logits, not {len(dense)}"
        )
    steps = max(len(p.feed) for p in passages)
    with combination.open() as session:
        rows = open_passages(session, passages)
        watched = [row for row, p in zip(rows, passages, strict=True) if p.name == "document"]
        watcher = Watcher(shape=combination.shape, spec=spec, references=references, rows=watched)
        watcher.attach(session)

        def before(step: int) -> None:
            # The first step is judged too: nothing else shows the state that all selectors share.
            watcher.judging = frozenset(name for name in references if step % JUDGE_EVERY.get(name, 1) == 0)
            if progress:
                progress(step, steps)

        logits = continue_passages(session, passages, rows, before=before)
        if progress:
            progress(steps, steps)
    positions, selections = _by_position(watcher, combination.shape.layers)
    quality = _judge(passages, dense, logits, watcher, references)
    return Run(quality=quality, positions=positions, selections=selections)


def judge_dense(passages: Sequence[Passage], dense: Sequence[torch.Tensor], spec: BlockSpec) -> Quality:
    """Quality of the reference itself, from the logits of `dense_logits`: no run, no recall, no churn."""
    nobody = ChurnTally(spec=spec).result()
    return Quality(**_scores(passages, dense, dense), recall={}, layers={}, churn=nobody)


def _by_position(watcher: Watcher, layers: int) -> tuple[npt.NDArray[np.int64], Selection]:
    """Selections of all rows as if one row had made them; where rows overlap the later row counts."""
    rows = {row for _, row in watcher.taken}
    where = {position: row for row in sorted(rows) for position in watcher.taken[0, row]}
    positions = np.array(sorted(where), np.int64)
    ids = [[watcher.taken[layer, where[p]][p][0, :, 0] for layer in range(layers)] for p in positions.tolist()]
    return positions, np.array(ids, np.int32)


def _judge(
    passages: Sequence[Passage], dense: Sequence[torch.Tensor], logits: Sequence[torch.Tensor], watcher: Watcher,
    references: Mapping[str, Selector],
) -> Quality:  # fmt: skip
    return Quality(
        **_scores(passages, dense, logits),
        recall={name: watcher.recall(name) for name in references},
        layers={name: watcher.recall_by_layer(name) for name in references},
        churn=watcher.churn(),
    )


def _scores(
    passages: Sequence[Passage], dense: Sequence[torch.Tensor], logits: Sequence[torch.Tensor]
) -> dict[str, Any]:
    """The parts of a Quality that follow from logits alone."""
    text = [i for i, p in enumerate(passages) if p.name == "document"]
    return {
        "document": score_document(
            torch.cat([dense[i] for i in text]),
            torch.cat([logits[i] for i in text]),
            torch.cat([passages[i].target_ids for i in text]),
        ),
        "tasks": {p.name: score_task(logits[i], p.target_ids) for i, p in enumerate(passages) if i not in text},
    }

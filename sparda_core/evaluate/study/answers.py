"""What a model answers along a path, against the dense model: KL, agreement and loss, a few positions at a time."""

from __future__ import annotations

import attrs
import torch
from torch.nn import functional as F  # noqa: N812

from sparda_core.models.decoder import Decoder

#: Logits held at once, in values.
MOST = {"cuda": 2**27, "cpu": 2**24}


@attrs.frozen(kw_only=True)
class Answers:
    """Means over the scored positions; nats.

    kl         KL(dense || sparse)
    agreement  share of positions where the likeliest next token is the dense model's
    nll        loss of the true next token
    dense_nll  the dense model's
    tokens     positions scored
    """

    kl: float
    agreement: float
    nll: float
    dense_nll: float
    tokens: int


def compare(decoder: Decoder, dense_QE: torch.Tensor, sparse_QE: torch.Tensor, targets_Q: torch.Tensor) -> Answers:
    """Judge residual streams [Q, hidden] by the logits that they give; targets are the true next tokens, int64 [Q]."""
    sums = torch.zeros(4, dtype=torch.float64, device=dense_QE.device)
    step = max(1, MOST["cuda" if dense_QE.is_cuda else "cpu"] // decoder.shape.vocab)
    for rows in (slice(at, at + step) for at in range(0, len(targets_Q), step)):
        log_p, log_q = (_log_softmax(decoder, x[rows]) for x in (dense_QE, sparse_QE))
        target = targets_Q[rows, None]
        kl = (log_p.exp() * (log_p - log_q)).sum(-1).clamp_min(0)
        same = log_p.argmax(-1) == log_q.argmax(-1)
        losses = (-log.gather(1, target)[:, 0] for log in (log_q, log_p))
        sums += torch.stack([x.double().sum() for x in (kl, same, *losses)])
    kl_sum, agreed, nll, dense_nll = (sums / len(targets_Q)).tolist()
    return Answers(kl=kl_sum, agreement=agreed, nll=nll, dense_nll=dense_nll, tokens=len(targets_Q))


def answer(decoder: Decoder, x_NE: torch.Tensor, targets_N: torch.Tensor) -> tuple[bool, float, float]:
    """Whether greedy decoding gives the whole answer, the share of its tokens that are right, nats per token.

    x  residual streams [n, hidden] at the positions before each of the answer's tokens, teacher-forced: every
    argmax is right if and only if greedy decoding is.
    """
    log = _log_softmax(decoder, x_NE)
    hit = log.argmax(-1) == targets_N
    nll = -log.gather(1, targets_N[:, None])[:, 0]
    return bool(hit.all()), float(hit.double().mean()), float(nll.double().mean())


def _log_softmax(decoder: Decoder, x_NE: torch.Tensor) -> torch.Tensor:
    """Of the model's logits, computed in float32: bfloat16's rounding of a logit alone is worth 1e-3 nats of KL."""
    if x_NE.dtype in (torch.float32, torch.float64):
        return decoder.head(x_NE[None])[0].log_softmax(-1)
    _, head, norm = decoder.table_weights
    x = F.rms_norm(x_NE.float(), norm.shape, norm.float(), decoder.config.norm_eps)
    return (F.linear(x, head.float()) * decoder.config.logit_scale).log_softmax(-1)

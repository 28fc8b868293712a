"""Metrics over next-token logits: negative log-likelihood, agreement with dense, KL from dense. All in nats."""

from __future__ import annotations

import math

import torch

from sparda_core.errors import ConfigError


def token_nll(logits_NV: torch.Tensor, targets_N: torch.Tensor) -> torch.Tensor:
    """-log p(target), [N], from a log-softmax in float32 (float64 stays float64)."""
    log_p = _log_softmax(logits_NV, "logits")
    return -log_p.gather(1, targets_N.long()[:, None])[:, 0]


def perplexity(nll_N: torch.Tensor) -> float:
    """exp of the mean negative log-likelihood."""
    if not nll_N.numel():
        raise ConfigError("perplexity of 0 tokens is undefined; score at least 1")
    return math.exp(float(nll_N.double().mean()))


def next_token_match(dense_NV: torch.Tensor, sparse_NV: torch.Tensor) -> torch.Tensor:
    """Whether the two likeliest next tokens are the same, bool [N]; ties go to the lower id."""
    _same_shape(dense_NV, sparse_NV)
    return dense_NV.argmax(-1) == sparse_NV.argmax(-1)


def kl_from_dense(dense_NV: torch.Tensor, sparse_NV: torch.Tensor) -> torch.Tensor:
    """KL(dense || sparse), [N], >= 0: nats lost by answering with sparse where dense is right."""
    _same_shape(dense_NV, sparse_NV)
    log_p, log_q = _log_softmax(dense_NV, "dense"), _log_softmax(sparse_NV, "sparse")
    return (log_p.exp() * (log_p - log_q)).sum(-1).clamp_min(0)  # rounding may end just below 0


def _log_softmax(logits_NV: torch.Tensor, what: str) -> torch.Tensor:
    if logits_NV.dim() != 2 or not bool(torch.isfinite(logits_NV).all()):
        raise ConfigError(
            f"{what} logits have shape {tuple(logits_NV.shape)}; want finite [N, vocab] "
            "(rows that sat a step out hold NaN: leave them out)"
        )
    dtype = torch.float64 if logits_NV.dtype == torch.float64 else torch.float32
    return torch.log_softmax(logits_NV.to(dtype), dim=-1)


def _same_shape(dense_NV: torch.Tensor, sparse_NV: torch.Tensor) -> None:
    if dense_NV.shape != sparse_NV.shape:
        raise ConfigError(f"dense logits {tuple(dense_NV.shape)} and sparse {tuple(sparse_NV.shape)} must match")

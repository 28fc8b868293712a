"""One layer's loss and gradient, a few queries at a time.

A layer's graph has three parts: the product that makes forecast heads of all queries, the loss of each part
of them, and nothing else. Parts are differentiated one by one down to the heads; one product then takes the
gradient of all heads to the weights. So scores live for the queries of a part only, whatever the window.
"""

from __future__ import annotations

import torch

from sparda_core.distill.lesson import LayerLesson
from sparda_core.distill.objectives import Objective

#: Copies of a part's largest scores that are alive at once: logits, probabilities, pooled, their gradients.
COPIES = 4


def queries_at_once(lesson: LayerLesson, objective: Objective, chunk_bytes: int) -> int:
    """How many queries of a layer fit into `chunk_bytes` of scores, at least 1."""
    return max(1, chunk_bytes // query_bytes(
        tokens=lesson.k.shape[1], entries=lesson.entries.shape[1], groups=lesson.entries.shape[0],
        heads=lesson.q.shape[0], stride=objective.grid.stride, size=lesson.q.element_size(),
    ))  # fmt: skip


def query_bytes(*, tokens: int, entries: int, groups: int, heads: int, stride: int, size: int) -> int:
    """Bytes of scores that one query takes: the teacher's of one KV head's group, and the entries of all KV heads."""
    teacher = heads // groups * (tokens // stride)
    return COPIES * size * (teacher + groups * entries + 1)


def layer_gradient(
    lesson: LayerLesson, weight_RE: torch.Tensor, objective: Objective, *, chunk_bytes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum of a layer's loss over KV heads and queries, and its gradient.

    weight_RE  [G * D, hidden] of the layer that is forecast
    returns    the loss, a scalar without graph, and the gradient, of the weight's shape; both are sums
    """
    weight = weight_RE.detach().requires_grad_()
    with torch.enable_grad():
        forecast = lesson.heads(weight)
    step = queries_at_once(lesson, objective, chunk_bytes)
    part_loss = objective.bind(lesson)
    slopes = torch.empty_like(forecast)
    total = torch.zeros((), dtype=forecast.dtype, device=forecast.device)
    for start in range(0, forecast.shape[1], step):
        at = slice(start, start + step)
        heads = forecast[:, at].detach().requires_grad_()
        with torch.enable_grad():
            loss = part_loss(lesson.part(at), heads)
        (slopes[:, at],) = torch.autograd.grad(loss, heads)
        total += loss.detach()
    (gradient,) = torch.autograd.grad(forecast, weight, slopes)
    return total, gradient

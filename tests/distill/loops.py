"""The objectives once more as loops over numbers, from a layer's raw tensors alone: float64, obvious, slow."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sparda_core.distill.lesson import LayerLesson
from sparda_core.shapes import BlockSpec

CLAMP = 1e-8


def softmax(logits: dict[int, float]) -> dict[int, float]:
    top = max(logits.values(), default=0.0)
    total = sum(math.exp(x - top) for x in logits.values())
    return {i: math.exp(x - top) / total for i, x in logits.items()}


def mean_keys(lesson: LayerLesson, group: int, window: int, stride: int) -> list[list[float]]:
    keys = lesson.k[group].tolist()
    count = 0 if len(keys) < window else (len(keys) - window) // stride + 1
    return [
        [sum(column) / window for column in zip(*keys[stride * c : stride * c + window], strict=True)]
        for c in range(count)
    ]


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(len(a))


def teacher_row(lesson: LayerLesson, group: int, at: int, window: int, stride: int, *, start: bool) -> list[float]:
    """Probabilities of the true queries, summed over the group; 0 where invisible."""
    heads = lesson.q.shape[0] // lesson.k.shape[0]
    i, keys = int(lesson.positions[at]), mean_keys(lesson, group, window, stride)
    seen = [j for j in range(len(keys)) if stride * j + (0 if start else window - 1) <= i]
    row = [0.0] * len(keys)
    for head in range(group * heads, (group + 1) * heads):
        query = lesson.q[head, at].tolist()
        for j, p in softmax({j: dot(query, keys[j]) for j in seen}).items():
            row[j] += p
    return row


def touching(row: Sequence[float], block: int, spec: BlockSpec, window: int, stride: int) -> float:
    """Largest value among the entries that hold a token of the block."""
    first, last = block * spec.block, (block + 1) * spec.block - 1
    found = [p for j, p in enumerate(row) if stride * j <= last and stride * j + window - 1 >= first]
    return max(found, default=-math.inf)


def aligned_row(row: Sequence[float], ratio: int, count: int) -> list[float]:
    """Largest of the fine probabilities ratio * c - 1 .. ratio * c + ratio - 1."""
    if ratio == 1:
        return list(row[:count])
    return [max((row[j] for j in range(ratio * c - 1, ratio * c + ratio) if 0 <= j < len(row)), default=0.0)
            for c in range(count)]  # fmt: skip


def free_blocks(position: int, spec: BlockSpec) -> list[int]:
    return sorted(set(range(position // spec.block + 1)) - set(spec.forced_blocks(position)))


def best_blocks(aligned: Sequence[float], position: int, spec: BlockSpec) -> list[int]:
    """The target's best free blocks by the pool of selection; ties go to the lower id."""
    score = {b: touching(aligned, b, spec, spec.window, spec.stride) for b in free_blocks(position, spec)}
    return sorted(score, key=lambda b: (-score[b], b))[: spec.free]


def kl(target: Sequence[float], share: Sequence[float]) -> float:
    return sum(t * (math.log(t) - math.log(p)) for t, p in zip(target, share, strict=True) if t > 0)


def shares(values: Sequence[float]) -> list[float]:
    total = sum(values)
    return [v / total for v in values] if total > 0 else list(values)


def student_logits(lesson: LayerLesson, heads: list[list[list[float]]], group: int, at: int) -> list[float]:
    spec = lesson.spec
    return [dot(heads[group][at], key) for key in mean_keys(lesson, group, spec.window, spec.stride)]


def clean_loss(name: str, lesson: LayerLesson, heads: list[list[list[float]]], window: int, stride: int) -> float:
    """Sum over KV heads and queries of a clean objective with a teacher on window/stride."""
    spec, total = lesson.spec, 0.0
    for g in range(lesson.k.shape[0]):
        for at, i in enumerate(lesson.positions.tolist()):
            logits = student_logits(lesson, heads, g, at)
            count = len(logits)
            seen = [c for c in range(count) if spec.stride * c + spec.window - 1 <= i]
            row = teacher_row(lesson, g, at, window, stride, start=False)
            free = free_blocks(i, spec)
            if name == "block":
                masked = [x if c in seen else -math.inf for c, x in enumerate(logits)]
                target = [touching(row, b, spec, window, stride) for b in free]
                student = softmax({b: touching(masked, b, spec, spec.window, spec.stride) for b in free})
                total += kl(shares(target), list(student.values()))
                continue
            aligned = aligned_row(row, spec.stride // stride, count)
            if name == "top":
                kept_blocks = best_blocks([a if c in seen else 0.0 for c, a in enumerate(aligned)], i, spec)
            else:
                kept_blocks = free if name == "free" else list(range(i // spec.block + 1))
            kept = [c for c in seen if c * spec.stride // spec.block in kept_blocks]
            if name == "top":
                p = softmax({c: logits[c] for c in seen})
                rest = [c for c in seen if c not in kept]
                target = [aligned[c] for c in kept] + [sum(aligned[c] for c in rest)]
                total += kl(shares(target), [p[c] for c in kept] + [sum(p[c] for c in rest)])
            else:
                p = softmax({c: logits[c] for c in kept})
                total += kl(shares([aligned[c] for c in kept]), list(p.values()))
    return total


def reference_loss(lesson: LayerLesson, heads: list[list[list[float]]], window: int, stride: int) -> float:
    """Sum over KV heads and queries of the published training's loss (clamps and padding included), unrounded."""
    spec, total = lesson.spec, 0.0
    native = (window, stride) == (spec.window, spec.stride)
    for g in range(lesson.k.shape[0]):
        for at, i in enumerate(lesson.positions.tolist()):
            logits = student_logits(lesson, heads, g, at)
            count = len(logits)
            row = teacher_row(lesson, g, at, window, stride, start=not native)
            aligned = aligned_row(row, spec.stride // stride, count)
            target = [a / (sum(aligned) + CLAMP) for a in aligned]
            p = softmax({c: logits[c] for c in range(count) if spec.stride * c <= i})
            student = [p.get(c, 0.0) / (sum(p.values()) + CLAMP) for c in range(count)]
            per_block = spec.block // spec.stride
            kept = [per_block * b + r for b in best_blocks(target, i, spec) for r in range(per_block)]
            places = per_block * min(spec.budget, -(-lesson.k.shape[1] // spec.block))
            both = []
            for values in (target, student):
                held = [values[c] for c in kept] + [0.0] * (places - len(kept))
                clamped = [max(v, CLAMP) for v in (*held, max(0.0, sum(values) - sum(held)))]
                both.append([v / sum(clamped) for v in clamped])
            total += kl(both[0], both[1])
    return total

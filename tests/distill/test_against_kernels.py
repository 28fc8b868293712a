"""What the trainer aims at is what the selectors choose by: both against the kernels' references."""

from __future__ import annotations

import torch

from sparda_core.distill.lesson import LayerLesson, observe
from sparda_core.distill.recall import top_free
from sparda_core.distill.train import initial_weights
from sparda_core.kernels.compress.reference import compress
from sparda_core.kernels.pool.reference import pool_blocks
from sparda_core.kernels.score_forecast.reference import forecast_block_scores
from sparda_core.kernels.score_query.reference import query_block_scores
from sparda_core.kernels.topk.reference import choose_blocks
from sparda_core.layer_view import EntryView
from tests.distill.toy import SPEC, toy_config, toy_model, toy_stream

POSITIONS = torch.arange(40, 96, 3)


def lessons() -> list[LayerLesson]:
    found: list[LayerLesson] = []
    observe(toy_model().decoder, toy_stream(96), POSITIONS, SPEC, found.append)
    return found


def entry_view(lesson: LayerLesson) -> EntryView:
    entries = compress(lesson.k, window=SPEC.window, stride=SPEC.stride)
    torch.testing.assert_close(lesson.entries, entries)
    return EntryView(
        buffer=entries[None], rows=torch.zeros(1, dtype=torch.int64), counts=torch.tensor([entries.shape[1]])
    )


def chosen_by_kernels(scores: torch.Tensor) -> list[list[list[int]]]:
    """Free blocks by KV head and position, ascending."""
    ids = choose_blocks(scores, POSITIONS[None], SPEC)[0]
    forced = [set(SPEC.forced_blocks(int(p))) for p in POSITIONS]
    return [[sorted({b for b in row if b >= 0} - forced[i]) for i, row in enumerate(head)] for head in ids.tolist()]


def chosen_here(lesson: LayerLesson, scores: torch.Tensor) -> list[list[list[int]]]:
    picked = top_free(scores, lesson.free, SPEC.free)
    return [[row.nonzero().flatten().tolist() for row in head] for head in picked]


def test_the_teacher_chooses_the_blocks_that_the_query_driven_kernels_choose() -> None:
    for lesson in lessons():
        want = query_block_scores(lesson.q[None], entry_view(lesson), POSITIONS[None], SPEC)
        assert chosen_here(lesson, lesson.teacher()) == chosen_by_kernels(want)


def test_the_student_chooses_the_blocks_that_the_forecast_kernels_choose() -> None:
    weights = initial_weights(toy_model().decoder, toy_config(init="random"))
    for lesson in lessons():
        weight = weights[lesson.layer]
        want = forecast_block_scores(lesson.heads(weight)[None], entry_view(lesson), POSITIONS[None], SPEC)
        assert chosen_here(lesson, lesson.student(weight)) == chosen_by_kernels(want)


def test_the_comparison_notices_another_pool() -> None:
    lesson = lessons()[0]
    other = pool_blocks(lesson.entries.new_ones(1, 2, len(POSITIONS), 47), per_block=4, blocks=12)
    assert chosen_here(lesson, lesson.teacher()) != chosen_by_kernels(other)

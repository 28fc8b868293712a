"""Rows hold whole documents or pieces, apart from each other."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.distill.lesson import LayerLesson, observe
from sparda_core.distill.rows import MODES, Corpus, Draw, Row, Rows, shared_out
from sparda_core.errors import ConfigError
from tests.distill.toy import SPEC, toy_config, toy_model, toy_stream


def corpus_of(lengths: list[int]) -> Corpus:
    """Document d holds the numbers 1000 d, 1000 d + 1, ..."""
    ids = np.concatenate([1000 * d + np.arange(n) for d, n in enumerate(lengths)])
    return Corpus(ids=ids, ends=np.cumsum(lengths))


LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=12)


@given(lengths=LENGTHS, mode=st.sampled_from(MODES), least=st.integers(1, 9))
def test_rows_hold_runs_of_documents_and_every_token_at_most_once(lengths: list[int], mode: str, least: int) -> None:
    window = 20
    try:
        rows = Rows(corpus_of(lengths), window=window, mode=mode, least=least)
    except ConfigError:
        assert sum(lengths) < window if mode == "joined" else max(lengths) < least
        return
    seen: list[int] = []
    for row in (rows[i] for i in range(len(rows))):
        assert len(row.ids) == sum(row.lengths) <= window
        assert mode != "apart" or len(row.lengths) == 1
        assert mode != "joined" or row.lengths == (window,)
        seen += row.ids.tolist()
        if mode != "joined":
            for start, length in zip(np.cumsum((0, *row.lengths[:-1])), row.lengths, strict=True):
                part = row.ids[start : start + length]
                assert length >= least
                assert torch.equal(part, part[0] + torch.arange(length))
    assert len(set(seen)) == len(seen) == rows.tokens
    if mode != "joined" and least == 1:
        assert len(seen) == sum(lengths)


def test_packing_leaves_fewer_places_empty_than_a_row_a_document() -> None:
    lengths = [13, 7, 30, 4, 16, 11, 9, 25]
    count = {mode: len(Rows(corpus_of(lengths), window=20, mode=mode, least=3)) for mode in MODES}
    assert count["packed"] < count["apart"]


def test_documents_of_a_row_give_the_lessons_that_they_give_alone() -> None:
    decoder, stream = toy_model().decoder, toy_stream(150)
    lengths = (60, 40, 50)
    asked = torch.tensor([45, 58, 60 + 39, 100 + 44, 100 + 49])
    together: list[LayerLesson] = []
    observe(decoder, stream, asked, SPEC, together.append, lengths=lengths)
    alone: list[list[LayerLesson]] = []
    for start, stop in itertools.pairwise((0, 60, 100, 150)):
        inside = asked[(asked >= start) & (asked < stop)] - start
        found: list[LayerLesson] = []
        observe(decoder, stream[start:stop], inside, SPEC, found.append)
        alone.append(found)
    wanted = [found[layer] for layer in range(decoder.shape.layers) for found in alone]
    assert [got.layer for got in together] == [want.layer for want in wanted]
    for got, want in zip(together, wanted, strict=True):
        for name in ("x_before", "q", "k", "entries", "visible", "free", "positions"):
            torch.testing.assert_close(getattr(got, name), getattr(want, name), msg=name)
        torch.testing.assert_close(got.teacher(), want.teacher())
    joined: list[LayerLesson] = []
    observe(decoder, stream, asked, SPEC, joined.append)
    assert not torch.allclose(joined[1].q[:, -1], together[5].q[:, -1])


def test_queries_are_drawn_where_their_own_document_is_long_enough() -> None:
    row = Row(ids=torch.arange(100), lengths=(30, 10, 60))
    assert row.eligible(25).tolist() == [*range(25, 30), *range(65, 100)]
    assert row.eligible(60).tolist() == []
    draw = Draw(Rows(corpus_of([96, 70, 41]), window=96, mode="apart", least=41), toy_config(documents="apart"))
    for index in range(6):
        drawn, asked = draw(index)
        assert len(asked) == min(24, len(drawn.ids) - 40)
        assert set(asked.tolist()) <= set(range(40, len(drawn.ids)))


def test_a_draw_depends_on_seed_and_number_alone() -> None:
    rows = Rows(corpus_of([300, 200, 100]), window=96, mode="packed", least=41)
    forwards, backwards = Draw(rows, toy_config()), Draw(rows, toy_config())
    kept = [forwards(index) for index in range(15)]
    for index in reversed(range(15)):
        row, asked = backwards(index)
        assert torch.equal(row.ids, kept[index][0].ids)
        assert torch.equal(asked, kept[index][1])
    other = Draw(rows, toy_config(seed=5))
    assert any(not torch.equal(other(index)[1], kept[index][1]) for index in range(15))


def test_processes_share_out_all_rows_of_a_step() -> None:
    for size in (1, 2, 4):
        dealt = [list(shared_out(8, rank, size)) for rank in range(size)]
        assert sorted(itertools.chain(*dealt)) == list(range(8))
        assert len({len(part) for part in dealt}) == 1


def test_a_corpus_is_known_by_its_tokens_and_where_documents_end() -> None:
    base = corpus_of([5, 7])
    assert base.sha256 == corpus_of([5, 7]).sha256
    others = (Corpus(ids=base.ids, ends=np.array([6, 12])), Corpus(ids=base.ids + 1, ends=base.ends))
    assert len({base.sha256, *(other.sha256 for other in others)}) == 3
    with pytest.raises(ConfigError, match="documents='heap'"):
        Rows(base, window=4, mode="heap", least=1)

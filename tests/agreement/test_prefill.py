"""Prefill: chunks change nothing, an append is the same code with an offset, and decoding continues it exactly."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparda_core.models.decoder import Decoder
from tests.agreement.worlds import MODEL, TOKENS, pair
from tests.profiles import share

DECODER: Decoder = MODEL.decoder
#: Selectors whose decoding makes the same choices as their prefill. InfiniGen prefills by the true query.
SAME = ("forecast", "query", "oracle", "random", "window", "nosa", "nosa-forecast")
RUNTIMES = ("resident", "offload-sync", "offload-prefetch")


def after(selector: str, runtime: str, cuts: list[int], *, mode: str, total: int = 120) -> torch.Tensor:
    """Logits after `total` tokens, prefilled in pieces that end at `cuts`."""
    with pair(selector, runtime).open() as session:
        row = session.add()
        logits = torch.empty(0)
        edges = [0, *sorted(set(cuts)), total]
        for start, stop in itertools.pairwise(edges):
            logits = session.prefill(row, TOKENS[start:stop], mode=mode, chunk=37)
        return logits


cuts = st.lists(st.integers(1, 119), max_size=5)


@pytest.mark.parametrize("runtime", RUNTIMES)
@given(cuts=cuts)
@settings(max_examples=share(8))
def test_dense_prefill_in_any_pieces_is_the_plain_forward(runtime: str, cuts: list[int]) -> None:
    want = DECODER.dense_forward(torch.tensor([TOKENS[:120]]))[0, -1]
    torch.testing.assert_close(after("forecast", runtime, cuts, mode="dense"), want)


@pytest.mark.parametrize("selector", [*SAME, "infinigen"])
@given(cuts=cuts)
@settings(max_examples=share(6))
def test_prefill_by_the_selector_does_not_depend_on_the_chunks(selector: str, cuts: list[int]) -> None:
    runtime = "offload-sync"
    torch.testing.assert_close(
        after(selector, runtime, cuts, mode="selector"), after(selector, runtime, [], mode="selector")
    )


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("selector", SAME)
def test_decoding_makes_the_choices_that_prefill_makes(selector: str, runtime: str) -> None:
    if selector in ("query", "oracle", "nosa") and runtime == "offload-prefetch":
        pytest.skip("these selectors know nothing early; the pair is refused")
    with pair(selector, runtime).open() as session:
        row = session.add()
        session.prefill(row, TOKENS[:50], mode="selector")
        logits = torch.empty(0)
        for token in TOKENS[50:120]:
            logits = session.decode({row: token}).logits[0]
    torch.testing.assert_close(logits, after(selector, runtime, [], mode="selector"))


def test_infinigen_decodes_the_same_however_its_prompt_was_chunked() -> None:
    answers = []
    for chunk in (200, 64, 7):
        with pair("infinigen", "offload-prefetch").open() as session:
            row = session.add()
            session.prefill(row, TOKENS[:100], chunk=chunk)
            answers.append(torch.stack([session.decode({row: token}).logits[0] for token in TOKENS[100:140]]))
    torch.testing.assert_close(answers[1], answers[0])
    torch.testing.assert_close(answers[2], answers[0])


def test_a_snapshot_continues_in_another_runtime_as_it_does_at_home() -> None:
    for selector in (*SAME, "infinigen"):
        answers = []
        with pair(selector, "resident", keep_queries=64).open() as home:
            row = home.add()
            home.prefill(row, TOKENS[:77])
            snapshot = home.snapshot(row)
            answers.append(torch.stack([home.decode({row: token}).logits[0] for token in TOKENS[77:100]]))
        runtime = "offload-sync" if selector in ("query", "oracle", "nosa") else "offload-prefetch"
        with pair(selector, runtime).open() as other:
            row = other.adopt(snapshot)
            assert other.length(row) == 77
            answers.append(torch.stack([other.decode({row: token}).logits[0] for token in TOKENS[77:100]]))
        if selector != "infinigen":  # calibrates on the queries that were kept
            torch.testing.assert_close(answers[1], answers[0])


def test_a_row_grows_through_many_pages_without_a_length_given_beforehand() -> None:
    tokens = [TOKENS[i % len(TOKENS)] for i in range(260)]
    with pair("forecast", "offload-prefetch").open() as session, pair("forecast", "resident").open() as plain:
        rows = [each.add() for each in (session, plain)]
        for each, row in zip((session, plain), rows, strict=True):
            each.prefill(row, tokens[:3])
        for token in tokens[3:]:
            got, want = session.decode({rows[0]: token}).logits, plain.decode({rows[1]: token}).logits
            torch.testing.assert_close(got, want)
        assert session.length(rows[0]) == 260

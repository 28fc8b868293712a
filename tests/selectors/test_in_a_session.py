"""Selectors in a real session: what is recorded there is what is played back there."""

from __future__ import annotations

from pathlib import Path

import torch

from sparda_core.compose import compose
from sparda_core.models.tiny import TINY_SHAPE, tiny_model
from sparda_core.runtimes.offload_prefetch import OffloadPrefetch
from sparda_core.runtimes.resident import Resident
from sparda_core.selectors.infinigen import InfiniGen
from sparda_core.selectors.observer import SelectionObserver
from sparda_core.selectors.query import Query
from sparda_core.selectors.recording import load
from sparda_core.selectors.replay import Replay
from sparda_core.shapes import BlockSpec

SPEC = BlockSpec(block=16, window=8, stride=4, sink=1, local=1, budget=5)
MODEL = tiny_model(dtype=torch.float64)
TOKENS = torch.randint(TINY_SHAPE.vocab, (200,), generator=torch.Generator().manual_seed(0)).tolist()


def test_a_recorded_run_replayed_with_prefetch_gives_the_same_facts_and_logits(tmp_path: Path) -> None:
    with compose(MODEL, Query(), Resident(), spec=SPEC).open_cpu() as session:
        row = session.add()
        session.prefill(row, TOKENS[:150])
        observer = SelectionObserver(shape=TINY_SHAPE, spec=SPEC, selector="query", rows=[row])
        session.on_selection = observer
        want = []
        for token in TOKENS[150:170]:
            result = session.decode({row: token})
            observer.add_facts(result.facts)
            want.append(result)
    observer.recording().save(tmp_path / "run.npz")
    recording = load(tmp_path / "run.npz")
    assert recording.positions[:, 0].tolist() == list(range(150, 170))
    assert recording.facts == tuple(result.facts for result in want)

    replay = Replay(path=tmp_path / "run.npz")
    with compose(MODEL, replay, OffloadPrefetch(), spec=SPEC).open() as session:
        row = session.add()
        session.prefill(row, TOKENS[:150])
        for token, result in zip(TOKENS[150:170], want, strict=True):
            got = session.decode({row: token})
            torch.testing.assert_close(got.logits, result.logits)
            assert (got.facts.selected == result.facts.selected).all()


def test_infinigen_goes_on_the_same_from_a_snapshot() -> None:
    selector = InfiniGen(channels=3, calibration_tokens=64)
    with compose(MODEL, selector, OffloadPrefetch(), spec=SPEC).open(keep_queries=150) as first:
        row = first.add()
        first.prefill(row, TOKENS[:150], chunk=40)
        snapshot = first.snapshot(row)
        want = [first.decode({row: token}).logits for token in TOKENS[150:160]]
    with compose(MODEL, selector, OffloadPrefetch(), spec=SPEC).open() as second:
        row = second.adopt(snapshot)
        for token, logits in zip(TOKENS[150:160], want, strict=True):
            torch.testing.assert_close(second.decode({row: token}).logits, logits)

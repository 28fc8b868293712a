"""The law of a budget that holds every block: then a method is dense attention, and exactly."""

from __future__ import annotations

import numpy as np
import torch

from sparda_core.compose import compose
from sparda_core.models.tiny import tiny_model
from sparda_core.shapes import BlockSpec
from sparda_core.testing.law import Law, require
from sparda_core.testing.trial import Trial

#: Rows of a session are no longer than this: a law is tried often.
_MOST_TOKENS = 60


def _wide(trial: Trial, tokens: int) -> BlockSpec:
    blocks = trial.scene.spec.block_count(tokens)
    wide = trial.scene.spec.with_budget(max(trial.scene.spec.budget, blocks))
    return trial.selector.cut(wide, tokens)


def _dense(trial: Trial) -> None:
    """Logits of prefill by the selector and of decoding are those of a model without a cache."""
    shape, prompt = trial.shape, min(trial.scene.tokens[0], _MOST_TOKENS)
    total, lead = prompt + trial.scene.steps, trial.selector.lead or 1
    model = tiny_model(shape, seed=trial.scene.seed, dtype=torch.float64, lead=lead)
    ids = np.random.default_rng(trial.scene.seed).integers(shape.vocab, size=total).tolist()
    want = model.decoder.dense_forward(torch.tensor([ids]))[0, prompt - 1 :]
    pair = compose(model, trial.selector, "resident", spec=_wide(trial, total), page_blocks=2)
    with pair.open_cpu(threads=1) as session:
        row = session.add()
        got = [session.prefill(row, ids[:prompt], mode="selector", chunk=trial.scene.chunk)]
        got += [session.decode({row: token}).logits[0] for token in ids[prompt:]]
    for step, (ours, dense) in enumerate(zip(got, want, strict=True)):
        error = float((ours - dense).abs().max() / dense.abs().max())
        require(error < 1e-9, f"logits after {prompt + step} tokens are {error:.1e} off those of dense attention")


DENSITY_LAWS: tuple[Law[Trial], ...] = (
    Law("dense-when-all-fits", "with a budget for every block, outputs are those of dense attention", _dense),
)

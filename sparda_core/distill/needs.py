"""What a run of `sparda train` or `sparda adapt` wants of its text by its options, and its held-out windows."""

from __future__ import annotations

import argparse
from itertools import pairwise

import torch

from sparda_core.distill.config import TrainConfig
from sparda_core.distill.prepare import Need, Prepared
from sparda_core.models.tokenizer import Tokenizer, tokenizer_from_file


def need_of(args: argparse.Namespace, config: TrainConfig, tokenizer: Tokenizer, *, vocab: int) -> Need:
    """Tokens for every step, and held-out windows; ids of --source-tokenizer become text again.

    tokenizer  the model's; vocab  its ids are below it
    raises     WeightsError where --source-tokenizer cannot be read, ConfigError for shares and counts out of bounds
    """
    other = None if args.source_tokenizer is None else tokenizer_from_file(args.source_tokenizer)
    return Need(
        tokens=config.steps * config.batch * config.window, encode=tokenizer.encode, vocab=vocab, seed=config.seed,
        held_out=args.held_out, windows=args.evaluate_windows, window=config.window,
        decode=None if other is None else other.decode, decoder="" if other is None else other.to_json(),
    )  # fmt: skip


def held_windows(prepared: Prepared, wanted: int, window: int) -> list[torch.Tensor]:
    """The first `window` tokens, int64, of the first `wanted` held-out documents that have as many."""
    starts = [0, *prepared.held.ends.tolist()]
    long_ones = [a for a, b in pairwise(starts) if b - a >= window]
    return [torch.from_numpy(prepared.held.ids[a : a + window].astype("int64")) for a in long_ones[:wanted]]

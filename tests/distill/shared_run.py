"""A training that several processes share: started by a launcher, writes what every step told as JSON.

usage: python shared_run.py OUT DEVICE WAY..., each way one of WAYS
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from sparda_core.distill.parallel import World, joined, own_device
from sparda_core.distill.sharded import ShardedDecoder
from sparda_core.distill.train import Habits, train
from sparda_core.distill.validation import Validation
from tests.distill.toy import SPEC, toy_config, toy_model, toy_stream

#: How the model's layers lie: (shared out, of a NOSA model, whose token bias is no matrix of a layer).
WAYS = {"whole": (False, False), "sharded": (True, False), "sharded with a token bias": (True, True)}


def main(out: Path, kind: str, ways: list[str]) -> None:
    """Train the toy model for a few steps, four rows each, with its layers whole or shared out."""
    torch.set_num_threads(1)
    device = own_device(kind)
    with joined(device) as world:
        told = {way: learn(device, world, *WAYS[way]) for way in ways}
        out.with_suffix(f".{world.rank}").write_text(json.dumps(told))


def learn(device: str, world: World, sharded: bool, biased: bool) -> dict[str, Any]:  # noqa: FBT001  a line of WAYS
    """One run; what every step told, and some of its weights."""
    decoder = toy_model(device="cpu" if sharded else device, biased=biased).decoder
    if sharded:
        decoder = ShardedDecoder.of(decoder, world, device)
    windows = [toy_stream(300)[i : i + 90] for i in (0, 90, 180)]
    habits = Habits(evaluate=Validation(decoder=decoder, windows=windows, spec=SPEC, world=world), evaluate_every=3)
    result = train(decoder, toy_stream(), toy_config(batch=4, steps=6, clip=0.05), habits, world=world)
    return {"history": result.history.as_json(), "size": world.size, "first": result.forecast.own[0, :4].tolist()}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])

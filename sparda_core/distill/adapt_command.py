"""The command line of continued training: options in, a folder that loads as a model out."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import attrs
import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from sparda_core.distill.adapt import OBJECTIVE, Adapted, adapt, held_out_losses
from sparda_core.distill.config import SCHEDULES, TrainConfig
from sparda_core.distill.history import Step
from sparda_core.distill.needs import held_windows, need_of
from sparda_core.distill.options import (
    DTYPES,
    add_blocks,
    add_data,
    check_apart,
    check_data,
    default_checkpoint,
    sources_of,
    spec_of,
)
from sparda_core.distill.prepare import Prepared, prepare
from sparda_core.distill.report import machine
from sparda_core.distill.rows import MODES
from sparda_core.distill.train import Habits
from sparda_core.errors import ConfigError, WeightsError
from sparda_core.files import check_folder, check_place, write_whole
from sparda_core.locks import locked
from sparda_core.models.convert_model import convert_model
from sparda_core.models.decoder import Decoder
from sparda_core.models.load import SMOLLM2, ReadModel, check_device, read_model, smollm2_path
from sparda_core.models.own_blocks import own_blocks
from sparda_core.models.weights import expected_tensors

#: Options that are fields of TrainConfig, and what they are here by default.
USUAL: dict[str, Any] = {
    "steps": 200, "batch": 4, "window": 4096, "documents": "packed", "first_position": 512, "lr": 5e-5,
    "schedule": "cosine", "warmup": 20, "lr_floor": 0.1, "clip": 1.0, "weight_decay": 0.0, "seed": 0, "chunk_mib": 256,
}  # fmt: skip
#: Options of the block cut.
BLOCKS = {
    "block": "tokens of a block", "sink": "first blocks, always attended",
    "local": "blocks before the current one, always attended", "budget": "blocks attended, forced ones included",
}  # fmt: skip
_CHOICES = {"documents": MODES, "schedule": SCHEDULES}
_HELP = {
    "steps": "optimiser steps", "batch": "rows of a step; they are read one by one",
    "window": "most tokens of a row of text",
    "documents": "rows hold documents apart from each other, one each, or joined as one text",
    "first_position": "tokens of a document that attend to all before them, as a prompt does",
    "lr": "peak learning rate", "schedule": "of the learning rate, after the warm-up",
    "warmup": "steps of a linear warm-up", "lr_floor": "share of the peak at which the cosine ends",
    "clip": "largest L2 norm of all gradients together; 0: none", "weight_decay": "of AdamW",
    "seed": "of the documents' order", "chunk_mib": "memory for attention logits of the queries asked at once",
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare all options."""
    add = parser.add_argument
    add("--out", type=Path, required=True, help="new folder for the adapted model")
    add("--model", default=SMOLLM2, help="smollm2, a GGUF file or a checkpoint directory")
    learn = parser.add_argument_group("learning")
    for name, usual in USUAL.items():
        flag, kind = "--" + name.replace("_", "-"), type(usual)
        learn.add_argument(flag, dest=name, type=kind, default=usual, choices=_CHOICES.get(name), help=_HELP[name])
    add_blocks(learn, BLOCKS)
    add_data(parser)
    run = parser.add_argument_group("running")
    run.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="of products, and of the weights written")
    run.add_argument("--device", default="cpu", help="cpu or cuda")
    run.add_argument("--checkpoint", type=Path, help="default: OUT with .checkpoint appended")
    run.add_argument("--checkpoint-every", type=int, default=50, help="steps between checkpoints")
    run.add_argument("--resume", action="store_true", help="go on from the checkpoint if there is one")
    run.add_argument("--evaluate-windows", type=int, default=4, help="held-out windows whose loss is told; 0: none")
    run.add_argument("--results", type=Path, help="also write losses and how they were made as JSON")
    run.add_argument("--json", action="store_true", help="print one JSON document instead of a table")


def run(args: argparse.Namespace) -> int:
    """Train, write the model, tell what became of its loss. Returns 0; raises SpardaError or OSError on bad input."""
    _check_places(args)
    check_data(args)
    check_device(args.device)
    with locked(args.out), locked(_checkpoint(args), option="checkpoint"):
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    config = TrainConfig(
        spec=spec_of(args, own_blocks(args.model).spec), objective=OBJECTIVE, positions=1,
        **{name: getattr(args, name) for name in USUAL},
    )
    console, kind = Console(stderr=True), getattr(torch, args.dtype)
    read = read_model(args.model, dtype=torch.float32)
    if config.window > read.shape.context:
        raise ConfigError(f"window={config.window} must be <= context={read.shape.context} of {read.name}")
    if read.tokenizer is None:
        raise WeightsError(f"model={read.name!r} has no tokenizer.json: add it to the model's directory")
    with tempfile.TemporaryDirectory(prefix="sparda-adapt-") as other:
        prepared = _prepare(args, config, read, args.cache or Path(other))
        windows = held_windows(prepared, args.evaluate_windows, config.window)
        given = read.weights_on(args.device)
        weights = {name: given[name] for name in expected_tensors(read.config)}
        told = {"before": _judge(read, weights, windows, config, kind)}
        if not windows and args.evaluate_windows:
            console.print(
                f"no held-out document of >= {config.window} tokens in the text: no loss of held-out text is told; "
                "raise --held-out, or add text"
            )
        result = _adapt(args, config, read, weights, prepared, console)
        told["after"] = _judge(read, result.weights, windows, config, kind)
    source = smollm2_path() if args.model == SMOLLM2 else Path(args.model)
    document = _document(args, config, read, prepared, result, told)
    text = json.dumps(document, indent=1) + "\n"
    convert_model(source, args.out, dtype=kind, instead=result.weights, notes={"sparda-adapt.json": text})
    if args.results is not None:
        write_whole(args.results, text)
    _show(args, console, document)
    return 0


def _check_places(args: argparse.Namespace) -> None:
    """Refuse now, rather than after hours, a folder that cannot be made and files that would stand in its place."""
    out = args.out
    if out.exists():
        raise ConfigError(f"out={str(out)!r} exists; name a folder that does not")
    for name in ("checkpoint", "results"):
        file = getattr(args, name)
        if file is not None and file.absolute() == out.absolute():
            raise ConfigError(f"{name}={str(file)!r} is the place of --out, a folder; name another file")
    check_apart(args)
    for place in (out, _checkpoint(args), args.results):
        if place is not None:
            check_place(place)
    if args.cache is not None:
        check_folder(args.cache)
    if args.checkpoint_every < 1:
        raise ConfigError(f"checkpoint_every={args.checkpoint_every} must be >= 1")


def _checkpoint(args: argparse.Namespace) -> Path:
    return args.checkpoint or default_checkpoint(args.out)


def _prepare(args: argparse.Namespace, config: TrainConfig, read: ReadModel, folder: Path) -> Prepared:
    assert read.tokenizer is not None
    need = need_of(args, config, read.tokenizer, vocab=read.shape.vocab)
    sources, shares = sources_of(args)
    return prepare(sources, need, folder, weights=shares)


def _judge(
    read: ReadModel, weights: Any, windows: list[torch.Tensor], config: TrainConfig, kind: torch.dtype
) -> dict[str, float]:
    """Held-out losses of these weights; empty without a window."""
    if not windows:
        return {}
    decoder = Decoder(read.config, {name: tensor.to(kind) for name, tensor in weights.items()})
    return held_out_losses(decoder, windows, config)


def _adapt(
    args: argparse.Namespace, config: TrainConfig, read: ReadModel, weights: dict[str, torch.Tensor],
    prepared: Prepared, console: Console,
) -> Adapted:  # fmt: skip
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("adapting", total=config.steps)

        def show(told: Step) -> None:
            bar.update(task, completed=told.step, description=f"adapting, loss {told.loss:.3f}")
            if told.step % 25 == 0 or told.step == config.steps:
                console.print(f"step {told.step}: loss {told.loss:.4f}, gradient {told.norm:.3g}, lr {told.lr:.3g}")

        habits = Habits(
            checkpoint=_checkpoint(args), checkpoint_every=args.checkpoint_every, resume=args.resume, on_step=show,
            base_model=read.name,
        )  # fmt: skip
        kind = getattr(torch, args.dtype)
        return adapt(read.config, weights, prepared.train, config, habits, dtype=kind)


def _document(
    args: argparse.Namespace, config: TrainConfig, read: ReadModel, prepared: Prepared, result: Adapted,
    told: dict[str, dict[str, float]],
) -> dict[str, Any]:  # fmt: skip
    return {
        "what": "next-token loss of held-out text, nats, second half of windows; dense and block-sparse attention",
        "base_model": read.name, "held_out": told, "losses": [round(loss, 5) for loss in result.history.losses],
        "config": attrs.asdict(config), "tokens": len(prepared.train.ids), "data_sha256": prepared.train.sha256,
        "dtype": args.dtype, "wall_s": round(result.wall_s, 1), "machine": machine(args.device),
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
    }  # fmt: skip


def _show(args: argparse.Namespace, console: Console, document: dict[str, Any]) -> None:
    if args.json:
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    elif document["held_out"]["before"]:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="held-out loss, nats")
        for name in ("attention", "before", "after"):
            table.add_column(name)
        for name in ("dense", "sparse"):
            table.add_row(name, *(f"{document['held_out'][when][name]:.4f}" for when in ("before", "after")))
        console.print(table)
    console.print(f"adapted model: {args.out}", soft_wrap=True)

"""The command line of training: options in, a Forecast file and a recall table out."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

import attrs
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from sparda_core.distill.config import INITS, OBJECTIVE, TrainConfig
from sparda_core.distill.recall import RecallConfig, RecallTable, measure_recall
from sparda_core.distill.report import machine, write_report
from sparda_core.distill.texts import (
    Document,
    content_hash,
    held_out_documents,
    read_documents,
    token_stream,
    training_documents,
)
from sparda_core.distill.train import TrainResult, train
from sparda_core.errors import ConfigError, WeightsError
from sparda_core.models.forecast_weights import ForecastWeights, save_forecast
from sparda_core.models.load import load_model
from sparda_core.models.model import Model
from sparda_core.models.tokenizer import Tokenizer
from sparda_core.runtimes.session_options import MOST_THREADS
from sparda_core.shapes import BlockSpec

_RECORDED = (
    "steps", "window", "positions", "first_position", "lr", "seed", "init", "sink", "local", "dtype", "device",
)  # fmt: skip
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `sparda train`; their names follow TrainConfig and BlockSpec."""
    defaults, spec = TrainConfig(), BlockSpec()
    parser.add_argument("--out", type=Path, required=True, help="Forecast file to write (.safetensors)")
    parser.add_argument("--model", default="smollm2", help="smollm2, a GGUF file or a checkpoint directory")
    parser.add_argument("--text", type=Path, nargs="+", help="train on these files instead of Python's own library")
    for name, kind in (("steps", int), ("window", int), ("positions", int), ("first_position", int), ("lr", float)):
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=kind, default=getattr(defaults, name), help="default %(default)s")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--init", choices=INITS, default=defaults.init)
    parser.add_argument("--sink", type=int, default=spec.sink)
    parser.add_argument("--local", type=int, default=spec.local)
    parser.add_argument("--dtype", choices=sorted(_DTYPES), default="bfloat16", help="of the frozen model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="CPU threads for tensors")
    parser.add_argument("--checkpoint", type=Path, help="default: OUT with .checkpoint appended")
    parser.add_argument("--checkpoint-every", type=int, default=25, help="steps between checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint if there is one")
    parser.add_argument("--results", type=Path, help="write the recall table and how it was made as JSON")
    parser.add_argument("--recall-window", type=int, default=8192, help="tokens of a held-out window; 0 skips recall")


def run(args: argparse.Namespace) -> int:
    """Train, save, measure recall on held-out text, report. Returns 0; raises SpardaError on bad input."""
    if args.out.suffix != ".safetensors":
        raise ConfigError(f"out={str(args.out)!r} must end in .safetensors")
    spec = BlockSpec(sink=args.sink, local=args.local)
    names = ("steps", "window", "positions", "first_position", "lr", "seed", "init")
    config = TrainConfig(spec=spec, **{name: getattr(args, name) for name in names})
    if args.recall_window:
        _recall_config(args)  # refused now rather than after hours of training
    if args.threads is not None:
        if not 1 <= args.threads <= MOST_THREADS:
            raise ConfigError(f"threads={args.threads} must be between 1 and {MOST_THREADS}")
        torch.set_num_threads(args.threads)
    console = Console(stderr=True)
    model = load_model(args.model, dtype=_DTYPES[args.dtype], device=args.device)
    longest = max(config.window, args.recall_window)
    if longest > model.shape.context:
        raise ConfigError(
            f"window={longest} must be <= context={model.shape.context} of {model.name}; "
            "lower --window and --recall-window"
        )
    tokenizer = _tokenizer(model)
    documents = read_documents(args.text) if args.text else training_documents()
    ids_N, used = token_stream(documents, tokenizer.encode, tokens=config.steps * config.window, seed=config.seed)
    result = _train(model, ids_N, config, args, console)
    forecast = attrs.evolve(result.forecast, metadata=_metadata(model, config, used, len(ids_N), args))
    _save(args.out, forecast)
    console.print(f"Forecast of {model.name}: {args.out} ({config.steps} steps, {result.wall_s:.0f} s)", soft_wrap=True)
    if args.recall_window:
        _recall(model, forecast, result, args, console)
    return 0


def _tokenizer(model: Model) -> Tokenizer:
    if model.tokenizer is None:
        raise WeightsError(f"model={model.name!r} has no tokenizer.json: add it to the model's directory")
    return model.tokenizer


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console)


def _train(
    model: Model, ids_N: torch.Tensor, config: TrainConfig, args: argparse.Namespace, console: Console
) -> TrainResult:
    with _bar(console) as bar:
        task = bar.add_task("training", total=config.steps)

        def show(done: int, loss: float) -> None:
            bar.update(task, completed=done, description=f"training, loss {loss:.3f}")
            if done % 25 == 0 or done == config.steps:
                bar.console.print(f"step {done}: loss {loss:.4f}")

        checkpoint = args.checkpoint or args.out.with_name(args.out.name + ".checkpoint")
        return train(
            model.decoder,
            ids_N,
            config,
            checkpoint=checkpoint,
            checkpoint_every=args.checkpoint_every,
            resume=args.resume,
            on_step=show,
        )


def _save(path: Path, forecast: ForecastWeights) -> None:
    try:
        save_forecast(path, forecast)
    except OSError as error:
        raise ConfigError(f"out={str(path)!r} cannot be written ({error}); choose another folder") from error


def command_line(args: argparse.Namespace) -> str:
    """Spell out the command that makes this run again, without paths of this machine."""
    parts = ["sparda", "train", "--out", args.out.name, "--model", Path(args.model).name]
    if args.text:
        parts += ["--text", *(path.name for path in args.text)]
    for name in _RECORDED:
        parts += ["--" + name.replace("_", "-"), str(getattr(args, name))]
    return shlex.join(parts)


def _metadata(
    model: Model, config: TrainConfig, used: list[Document], tokens: int, args: argparse.Namespace
) -> dict[str, Any]:
    return {
        **attrs.asdict(config, filter=lambda attribute, _value: attribute.name != "spec"),
        "base_model": model.name,
        "block_spec": attrs.asdict(config.spec),
        "objective": OBJECTIVE,
        "teacher": "query-driven, per-head softmax over entries",
        "lead": 1,
        "tokens": tokens,
        "documents": [document.name for document in used],
        "data_sha256": content_hash(used),
        "command": command_line(args),
        "dtype": args.dtype,
        "device": args.device,
        "software": machine()["software"],
    }


def _recall_config(args: argparse.Namespace) -> RecallConfig:
    spec = BlockSpec(sink=args.sink, local=args.local)
    return RecallConfig(spec=spec, window=args.recall_window, first=args.recall_window // 2)


def _recall(
    model: Model, forecast: ForecastWeights, result: TrainResult, args: argparse.Namespace, console: Console
) -> None:
    config = _recall_config(args)
    windows: dict[str, torch.Tensor] = {}
    for document in held_out_documents():
        ids = _tokenizer(model).encode(document.text)
        if len(ids) >= config.window:
            windows[document.name] = torch.tensor(ids[: config.window])
    with _bar(console) as bar:
        task = bar.add_task("recall on held-out text", total=len(windows))
        table = measure_recall(
            model.decoder,
            list(windows.values()),
            forecast,
            config,
            on_window=lambda done: bar.update(task, completed=done),
        )
    console.print(_as_rich(table, config))
    if args.results is not None:
        write_report(
            args.results, table=table, config=config, documents=list(windows), forecast=forecast, result=result
        )
        console.print(f"recall table: {args.results}", soft_wrap=True)


def _as_rich(table: RecallTable, config: RecallConfig) -> Table:
    shown = Table(title="recall of the query-driven selector's free blocks, held-out text, layers 1 and up")
    shown.add_column("method")
    for budget in config.budgets:
        shown.add_column(f"budget {budget}", justify="right")
    for method in table.by_layer:
        shown.add_row(method, *(f"{table.mean(method, budget):.3f}" for budget in config.budgets))
    return shown

"""The recall table at the end of a training: fixed held-out documents, whatever was trained on."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from sparda_core.distill.recall import BUDGETS, RecallConfig, RecallTable, measure_recall
from sparda_core.distill.report import write_report
from sparda_core.distill.texts import held_out_documents
from sparda_core.distill.train import TrainResult
from sparda_core.errors import ConfigError
from sparda_core.models.decoder import Decoder
from sparda_core.models.forecast_weights import ForecastWeights
from sparda_core.models.tokenizer import Tokenizer
from sparda_core.shapes import BlockSpec


def recall_config(args: argparse.Namespace, spec: BlockSpec) -> RecallConfig:
    """Second half of windows of --recall-window tokens, at the usual budgets that leave anything to choose."""
    least = 2 * (spec.sink + spec.local + 2) * spec.block
    if args.recall_window < least:
        raise ConfigError(
            f"recall_window={args.recall_window} must be >= {least}, so that its second half has free blocks to "
            "choose between; 0 leaves the table out"
        )
    budgets = tuple(budget for budget in BUDGETS if budget > spec.forced) or (spec.budget,)
    return RecallConfig(spec=spec, budgets=budgets, window=args.recall_window, first=args.recall_window // 2)


def final_recall(
    decoder: Decoder,
    tokenizer: Tokenizer,
    forecast: ForecastWeights,
    result: TrainResult,
    args: argparse.Namespace,
    console: Console,
) -> dict[str, Any]:
    """Measure, show and, with --results, write; returns recall by method and budget, and the Forecast's metadata."""
    config = recall_config(args, BlockSpec(**forecast.metadata["block_spec"]))
    windows: dict[str, torch.Tensor] = {}
    for document in held_out_documents():
        ids = tokenizer.encode(document.text)
        if len(ids) >= config.window:
            windows[document.name] = torch.tensor(ids[: config.window])
    with console.status("recall on held-out text") as status:
        table = measure_recall(
            decoder, list(windows.values()), forecast, config,
            on_window=lambda done: status.update(f"recall on held-out text, {done} of {len(windows)} windows"),
        )  # fmt: skip
    if not args.json:
        console.print(_as_rich(table, config))
    if args.results is not None and not console.quiet:
        write_report(
            args.results, table=table, config=config, documents=list(windows), forecast=forecast, result=result,
            device=str(decoder.device),
        )  # fmt: skip
        console.print(f"recall table: {args.results}", soft_wrap=True)
    means = {name: {str(b): table.mean(name, b) for b in config.budgets} for name in table.by_layer}
    return {"recall": means, "training": dict(forecast.metadata)}


def _as_rich(table: RecallTable, config: RecallConfig) -> Table:
    early = "a layer" if table.lead == 1 else f"{table.lead} layers"
    shown = Table(
        title=f"recall of the query-driven selector's free blocks {early} early, held-out text, "
        f"layers {table.lead} and up"
    )
    shown.add_column("method")
    for budget in config.budgets:
        shown.add_column(f"budget {budget}", justify="right")
    for method in table.by_layer:
        shown.add_row(method, *(f"{table.mean(method, budget):.3f}" for budget in config.budgets))
    return shown

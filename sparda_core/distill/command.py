"""The command line of training: options in, a Forecast file, its curves and a recall table out."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sparda_core.distill.config import TrainConfig
from sparda_core.distill.curves import Board, require_tensorboard, write_csv, write_figure
from sparda_core.distill.final import final_recall, recall_config
from sparda_core.distill.history import Evaluation, Step
from sparda_core.distill.needs import held_windows, need_of
from sparda_core.distill.options import (
    add_arguments,
    check_apart,
    check_data,
    command_line,
    config_of,
    default_checkpoint,
    settle_measured,
    sources_of,
)
from sparda_core.distill.parallel import World, joined, own_device
from sparda_core.distill.planned import show_plan
from sparda_core.distill.prepare import Need, Prepared, prepare
from sparda_core.distill.report import machine
from sparda_core.distill.sharded import ShardedDecoder
from sparda_core.distill.sources import Documents
from sparda_core.distill.teachers import Grid
from sparda_core.distill.texts import training_documents
from sparda_core.distill.train import Habits, TrainResult, as_forecast, check_stages, initial_weights, train
from sparda_core.distill.validation import Validation
from sparda_core.errors import ConfigError, WeightsError
from sparda_core.files import check_folder
from sparda_core.locks import locked
from sparda_core.models.forecast_weights import ForecastWeights, save_forecast
from sparda_core.models.load import load_model
from sparda_core.models.model import Model
from sparda_core.models.tokenizer import Tokenizer
from sparda_core.runtimes.session_options import MOST_THREADS

__all__ = ["add_arguments", "command_line", "run"]


def run(args: argparse.Namespace) -> int:
    """Train, save, measure recall on held-out text, report. Returns 0; raises SpardaError on bad input."""
    settle_measured(args)
    config = config_of(args)
    if args.plan:
        show_plan(args, config)
        return 0
    _check(args, config)
    if args.threads is not None:
        if not 1 <= args.threads <= MOST_THREADS:
            raise ConfigError(f"threads={args.threads} must be between 1 and {MOST_THREADS}")
        torch.set_num_threads(args.threads)
    device = own_device(args.device)
    with joined(device) as world, ExitStack() as held:
        if world.leads:
            held.enter_context(locked(args.out))
            held.enter_context(locked(args.checkpoint or default_checkpoint(args.out), option="checkpoint"))
        _Run(args, config, device, world).work()
    return 0


def _check(args: argparse.Namespace, config: TrainConfig) -> None:
    """Refuse now what would be refused after hours of reading and training."""
    out = args.out
    if out is None:
        raise ConfigError("--out is missing: the Forecast file to write, such as --out forecast.safetensors")
    if out.suffix != ".safetensors":
        raise ConfigError(f"out={str(out)!r} must end in .safetensors")
    if args.shape is not None:
        raise ConfigError(f"--shape {args.shape}: sizes alone cannot be trained; add --plan, or give --model")
    _check_places(args)
    check_data(args)
    if args.tensorboard is not None:
        require_tensorboard()
        check_folder(args.tensorboard)
    for name in ("checkpoint_every", "evaluate_every"):
        if getattr(args, name) < 1:
            raise ConfigError(f"{name}={getattr(args, name)} must be >= 1")
    if args.recall_window:
        recall_config(args, config.spec)
    elif args.results is not None or args.json:
        asked = "--json" if args.results is None else "--results"
        raise ConfigError(f"{asked} tells the recall table, which --recall-window 0 leaves out; leave one of them out")
    Grid.parse(config.teacher, config.spec)


def _check_places(args: argparse.Namespace) -> None:
    beside = (".safetensors", ".best.safetensors", ".curve.csv", ".curve.png")
    made = {_beside(args.out, ending).absolute() for ending in beside}
    for name in ("checkpoint", "results"):
        file = getattr(args, name)
        if file is not None and file.absolute() in made:
            raise ConfigError(f"{name}={str(file)!r} is a file that --out writes itself; name another")
    check_apart(args)
    if args.cache is not None:
        check_folder(args.cache)


class _Run:
    """One run of the command in one process; only the first process writes files and speaks."""

    def __init__(self, args: argparse.Namespace, config: TrainConfig, device: str, world: World) -> None:
        self.args, self.config, self.device, self.world = args, config, device, world
        self.console = Console(stderr=True, quiet=not world.leads)
        self.model = _load(args, config, device)
        self.tokenizer = _tokenizer(self.model)
        self.decoder = self.model.decoder
        if args.shard_model:
            self.decoder = ShardedDecoder.of(self.decoder, world, device)

    def work(self) -> None:
        args = self.args
        with ExitStack() as stack:
            folder = args.cache or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sparda-train-")))
            prepared = self._prepare(folder)
            result = self._train(prepared, folder, stack)
        forecast = attrs.evolve(result.forecast, metadata=self._metadata(prepared, self.config.steps))
        if self.world.leads:
            self._write(forecast, result)
        if args.recall_window and (self.world.leads or args.shard_model):
            table = final_recall(self.decoder, self.tokenizer, forecast, result, args, self.console)
            if self.world.leads and args.json:
                sys.stdout.write(json.dumps(table, indent=1) + "\n")
        self.world.wait()

    def _prepare(self, folder: Path) -> Prepared:
        """Text of the run, by the first process alone where the folder is shared."""
        args, vocab = self.args, self.model.decoder.shape.vocab
        need = need_of(args, self.config, self.tokenizer, vocab=vocab)
        sources, shares = sources_of(args)
        if args.cache and not self.world.leads:
            self.world.wait()
        with self._bar() as bar:
            task = bar.add_task("encoding text", total=need.tokens)
            found = prepare(
                sources, need, folder, weights=shares, on_tokens=lambda done: bar.update(task, completed=done)
            )
        if args.cache and self.world.leads:
            self.world.wait()
        self.console.print(
            f"{found.documents} documents, {len(found.train.ids)} tokens to train on; "
            f"{found.held_documents} documents held out"
        )
        return found

    def _windows(self, prepared: Prepared, folder: Path) -> list[torch.Tensor]:
        """Held-out windows; from Python's own library where the caller's text has none that is long enough."""
        wanted, window = self.args.evaluate_windows, self.config.window
        found = held_windows(prepared, wanted, window)
        if found or not wanted:
            return found
        self.console.print(
            f"no held-out document of >= {window} tokens in the text: recall while training is measured on "
            "documents of Python's own library"
        )
        need = Need(
            tokens=0, encode=self.tokenizer.encode, vocab=self.model.decoder.shape.vocab, held_out=0.2,
            windows=wanted, window=window,
        )  # fmt: skip
        return held_windows(prepare([Documents(training_documents())], need, folder), wanted, window)

    def _train(self, prepared: Prepared, folder: Path, stack: ExitStack) -> TrainResult:
        args, config, leads = self.args, self.config, self.world.leads
        windows = self._windows(prepared, folder)
        board = stack.enter_context(Board(args.tensorboard if leads else None))
        bar = stack.enter_context(self._bar())
        task = bar.add_task("training", total=config.steps)

        def show(told: Step) -> None:
            bar.update(task, completed=told.step, description=f"training, KL {told.loss:.3f}")
            board.step(told)
            if told.step % 25 == 0 or told.step == config.steps:
                self.console.print(f"step {told.step}: KL {told.loss:.4f}, gradient {told.norm:.3g}, lr {told.lr:.3g}")

        validate = None
        if windows:
            validate = Validation(decoder=self.decoder, windows=windows, spec=config.taught, world=self.world)
            self.console.print(f"recall while training: {len(windows)} windows, budget {validate.budget}")

        def evaluate(forecast: ForecastWeights, step: int) -> Evaluation:
            assert validate is not None
            found = validate(forecast, step)
            board.evaluation(found)
            self.console.print(f"step {step}: recall {found.oracle:.3f} (oracle), {found.query:.3f} (query-driven)")
            return found

        budget = validate.budget if validate else None

        def keep(forecast: ForecastWeights, found: Evaluation) -> None:
            if leads:
                recall = {"held_out_recall": {**attrs.asdict(found), "budget": budget}}
                known = attrs.evolve(forecast, metadata=self._metadata(prepared, found.step) | recall)
                _save(_beside(args.out, ".best.safetensors"), known)

        habits = Habits(
            checkpoint=args.checkpoint or default_checkpoint(args.out),
            checkpoint_every=args.checkpoint_every, resume=args.resume, evaluate=evaluate if validate else None,
            evaluate_every=args.evaluate_every, best_by=args.best_by, on_best=keep, on_step=show,
            base_model=self.model.name,
        )  # fmt: skip
        begun = habits.resume and habits.checkpoint is not None and habits.checkpoint.exists()
        if validate is not None and not begun:  # where it starts, so that what is learnt can be seen
            evaluate(as_forecast(initial_weights(self.decoder, config), config.lead), 0)
        return train(self.decoder, prepared.train, config, habits, world=self.world)

    def _write(self, forecast: ForecastWeights, result: TrainResult) -> None:
        """The Forecast and its curves."""
        out, history = self.args.out, result.history
        _save(out, forecast)
        write_csv(_beside(out, ".curve.csv"), history)
        try:
            write_figure(_beside(out, ".curve.png"), history, f"{self.model.name}, {self.config.objective}")
        except ConfigError as error:  # everything else was made: say what was not, and go on
            self.console.print(f"no figure: {error}")
        self.console.print(
            f"Forecast of {self.model.name}: {out} ({self.config.steps} steps, {result.wall_s:.0f} s)", soft_wrap=True
        )
        best = history.best(self.args.best_by)
        if best is not None:
            self.console.print(
                f"best on held-out text: {_beside(out, '.best.safetensors')} (step {best.step}, "
                f"recall against {self.args.best_by} {best.by(self.args.best_by):.3f})", soft_wrap=True,
            )  # fmt: skip

    def _metadata(self, prepared: Prepared, steps: int) -> dict[str, Any]:
        config, args = self.config, self.args
        return {
            **attrs.asdict(config, filter=lambda attribute, _value: attribute.name != "spec"),
            "base_model": self.model.name,
            "block_spec": attrs.asdict(config.spec),
            "steps": steps,
            "tokens": len(prepared.train.ids),
            "documents_read": prepared.documents,
            "document_names": list(prepared.train.names),
            "data_sha256": prepared.train.sha256,
            "command": command_line(args),
            "dtype": args.dtype,
            "device": args.device,
            "processes": self.world.size,
            "software": machine()["software"],
        }

    def _bar(self) -> Progress:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        return Progress(*columns, console=self.console)


def _load(args: argparse.Namespace, config: TrainConfig, device: str) -> Model:
    """The frozen model, on the CPU first where it will be shared out."""
    where = "cpu" if args.shard_model else device
    model = load_model(args.model, dtype=getattr(torch, args.dtype), device=where)
    longest = max(config.window, args.recall_window)
    if longest > model.shape.context:
        raise ConfigError(
            f"window={longest} must be <= context={model.shape.context} of {model.name}; "
            "lower --window and --recall-window"
        )
    check_stages(config, model.decoder)
    if config.lead >= model.shape.layers:
        raise ConfigError(f"lead={config.lead} must be < layers={model.shape.layers}: lower the lead")
    return model


def _tokenizer(model: Model) -> Tokenizer:
    if model.tokenizer is None:
        raise WeightsError(f"model={model.name!r} has no tokenizer.json: add it to the model's directory")
    return model.tokenizer


def _beside(out: Path, ending: str) -> Path:
    return out.with_name(out.name.removesuffix(".safetensors") + ending)


def _save(path: Path, forecast: ForecastWeights) -> None:
    try:
        save_forecast(path, forecast)
    except OSError as error:
        raise ConfigError(f"out={str(path)!r} cannot be written ({error}); choose another folder") from error

"""Options of `sparda train`, and what they make: a TrainConfig, sources, the command that repeats a run."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from sparda_core.blocks import OTHER, OTHER_HELP, settled
from sparda_core.distill.config import CPU_RECIPE, INITS, NOSA, PUBLISHED, REFERENCE_RUN, SCHEDULES, TrainConfig
from sparda_core.distill.objectives import OBJECTIVES
from sparda_core.distill.own_states import FORECAST, STATES
from sparda_core.distill.rows import MODES
from sparda_core.distill.sources import Documents, HuggingFace, Mosaic, Source, TextFiles
from sparda_core.distill.texts import training_documents
from sparda_core.errors import ConfigError
from sparda_core.models.own_blocks import OwnBlocks, own_blocks
from sparda_core.shapes import BlockSpec

DTYPES = ("bfloat16", "float32")
#: Options that say how often and on what recall is measured: usually, and with --cpu-recipe.
MEASURED = {"evaluate_every": (50, 20), "recall_window": (8192, 4096)}
#: What is read of a folder of text, and of a dataset.
PATTERN, SPLIT = "**/*", "train"
#: Options that are fields of TrainConfig: type, choices, help.
FIELDS: dict[str, tuple[type, Sequence[str] | None, str]] = {
    "objective": (
        str, (*OBJECTIVES, *PUBLISHED),
        "what is learnt; 'reference', and 'nosa' for a NOSA model, also set the published run's numbers",
    ),
    "teacher": (str, None, "grid of the targets: coarse (the entries'), fine (2/1) or WINDOW/STRIDE"),
    "steps": (int, None, "optimiser steps"),
    "batch": (int, None, "rows of a step, over all processes; they are read one by one"),
    "window": (int, None, "most tokens of a row of text"),
    "documents": (str, MODES, "rows hold documents apart from each other, one each, or joined as one text"),
    "positions": (int, None, "query positions drawn from each row"),
    "first_position": (int, None, "earliest of these positions, in tokens from the document's start"),
    "lr": (float, None, "peak learning rate"),
    "schedule": (str, SCHEDULES, "of the learning rate, after the warm-up"),
    "warmup": (int, None, "steps of a linear warm-up"),
    "lr_floor": (float, None, "share of the peak at which the cosine ends"),
    "clip": (float, None, "largest L2 norm of all gradients together; 0: none"),
    "weight_decay": (float, None, "of AdamW"),
    "eps": (float, None, "of AdamW"),
    "lead": (int, None, "layers between a Forecast and the layer that it is for"),
    "states": (str, STATES, "hidden states follow dense attention, or what the Forecast or its teacher selects"),
    "seed": (int, None, "of the documents' order, the positions and a random start"),
    "init": (str, INITS, "where the projections start: the mean of each group's own query rows, or random"),
    "select_blocks": (int, None, "of a NOSA model: blocks beside sink and local that go by the score; 0: one stage"),
    "chunk_mib": (int, None, "memory for scores of the queries asked at once"),
}
_SPEC = ("block", "sink", "local", "budget")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare all options; their names follow TrainConfig and BlockSpec."""
    add = parser.add_argument
    add("--out", type=Path, help="Forecast file to write (.safetensors); others of its name lie beside it")
    add("--model", default="smollm2", help="smollm2, a GGUF file or a checkpoint directory")
    learn = parser.add_argument_group("learning")
    sizes = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in CPU_RECIPE.items())
    learn.add_argument(
        "--cpu-recipe", action="store_true",
        help=f"a run of about ten minutes on two cores, unless told otherwise: {sizes}",
    )  # fmt: skip
    for name, (kind, choices, words) in FIELDS.items():
        learn.add_argument(_flag(name), dest=name, type=kind, choices=choices, help=_explained(name, words))
    learn.add_argument(
        "--on-policy", dest="states", action="store_const", const=FORECAST, help="the same as --states forecast"
    )
    add_blocks(learn, {
        "sink": "first blocks, always attended and never learnt", "local": "blocks before the current one, likewise",
        "block": "tokens of a block", "budget": "blocks attended, for recall and for 'top'",
    })  # fmt: skip
    add_data(parser)
    _add_running(parser)


def add_blocks(group: argparse._ArgumentGroup, words: Mapping[str, str]) -> None:
    """Options of the cut; `words` say what each is."""
    usual = BlockSpec()
    for name, told in words.items():
        group.add_argument(
            f"--{name}", type=int, help=f"{told} (default: the checkpoint's own, or {getattr(usual, name)})"
        )
    group.add_argument(
        "--entries", metavar="WINDOW/STRIDE",
        help=f"grid of the compressed keys (default: the checkpoint's own, or {usual.window}/{usual.stride})",
    )  # fmt: skip
    group.add_argument(OTHER, action="store_true", help=OTHER_HELP)


def add_data(parser: argparse.ArgumentParser) -> None:
    """Options that say what is read."""
    data = parser.add_argument_group("text (default: Python's own library)")
    data.add_argument("--text", type=Path, nargs="+", help="UTF-8 files, or folders of them")
    data.add_argument("--pattern", help=f"which files of a folder of --text (default: {PATTERN})")
    data.add_argument("--dataset", nargs="+", metavar="DIR[@SHARE]", help="Hugging Face datasets on disk")
    data.add_argument("--mds", nargs="+", metavar="DIR[@SHARE]", help="folders of Mosaic MDS shards")
    data.add_argument("--column", help="of a data set, to train on (default: text, content, input_ids or tokens)")
    data.add_argument("--split", help=f"split of a --dataset that has several (default: {SPLIT})")
    data.add_argument("--source-tokenizer", type=Path, help="tokenizer.json of ids that are not the model's own")
    data.add_argument("--held-out", type=float, default=0.05, help="share of documents held out, by their hash")
    data.add_argument("--cache", type=Path, help="folder that keeps encoded text for the next run")


def _add_running(parser: argparse.ArgumentParser) -> None:
    run = parser.add_argument_group("running")
    run.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="of the frozen model")
    run.add_argument("--device", default="cpu", help="cpu or cuda; what trains it")
    run.add_argument("--threads", type=int, help="CPU threads for tensors")
    run.add_argument("--shard-model", action="store_true", help="share the frozen layers out among processes (FSDP)")
    run.add_argument("--checkpoint", type=Path, help="default: OUT with .checkpoint appended")
    run.add_argument("--checkpoint-every", type=int, default=25, help="steps between checkpoints")
    run.add_argument("--resume", action="store_true", help="go on from the checkpoint if there is one")
    run.add_argument(
        "--evaluate-every", type=int, help=f"steps between measurements of recall {_usual('evaluate_every')}"
    )
    run.add_argument("--evaluate-windows", type=int, default=4, help="held-out windows to measure on; 0: none")
    run.add_argument("--best-by", choices=("oracle", "query"), default="oracle", help="recall that decides the best")
    run.add_argument("--tensorboard", type=Path, help="folder for a TensorBoard log")
    run.add_argument("--results", type=Path, help="write the recall table and how it was made as JSON")
    run.add_argument(
        "--recall-window", type=int, help=f"tokens of a window of the last table; 0: none {_usual('recall_window')}"
    )
    run.add_argument("--plan", action="store_true", help="show how much memory a step takes, and stop")
    run.add_argument("--shape", help="with --plan: a model by its sizes alone")
    run.add_argument("--json", action="store_true", help="print one JSON document instead of tables")


def _usual(name: str) -> str:
    usual, recipe = MEASURED[name]
    return f"(default: {usual}; CPU recipe: {recipe})"


def default_checkpoint(out: Path) -> Path:
    """Where a run that writes `out` keeps its checkpoint unless told otherwise."""
    return out.with_name(out.name + ".checkpoint")


def check_apart(args: argparse.Namespace) -> None:
    """Raise ConfigError where --results would take the place of the checkpoint."""
    checkpoint = args.checkpoint or default_checkpoint(args.out)
    if args.results is not None and args.results.absolute() == checkpoint.absolute():
        raise ConfigError(f"results={str(args.results)!r} is the place of the checkpoint; name another file")


def settle_measured(args: argparse.Namespace) -> None:
    """Fill in what was left out of MEASURED; raises ConfigError for a recipe that does not fit what it is asked for."""
    if args.cpu_recipe and args.objective in PUBLISHED:
        raise ConfigError(f"--cpu-recipe and --objective {args.objective} both set the run's numbers; give one of them")
    for name, (usual, recipe) in MEASURED.items():
        if getattr(args, name) is None:
            setattr(args, name, recipe if args.cpu_recipe else usual)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _explained(name: str, words: str) -> str:
    own = getattr(attrs.fields(TrainConfig), name).default
    published = REFERENCE_RUN.get(name, "all" if name == "positions" else own)
    return f"{words} (default: {own})" if published == own else f"{words} (default: {own}; reference: {published})"


def spec_of(args: argparse.Namespace, own: BlockSpec | None = None) -> BlockSpec:
    """The block cut; raises ConfigError for a malformed --entries, or what contradicts the checkpoint's `own`."""
    said: dict[str, int | None] = {name: getattr(args, name) for name in _SPEC}
    if args.entries is not None:
        window, _, stride = args.entries.partition("/")
        if not (window.isdecimal() and stride.isdecimal()):
            raise ConfigError(f"entries={args.entries!r} must be WINDOW/STRIDE in tokens, as in 32/16")
        said |= {"window": int(window), "stride": int(stride)}
    names = {"window": "--entries with window", "stride": "--entries with stride"}
    return settled(said, own, BlockSpec(), other=args.other_blocks, options=names)


def config_of(args: argparse.Namespace) -> TrainConfig:
    """The run: what was given, and for the rest what the checkpoint names, a published run has, or the defaults."""
    given = {name: getattr(args, name) for name in FIELDS if getattr(args, name) is not None}
    own = OwnBlocks() if getattr(args, "shape", None) else own_blocks(args.model)
    if args.objective == NOSA and own.select_blocks is not None:
        given.setdefault("select_blocks", own.select_blocks)
    if args.cpu_recipe:
        given = {**CPU_RECIPE, **given}
    make = TrainConfig.reference if args.objective in PUBLISHED else TrainConfig
    return make(spec=spec_of(args, own.spec), **given)


def check_data(args: argparse.Namespace) -> None:
    """Raise ConfigError for an option of a source that is not read: it would do nothing."""
    sets = bool(args.dataset or args.mds)
    wanted = {
        "pattern": (bool(args.text), "--text"), "split": (bool(args.dataset), "--dataset"),
        "column": (sets, "--dataset or --mds"), "source_tokenizer": (sets, "--dataset or --mds"),
    }  # fmt: skip
    for name, (there, source) in wanted.items():
        if getattr(args, name) is not None and not there:
            raise ConfigError(f"{_flag(name)} {getattr(args, name)} is of {source}, and none is given: leave it out")


def sources_of(args: argparse.Namespace) -> tuple[list[Source], list[float] | None]:
    """Sources and, where any is given a share, the shares.

    raises  ConfigError where some have a share and others none, one cannot be opened, or an option is of no source
    """
    check_data(args)
    sources: list[Source] = [TextFiles(args.text, args.pattern or PATTERN)] if args.text else []
    shares: list[float | None] = [None] * len(sources)
    kinds: tuple[tuple[Sequence[str], Any], ...] = (
        (args.dataset or (), lambda path: HuggingFace(path, column=args.column, split=args.split or SPLIT)),
        (args.mds or (), lambda path: Mosaic(path, column=args.column)),
    )
    for words, make in kinds:
        for word in words:
            path, share = _shared(word)
            sources.append(make(Path(path)))
            shares.append(share)
    if not sources:
        return [Documents(training_documents())], None
    known = [share for share in shares if share is not None]
    if known and len(known) < len(shares):
        raise ConfigError("either every source has an @SHARE or none has; --text takes none: leave it out then")
    return sources, known or None


def _shared(word: str) -> tuple[str, float | None]:
    path, at, share = word.rpartition("@")
    if not at:
        return word, None
    try:
        value = float(share)
    except ValueError:
        return word, None
    if not 0 < value < float("inf"):
        raise ConfigError(f"{word!r}: the share after @ must be a number > 0")
    return path, value


def command_line(args: argparse.Namespace) -> str:
    """Spell out the command that makes this run again, without paths of this machine."""
    parts = ["sparda", "train", "--out", args.out.name, "--model", Path(args.model).name]
    if args.text:
        parts += ["--text", *(path.name for path in args.text)]
    for name in ("dataset", "mds"):
        if getattr(args, name):
            parts += [_flag(name), *(Path(word).name for word in getattr(args, name))]
    config = config_of(args)
    parts += [word for name in FIELDS for word in (_flag(name), str(getattr(config, name)))]
    parts += [word for name in _SPEC for word in (_flag(name), str(getattr(config.spec, name)))]
    parts += ["--entries", f"{config.spec.window}/{config.spec.stride}"]
    parts += [OTHER] if args.other_blocks else []
    for name in ("held_out", "dtype", "device", "pattern", "column", "split"):
        if getattr(args, name) is not None:
            parts += [_flag(name), str(getattr(args, name))]
    return shlex.join(parts)

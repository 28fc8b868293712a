"""`sparda convert`: Forecast weights between the release's format and ours; base models into another dtype."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sparda_core.cli.options import add_json
from sparda_core.cli.running import progress
from sparda_core.cli.screen import show_json, size
from sparda_core.errors import ConfigError
from sparda_core.shapes import SHAPES, ModelShape, named_shape

if TYPE_CHECKING:
    import torch

DTYPES = ("bfloat16", "float16", "float32")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sparda convert`."""
    parser.add_argument(
        "source", type=Path, metavar="IN",
        help="Forecast weights (.safetensors, or a .pt of the published release), or a base model: a directory, a GGUF",
    )  # fmt: skip
    parser.add_argument(
        "target", type=Path, metavar="OUT",
        help="a file that ends in .safetensors or .pt for Forecast weights; a new folder for a base model",
    )  # fmt: skip
    parser.add_argument("--dtype", choices=DTYPES, help="dtype of every tensor (default: as stored)")
    base = parser.add_mutually_exclusive_group()
    base.add_argument(
        "--shape", metavar="NAME",
        help=f"the Forecast's base model by name, to check every tensor against: {', '.join(SHAPES)}",
    )  # fmt: skip
    base.add_argument("--model", type=Path, metavar="PATH", help="the same by its checkpoint directory")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Convert, and say what was written."""
    import torch

    dtype = None if args.dtype is None else getattr(torch, args.dtype)
    if args.source.is_dir() or args.source.suffix == ".gguf":
        if args.shape is not None or args.model is not None:
            raise ConfigError("--shape and --model say what a Forecast belongs to; leave them out for a base model")
        if args.target.suffix in (".pt", ".safetensors"):
            raise ConfigError(
                f"out={str(args.target)!r} ends as a file of Forecast weights, and IN={str(args.source)!r} is a base "
                "model: name a new folder"
            )
        return _model(args, dtype)
    if args.target.exists() and args.target.resolve() == args.source.resolve():
        raise ConfigError(f"out={str(args.target)!r} is the file that is read; name another")
    return _forecast(args, dtype)


def _forecast(args: argparse.Namespace, dtype: torch.dtype | None) -> int:
    from sparda_core.models.convert import convert_forecast

    made = convert_forecast(args.source, args.target, dtype=dtype, shape=_shape(args))
    if args.json:
        show_json({
            "path": str(made.path), "tensors": made.tensors, "parameters": made.parameters, "dtypes": made.dtypes,
            "layers": made.layers, "last_layer_is_zeros": made.zeros_added, "metadata": made.metadata,
        })  # fmt: skip
        return 0
    sys.stdout.write(f"{made.path}: {made.tensors} tensors, {made.parameters:,} values, {', '.join(made.dtypes)}\n")
    if made.zeros_added and made.layers is not None:
        sys.stdout.write(f"layer {made.layers - 1}, the last, has zeros: a place that nobody reads\n")
    return 0


def _model(args: argparse.Namespace, dtype: torch.dtype | None) -> int:
    from sparda_core.models.convert_model import convert_model

    with progress() as report:
        made = convert_model(
            args.source, args.target, dtype=dtype, on_tensor=lambda _, done, total: report("tensors", done, total)
        )
    if args.json:
        show_json({
            "path": str(made.path), "files": made.files, "tensors": made.tensors, "bytes": made.weight_bytes,
            "dtype": made.dtype,
        })  # fmt: skip
        return 0
    told = f"{made.tensors} tensors of {made.dtype}, {size(made.weight_bytes)} in {len(made.files)} file(s)"
    sys.stdout.write(f"{made.path}: {told}\n")
    return 0


def _shape(args: argparse.Namespace) -> ModelShape | None:
    if args.shape is not None:
        return named_shape(args.shape)
    if args.model is None:
        return None
    from sparda_core.models.safetensors_dir import read_constants

    return read_constants(args.model).shape

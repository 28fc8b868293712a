"""Groups of options that several commands share, and what they build."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparda_core.blocks import FIELDS, OTHER, OTHER_HELP, settled
from sparda_core.cli.parser import number
from sparda_core.errors import ConfigError
from sparda_core.policy import LAST_SELECTION
from sparda_core.registry import RUNTIMES
from sparda_core.shapes import SHAPES, BlockSpec

POSITIVE = number(int, least=1)
NOT_NEGATIVE = number(int, least=0)
SEED = number(int, least=0, most=2**63 - 1)


class Default(int):
    """An integer option that was left out: the number that a model without a word of its own gets."""


def add_json(parser: argparse._ActionsContainer) -> None:
    """--json: one JSON document on standard output instead of tables."""
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")


def add_shape(parser: argparse.ArgumentParser, *, default: str) -> None:
    """--shape: sizes of a decoder by name."""
    parser.add_argument("--shape", default=default, metavar="NAME", help=f"model sizes: {', '.join(SHAPES)}")


def add_spec(parser: argparse.ArgumentParser, spec: BlockSpec, *, of_model: bool = False) -> None:
    """Options of a BlockSpec; `spec` holds the defaults shown.

    of_model  an option that is left out is the model's own where its checkpoint names blocks; `spec` is where not
    """
    title = "blocks and entries (defaults: the checkpoint's own, or those shown)" if of_model else "blocks and entries"
    group = parser.add_argument_group(title)
    left_out = Default if of_model else int
    group.add_argument(
        "--budget", type=POSITIVE, default=left_out(spec.budget), metavar="BLOCKS",
        help="blocks attended per KV head, forced ones included",
    )  # fmt: skip
    group.add_argument(
        "--sink", type=NOT_NEGATIVE, default=left_out(spec.sink), metavar="BLOCKS",
        help="first blocks, always attended",
    )  # fmt: skip
    group.add_argument(
        "--local", type=NOT_NEGATIVE, default=left_out(spec.local), metavar="BLOCKS",
        help="blocks before the current one, always attended; the current one comes on top",
    )  # fmt: skip
    group.add_argument(
        "--block", type=POSITIVE, default=left_out(spec.block), metavar="TOKENS", help="tokens in a block"
    )
    group.add_argument(
        "--window", type=POSITIVE, default=left_out(spec.window), metavar="TOKENS",
        help="tokens averaged into one entry",
    )  # fmt: skip
    group.add_argument(
        "--stride", type=POSITIVE, default=left_out(spec.stride), metavar="TOKENS",
        help="tokens between starts of two entries",
    )  # fmt: skip
    if of_model:
        add_other_blocks(group)


def add_other_blocks(group: argparse._ActionsContainer) -> None:
    """--other-blocks: options may contradict the checkpoint."""
    group.add_argument(OTHER, action="store_true", help=OTHER_HELP)


def spec_of(args: argparse.Namespace, own: BlockSpec | None = None) -> BlockSpec:
    """The BlockSpec of parsed options; raises ConfigError where the numbers do not fit together, or contradict `own`.

    own  of the checkpoint; stands for options that were left out, where the command has them so
    """
    given = {name: getattr(args, name) for name in FIELDS}
    if own is None:
        return BlockSpec(**given)
    said = {name: None if isinstance(value, Default) else value for name, value in given.items()}
    return settled(said, own, own, other=getattr(args, "other_blocks", False))


def add_combination(parser: argparse.ArgumentParser, *, selector: str, runtime: str) -> None:
    """--selector, --runtime and their own options."""
    group = parser.add_argument_group("method")
    group.add_argument("--selector", default=selector, metavar="NAME", help="which blocks; see `sparda methods`")
    group.add_argument("--runtime", default=runtime, metavar="NAME", help="where they live; see `sparda methods`")
    group.add_argument(
        "--selector-option", action="append", default=[], metavar="NAME=VALUE",
        help="an option of the selector, such as seed=7; may be given again",
    )  # fmt: skip
    add_pool(group)
    group.add_argument(
        "--resident-layers", type=NOT_NEGATIVE, metavar="LAYERS",
        help="first layers kept on the device whole (default: as many as the selector's lead)",
    )  # fmt: skip


def add_pool(group: argparse._ActionsContainer) -> None:
    """--slots and --policy: the device pool of an offloading runtime."""
    group.add_argument(
        "--slots", type=POSITIVE, metavar="BLOCKS",
        help="device slots per row and KV head of an offloaded layer (default: the budget)",
    )  # fmt: skip
    group.add_argument(
        "--policy", default="last-selection", metavar="NAME", help="what a full pool keeps: last-selection, lru, score"
    )


def runtime_options(args: argparse.Namespace) -> dict[str, Any]:
    """Options of the runtime that were parsed by `add_combination`."""
    options = {"slots": args.slots, "policy": args.policy, "resident_layers": args.resident_layers}
    engine = getattr(args, "gpu_engine", None)  # of cli/gpu_options.py, where a command has those
    check_pool(args.runtime, {**options, "engine": engine})
    return options if engine is None else {**options, "engine": engine}


def check_pool(runtime: str, said: Mapping[str, Any]) -> None:
    """Raise ConfigError where an option of a device pool was given to a runtime that has none: it would do nothing.

    said  options by their name in Python; None, and the usual policy, count as not given
    """
    given = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in said.items()
        if value is not None and not (name == "policy" and value == LAST_SELECTION)
    ]
    if given and not getattr(RUNTIMES.factory(runtime), "offloads", True):
        raise ConfigError(
            f"{', '.join(given)}: runtime={runtime!r} keeps every block on the device and moves none; leave out, or "
            "choose a runtime that offloads, such as --runtime offload-prefetch"
        )


def selector_options(pairs: list[str]) -> dict[str, Any]:
    """NAME=VALUE pairs as keyword options; a value that reads as a number or true/false becomes one."""
    options: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name.isidentifier():
            raise ConfigError(f"--selector-option {pair!r} must be NAME=VALUE, such as seed=7")
        options[name] = _value(text)
    return options


def _value(text: str) -> int | float | bool | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def add_model(parser: argparse.ArgumentParser) -> None:
    """--model, --forecast and --threads: what runs, and on how many cores."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model", default="smollm2", metavar="NAME|PATH",
        help="'smollm2', a GGUF file, or a directory with config.json and safetensors",
    )  # fmt: skip
    group.add_argument(
        "--forecast", type=Path, metavar="FILE",
        help="Forecast weights: .safetensors, or the published release's .pt (default: those shipped with smollm2)",
    )  # fmt: skip
    group.add_argument(
        "--threads", type=number(int, least=1, most=4096), metavar="CORES",
        help="cores of the compute lane (default: all but one, which the copy lane keeps)",
    )  # fmt: skip


def add_device(parser: argparse.ArgumentParser) -> None:
    """--device: where the model lies and decodes."""
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu",
        help="where the model decodes; cuda: an NVIDIA GPU, its step one CUDA graph",
    )  # fmt: skip


def add_text(parser: argparse.ArgumentParser) -> None:
    """--text and --max-tokens: what is read."""
    group = parser.add_argument_group("text")
    group.add_argument("--text", type=Path, metavar="FILE", help="a UTF-8 text (default: Python's own documentation)")
    group.add_argument(
        "--max-tokens", type=POSITIVE, metavar="TOKENS",
        help="read no more than the first so many tokens (default: all of a file, a part of Python's documentation)",
    )  # fmt: skip


def add_link(
    parser: argparse._ActionsContainer,
    *,
    help: str = "slow the copy lane to this speed, 1e9 bytes a second: an emulated link (default: no limit)",  # noqa: A002
) -> None:
    """--link-gb-s: the speed of the link between host and device."""
    parser.add_argument("--link-gb-s", type=number(float, least=1e-6), metavar="GB/S", help=help)

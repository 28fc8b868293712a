"""`sparda compare`: the main job. Every selector under every runtime on one text, measured and predicted."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from sparda_core.cli.compare_tables import show_report
from sparda_core.cli.options import POSITIVE, SEED, add_json, add_link, add_model, add_pool, add_spec, add_text, spec_of
from sparda_core.cli.parser import number
from sparda_core.cli.running import progress
from sparda_core.cli.screen import show_json
from sparda_core.locks import locked_folder
from sparda_core.shapes import BlockSpec

if TYPE_CHECKING:
    from sparda_core.bench.config import CompareConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sparda compare`."""
    parser.add_argument(
        "--out", type=Path, default=Path("sparda-results"), metavar="DIR",
        help="folder for the report (JSON), figures (PNG) and traces",
    )  # fmt: skip
    parser.add_argument(
        "--full", action="store_true", help="read 8,192 tokens of the demo's document instead of 4,096"
    )
    parser.add_argument(
        "--resume", action=argparse.BooleanOptionalAction, default=True,
        help="go on from the finished parts of an interrupted run with the same settings",
    )  # fmt: skip
    add_text(parser)
    add_model(parser)
    parser.add_argument("--device", default="cpu", metavar="NAME", help="what runs it; cpu is all there is today")
    add_spec(parser, BlockSpec(), of_model=True)
    add_pool(parser.add_argument_group("device pool"))
    load = parser.add_argument_group("load and link")
    load.add_argument("--batch", type=POSITIVE, default=1, metavar="ROWS", help="rows decoded together, when timed")
    add_link(
        load,
        help="speed of the emulated link, 1e9 bytes a second (default: measured, so that the transfers of a "
        "synchronous step take 0.6 of a resident step)",
    )
    measuring = parser.add_argument_group("measuring")
    measuring.add_argument(
        "--quality-steps", type=POSITIVE, default=18, metavar="STEPS", help="decode steps judged in each stretch"
    )
    measuring.add_argument(
        "--timed-steps", type=POSITIVE, default=64, metavar="STEPS",
        help="steps behind a quoted step time; a multiple of the rounds",
    )  # fmt: skip
    measuring.add_argument("--rounds", type=POSITIVE, default=4, metavar="N", help="interleaved rounds of these")
    measuring.add_argument(
        "--windows", type=POSITIVE, default=8, metavar="ROWS", help="stretches of text judged side by side"
    )
    measuring.add_argument(
        "--task-tokens", type=number(int, least=128), metavar="TOKENS",
        help="prompt length of passkey and copy (default: as the document, at most 3,072)",
    )  # fmt: skip
    measuring.add_argument(
        "--seed", type=SEED, default=0, metavar="N", help="of the passkey and of `random`"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Compare; an interruption keeps what is finished."""
    config = config_of(args)

    from sparda_core.bench.compare import run_compare

    parts = config.out / "parts"
    if not args.resume and parts.is_dir():
        with locked_folder(config.out):
            shutil.rmtree(parts)
    try:
        with progress() as report:
            found = run_compare(config, progress=report)
    except KeyboardInterrupt:
        kept = len(list(parts.glob("*.json"))) if parts.is_dir() else 0
        raise KeyboardInterrupt(
            f"interrupted; {kept} finished parts are kept in {parts}: the same command goes on from there"
        ) from None
    if args.json:
        show_json(found)
    else:
        show_report(found)
    return 0


def config_of(args: argparse.Namespace) -> CompareConfig:
    """The comparison that the options ask for; raises ConfigError where they do not fit together."""
    from sparda_core.bench.config import CompareConfig

    return CompareConfig(
        model=args.model, forecast=args.forecast, text=args.text, max_tokens=args.max_tokens, full=args.full,
        spec=spec_of(args, _own_blocks(args.model)), slots=args.slots, policy=args.policy, batch=args.batch,
        link_gb_s=args.link_gb_s, device=args.device, out=args.out, seed=args.seed, windows=args.windows,
        steps=args.quality_steps, task_tokens=args.task_tokens, timed_steps=args.timed_steps,
        rounds=args.rounds, threads=args.threads,
    )  # fmt: skip


def _own_blocks(model: str) -> BlockSpec | None:
    """The blocks that a checkpoint names, read without its weights; None for files that name none."""
    if not Path(model).is_dir():
        return None
    from sparda_core.models.own_blocks import own_blocks

    return own_blocks(model).spec

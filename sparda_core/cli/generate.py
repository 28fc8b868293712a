"""`sparda generate`: continue a prompt under one selector and runtime."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparda_core.cli.gpu_options import add_gpu
from sparda_core.cli.options import (
    POSITIVE,
    SEED,
    add_combination,
    add_device,
    add_json,
    add_link,
    add_model,
    add_spec,
)
from sparda_core.cli.parser import number
from sparda_core.cli.placing import place, read
from sparda_core.cli.running import fit_tokens, link_bytes_per_s, read_text, tokenizer_of
from sparda_core.cli.screen import seconds, show_json, size
from sparda_core.errors import ConfigError
from sparda_core.shapes import BlockSpec

if TYPE_CHECKING:
    from sparda_core.compose import Combination, Generated


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sparda generate`."""
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="the text to continue; or give --text")
    parser.add_argument("--text", type=Path, metavar="FILE", help="a UTF-8 text to continue; - reads standard input")
    parser.add_argument("--max-tokens", type=POSITIVE, metavar="TOKENS", help="read no more than so many of it")
    parser.add_argument("--max-new-tokens", type=POSITIVE, default=64, metavar="TOKENS", help="tokens to generate")
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument(
        "--temperature", type=number(float, least=0), default=0.0, metavar="T",
        help="0 always takes the likeliest token",
    )  # fmt: skip
    sampling.add_argument(
        "--top-p", type=number(float, least=0, most=1), default=1.0, metavar="SHARE",
        help="draw from the likeliest tokens that make up this probability",
    )  # fmt: skip
    sampling.add_argument("--seed", type=SEED, default=0, metavar="N", help="of the draws")
    add_combination(parser, selector="forecast", runtime="offload-prefetch")
    parser.add_argument(
        "--prefill", choices=("dense", "selector"), default="dense",
        help="how the prompt is read: every token sees all before it, or its own selection",
    )  # fmt: skip
    add_spec(parser, BlockSpec(), of_model=True)
    add_model(parser)
    add_device(parser)
    add_gpu(parser)
    add_link(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Stream the continuation, or print it with what it took as JSON."""
    if (args.prompt is None) == (args.text is None):
        raise ConfigError("give a PROMPT or --text FILE, one of the two")
    text = read_text(args.text) if args.prompt is None else args.prompt
    found = read(args)
    tokenizer = tokenizer_of(found)
    ids = fit_tokens(
        tokenizer.prompt(text), room=args.max_new_tokens, context=found.shape.context, most=args.max_tokens
    )
    model, pair, memory = place(
        args, found, tokens=len(ids) + args.max_new_tokens, link_bytes_per_s=link_bytes_per_s(args)
    )
    stream = Stream(tokenizer.decode, (lambda piece: None) if args.json else _write)
    stop = model.config.end_ids
    made = pair.generate(
        ids, args.max_new_tokens, temperature=args.temperature, top_p=args.top_p, seed=args.seed, stop=stop,
        mode=args.prefill, on_token=stream.add,
    )  # fmt: skip
    stream.close()
    summary = _summary(pair, ids, made, stream)
    if args.json:
        told = {"text": stream.text, "tokens": made.tokens, **summary}
        show_json(told if memory is None else {**told, "memory": memory.as_json()})
    else:
        sys.stdout.write("\n")
        sys.stderr.write(_line(summary))
    return 0


class Stream:
    """Turns ids into text as they come; a character split over several ids waits until it is whole."""

    def __init__(self, decode: Callable[[list[int]], str], write: Callable[[str], None]) -> None:
        self._decode, self._write = decode, write
        self._waiting: list[int] = []
        self.text = ""
        self.times_s: list[float] = []

    def add(self, token: int) -> None:
        """Take one id; writes whatever text is whole by now."""
        self.times_s.append(time.perf_counter())
        self._waiting.append(token)
        piece = self._decode(self._waiting)
        if not piece.endswith("\N{REPLACEMENT CHARACTER}"):
            self._emit(piece)

    def close(self) -> None:
        """Write what is left, whole or not."""
        if self._waiting:
            self._emit(self._decode(self._waiting))

    def _emit(self, piece: str) -> None:
        self._waiting.clear()
        self.text += piece
        self._write(piece)


def _write(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()


def _summary(pair: Combination, ids: list[int], made: Generated, stream: Stream) -> dict[str, Any]:
    times = stream.times_s
    steps = len(made.facts)
    block_bytes = 2 * pair.spec.block * pair.shape.head_dim * pair.model.dtype.itemsize
    misses = sum(int(facts.misses.sum()) for facts in made.facts)
    selected = sum(int(facts.selected.sum()) for facts in made.facts)
    return {
        "selector": pair.selector.name, "runtime": pair.runtime.name, "spec": pair.spec,
        "prompt_tokens": len(ids), "new_tokens": len(made.tokens),
        "mean_step_s": (times[-1] - times[0]) / steps if steps else None,
        "selected_blocks": selected, "missed_blocks": misses, "moved_bytes": misses * block_bytes,
    }  # fmt: skip


def _line(summary: dict[str, Any]) -> str:
    share = summary["missed_blocks"] / summary["selected_blocks"] if summary["selected_blocks"] else 0.0
    return (
        f"[{summary['selector']} x {summary['runtime']}: {summary['prompt_tokens']} + {summary['new_tokens']} tokens, "
        f"{seconds(summary['mean_step_s'])} a step, {share:.1%} of selected blocks moved "
        f"({size(summary['moved_bytes'])})]\n"
    )

"""What the commands that run a model share: loading it, reading a text, progress. Loads torch when called."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sparda_core.cli.gpu_options import OF_A_CPU, gpu_options
from sparda_core.cli.options import runtime_options, selector_options, spec_of
from sparda_core.cli.screen import console
from sparda_core.errors import ConfigError, WeightsError
from sparda_core.files import MOST_DOCUMENT_BYTES, read_whole

if TYPE_CHECKING:
    from sparda_core.bench.text import Reading
    from sparda_core.compose import Combination
    from sparda_core.models.config import DecoderConfig
    from sparda_core.models.load import ReadModel
    from sparda_core.models.model import Model

GIGA = 1e9
#: Selectors with an option `select_blocks`, which a NOSA checkpoint names.
IN_TWO_STAGES = ("nosa", "nosa-forecast")
#: Tokens of the demo's document that a single combination is looked at on.
DOCUMENT_TOKENS = 2048

#: Called with (what, done, total).
Report = Callable[[str, int, int], None]


def load(args: argparse.Namespace) -> Model:
    """The model of --model and --forecast, on the device of --device where the command has it."""
    from sparda_core.models.load import load_model

    with console(sys.stderr).status(f"loading {args.model}"):
        return load_model(args.model, forecast=args.forecast, device=getattr(args, "device", "cpu"))


def combine(args: argparse.Namespace, model: Model, **session_options: Any) -> Combination:
    """The combination of --selector, --runtime and their options on a loaded model.

    session_options  of a CPU's session, besides --threads; a GPU's are those of `gpu_options`
    """
    from sparda_core.compose import compose

    session_options = {"threads": args.threads, **session_options}
    if model.decoder.device.type != "cpu":
        if any(value is not None for value in session_options.values()):
            raise ConfigError(OF_A_CPU)
        session_options = gpu_options(args)
    return compose(model.decoder, args.selector, args.runtime, **method(args, model.config), **session_options)


def method(args: argparse.Namespace, config: DecoderConfig) -> dict[str, Any]:
    """What `compose` takes besides the model, of these constants, and the two names."""
    options = selector_options(args.selector_option)
    if config.select_blocks is not None and args.selector in IN_TWO_STAGES:
        options.setdefault("select_blocks", config.select_blocks)
    return {
        "spec": spec_of(args, config.block_spec), "selector_options": options, "runtime_options": runtime_options(args)
    }


def link_bytes_per_s(args: argparse.Namespace) -> float | None:
    """--link-gb-s in bytes per second; None for no limit."""
    return None if args.link_gb_s is None else float(args.link_gb_s) * GIGA


def tokenizer_of(model: Model | ReadModel) -> Any:
    """The model's tokenizer; raises WeightsError where it came without one."""
    if model.tokenizer is None:
        raise WeightsError(f"model={model.name!r} has no tokenizer.json; put the checkpoint's own beside its weights")
    return model.tokenizer


def read_text(path: Path) -> str:
    """A UTF-8 text with something in it; `-` reads standard input.

    raises  ConfigError where it is no text or an empty one, OSError where it cannot be read
    """
    try:
        text = _standard_input() if str(path) == "-" else read_whole(path)
    except UnicodeDecodeError as wrong:
        raise ConfigError(f"text={str(path)!r} is not UTF-8 text (byte {wrong.start}); name a text file") from wrong
    if not text.strip():
        raise ConfigError(f"text={str(path)!r} is empty; name a file with text")
    return text


def _standard_input() -> str:
    text = sys.stdin.read(MOST_DOCUMENT_BYTES + 1)
    if len(text) > MOST_DOCUMENT_BYTES:
        raise ConfigError(f"standard input goes on for more than {MOST_DOCUMENT_BYTES} characters; give a shorter text")
    return text


def fit_tokens(ids: list[int], *, room: int, context: int, most: int | None) -> list[int]:
    """The first `most` ids, or all; raises ConfigError where they and `room` more exceed the model's context."""
    cut = ids if most is None else ids[:most]
    if not cut:
        raise ConfigError("the text has no tokens; give a longer one")
    if room >= context:
        raise ConfigError(f"{room} tokens to come leave no room for a text in the model's context of {context} tokens")
    if len(cut) + room > context:
        raise ConfigError(
            f"text of {len(cut)} tokens + {room} to come exceeds the model's context of {context} tokens: "
            f"cut it with --max-tokens {context - room}"
        )
    return cut


def read_document(args: argparse.Namespace, model: Model | ReadModel, *, least: int, filler: int = 0) -> Reading:
    """The text of --text, cut to --max-tokens, as tokens: at least `least` and no more than the model's context.

    Of the demo's document, which is longer than most contexts, DOCUMENT_TOKENS are read unless told otherwise.
    """
    from sparda_core.bench.text import read

    whole = None if args.text is not None else min(max(least, DOCUMENT_TOKENS), model.shape.context)
    return read(
        tokenizer_of(model), path=args.text, limit=args.max_tokens or whole, context=model.shape.context, least=least,
        filler_tokens=filler,
    )  # fmt: skip


@contextlib.contextmanager
def progress() -> Iterator[Report]:
    """Progress on standard error: call it with (what, done, total).

    A terminal gets one bar for each `what`; a file or a pipe one line for each that took some seconds.
    """
    screen = console(sys.stderr)
    if not screen.is_terminal:
        yield Log(sys.stderr.write)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True) as bars:
        known: dict[str, Any] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in known:
                known[what] = bars.add_task(what, total=total)
            bars.update(known[what], completed=done, total=total)

        yield report


class Log:
    """Writes a line when something that took a while is done."""

    def __init__(
        self, write: Callable[[str], object], *, least_s: float = 2.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write, self._least_s, self._clock = write, least_s, clock
        self._began_s: dict[str, float] = {}
        self._last_s = clock()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Take one report; the clock of `what` starts at the report before its first one."""
        now_s = self._clock()
        began_s = self._began_s.setdefault(what, self._last_s)
        self._last_s = now_s
        if done >= total and now_s - began_s >= self._least_s:
            self._write(f"{what}: {total} in {now_s - began_s:.1f} s\n")
            del self._began_s[what]

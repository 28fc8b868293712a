"""`sparda record`: the selections of a real run, in the file that the selector `replay` plays back."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparda_core.cli.gpu_options import add_gpu
from sparda_core.cli.options import POSITIVE, add_combination, add_device, add_json, add_model, add_spec, add_text
from sparda_core.cli.placing import place, read
from sparda_core.cli.running import Report, progress, read_document
from sparda_core.cli.screen import show_json, size
from sparda_core.errors import ConfigError
from sparda_core.files import check_place
from sparda_core.shapes import BlockSpec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from sparda_core.compose import Combination
    from sparda_core.layer_view import LayerView
    from sparda_core.selectors.recording import Recording


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sparda record`."""
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the recording to write (.npz)")
    parser.add_argument(
        "--steps", type=POSITIVE, default=64, metavar="STEPS",
        help="decode steps recorded, fed with the text's last tokens",
    )  # fmt: skip
    add_combination(parser, selector="forecast", runtime="offload-prefetch")
    add_spec(parser, BlockSpec(), of_model=True)
    add_text(parser)
    add_model(parser)
    add_device(parser)
    add_gpu(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Read all of the text but its last tokens, then feed these one by one and keep what was selected."""
    if args.out.suffix != ".npz":
        raise ConfigError(f"out={str(args.out)!r} must end in .npz")
    check_place(args.out)
    found = read(args)
    reading = read_document(args, found, least=args.steps + 1)
    model, pair, _ = place(args, found, tokens=len(reading.tokens))
    with progress() as report:
        recording = record(pair, reading.tokens, steps=args.steps, report=report)
    recording.save(args.out)
    summary = {
        "file": str(args.out), "bytes": args.out.stat().st_size, "text": reading.name, "sha256": reading.sha256,
        "model": model.name, "selector": pair.selector.name, "runtime": pair.runtime.name, "spec": pair.spec,
        "steps": recording.steps, "layers": recording.layers, "rows": recording.rows, "kv_heads": recording.kv_heads,
    }  # fmt: skip
    if args.json:
        show_json(summary)
    else:
        sys.stdout.write(
            f"{args.out}: {recording.steps} steps x {recording.layers} layers x {recording.kv_heads} KV heads of "
            f"{pair.selector.name} after {len(reading.tokens) - args.steps} tokens, {size(args.out.stat().st_size)}\n"
        )
    return 0


def record(pair: Combination, tokens: tuple[int, ...], *, steps: int, report: Report) -> Recording:
    """Prefill `tokens` but the last `steps` densely, decode these, and return every selection with its facts."""
    import numpy as np

    from sparda_core.selectors.recording import Recorder

    recorder = Recorder(shape=pair.shape, spec=pair.spec, selector=pair.selector.name)
    prompt, rest = tokens[:-steps], tokens[-steps:]
    with pair.open() as session:
        row = session.add()
        session.prefill(row, prompt, progress=lambda done: report("reading the text, tokens", done, len(prompt)))
        selected = _watch(session, pair.shape.layers)
        for at, token in enumerate(rest, start=1):
            facts = session.decode({row: token}).facts
            recorder.add(np.array([session.length(row) - 1]), selected())
            recorder.add_facts(facts)
            report(f"recording {pair.selector.name}, steps", at, steps)
    return recorder.recording()


def _watch(session: Any, layers: int) -> Callable[[], npt.NDArray[np.int32]]:
    """What the last step selected, int32 [L, B, Hk, width]: a GPU session keeps it, a CPU session tells it."""
    import numpy as np

    if hasattr(session, "last_selection"):
        selected: Callable[[], npt.NDArray[np.int32]] = session.last_selection
        return selected
    seen: dict[int, npt.NDArray[np.int32]] = {}

    def keep(view: LayerView) -> None:
        assert view.selection is not None
        seen[view.layer] = view.selection[:, :, 0].numpy().copy()

    session.on_selection = keep
    return lambda: np.stack([seen.pop(layer) for layer in range(layers)])

"""`sparda record`: the selections of a real run, in the file that the selector `replay` plays back."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from sparda_core import __version__
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

    from sparda_core.bench.text import Reading
    from sparda_core.compose import Combination
    from sparda_core.layer_view import LayerView
    from sparda_core.models.load import ReadModel
    from sparda_core.runtimes.snapshot import RowSnapshot
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
    parser.add_argument(
        "--more-texts", nargs="+", type=Path, default=[], metavar="FILE",
        help="further texts, each a row of its own beside that of --text",
    )  # fmt: skip
    add_model(parser)
    add_device(parser)
    add_gpu(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Read all of each text but its last tokens, then feed these one by one and keep what was selected."""
    if args.out.suffix != ".npz":
        raise ConfigError(f"out={str(args.out)!r} must end in .npz")
    check_place(args.out)
    found = read(args)
    if args.more_texts and args.text is None:
        raise ConfigError("more_texts needs --text FILE: the first text is a file, too")
    readings = [_reading(args, found, text) for text in (args.text, *args.more_texts)]
    if args.device != "cpu" and args.places is None:
        args.places = len(readings)
    model, pair, _ = place(args, found, tokens=max(len(one.tokens) for one in readings))
    with progress() as report:
        recording = record(pair, [one.tokens for one in readings], steps=args.steps, report=report)
    told = ", ".join(f"{one.name} sha256 {one.sha256}" for one in readings)
    recording = attrs.evolve(recording, notes={"texts": told, "version": __version__})
    recording.save(args.out)
    reading = readings[0]
    summary = {
        "file": str(args.out), "bytes": args.out.stat().st_size, "text": reading.name, "sha256": reading.sha256,
        "texts": [{"text": one.name, "sha256": one.sha256} for one in readings],
        "model": model.name, "selector": pair.selector.name, "runtime": pair.runtime.name, "spec": pair.spec,
        "steps": recording.steps, "layers": recording.layers, "rows": recording.rows, "kv_heads": recording.kv_heads,
    }  # fmt: skip
    if args.json:
        show_json(summary)
    else:
        sys.stdout.write(
            f"{args.out}: {recording.steps} steps x {recording.layers} layers x {recording.kv_heads} KV heads of "
            f"{pair.selector.name} after {len(reading.tokens) - args.steps} tokens, rows {len(readings)}, "
            f"{size(args.out.stat().st_size)}\n"
        )
    return 0


def _reading(args: argparse.Namespace, found: ReadModel, text: Path | None) -> Reading:
    return read_document(argparse.Namespace(**{**vars(args), "text": text}), found, least=args.steps + 1)


def record(
    pair: Combination, texts: Sequence[Sequence[int]], *, steps: int, report: Report,
    starts: Sequence[RowSnapshot] | None = None,
) -> Recording:  # fmt: skip
    """Prefill each text but its last `steps` tokens densely, decode these, and return every selection with its facts.

    texts   token ids, each a row's
    starts  rows that have read them that far already, in place of the prefill
    On a CPU the recording also holds what pools under policy "score" would have missed, where the selector scores.
    """
    import numpy as np

    from sparda_core.selectors.recording import Recorder

    recorder = Recorder(shape=pair.shape, spec=pair.spec, selector=pair.selector.name)
    with pair.open() as session:
        rows = [session.adopt(start) for start in starts or ()]
        for text in texts[len(rows) :]:
            rows.append(session.add())
            session.prefill(rows[-1], text[:-steps], progress=_reading_of(len(text) - steps, report))
        watch = _Watch(session, pair, len(rows))
        for at in range(steps):
            facts = session.decode({row: text[at - steps] for row, text in zip(rows, texts, strict=True)}).facts
            recorder.add(np.array([session.length(row) - 1 for row in rows]), watch.selected())
            recorder.add_facts(facts)
            if (scored := watch.scored()) is not None:
                recorder.add_scored(scored)
            report(f"recording {pair.selector.name}, steps", at + 1, steps)
    return recorder.recording()


def _reading_of(tokens: int, report: Report) -> Callable[[int], None]:
    return lambda done: report("reading the text, tokens", done, tokens)


class _Watch:
    """What the last step selected: a GPU session keeps it, a CPU session tells it, and the scores with it."""

    def __init__(self, session: Any, pair: Combination, rows: int) -> None:
        from sparda_core.selectors.score_pools import ScorePools

        self._session, self._layers = session, pair.shape.layers
        self._pools = ScorePools(rows=rows, kv_heads=pair.shape.kv_heads, spec=pair.spec)
        self._seen: dict[int, npt.NDArray[np.int32]] = {}
        self._missed: dict[int, npt.NDArray[np.int64]] = {}
        if not hasattr(session, "last_selection"):
            session.on_selection = self._keep

    def _keep(self, view: LayerView) -> None:
        assert view.selection is not None
        chosen = self._seen[view.layer] = view.selection[:, :, 0].numpy().copy()
        if view.scores is not None:
            scores = view.scores[:, :, 0].numpy()
            self._missed[view.layer] = self._pools.play(view.layer, chosen, view.positions[:, 0].numpy(), scores)

    def selected(self) -> npt.NDArray[np.int32]:
        """int32 [L, B, Hk, width]."""
        import numpy as np

        if hasattr(self._session, "last_selection"):
            kept: npt.NDArray[np.int32] = self._session.last_selection()
            return kept
        return np.stack([self._seen.pop(layer) for layer in range(self._layers)])

    def scored(self) -> npt.NDArray[np.int64] | None:
        """Misses int64 [3, L, B, Hk] under policy "score"; None where a layer was chosen without scores."""
        import numpy as np

        missed, self._missed = self._missed, {}
        if len(missed) < self._layers:
            return None
        return np.stack([missed[layer] for layer in range(self._layers)], axis=1)

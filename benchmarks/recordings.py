"""Records the selections that ship with the package: SmolLM2-135M-Instruct reading held-out texts. Needs no GPU.

    sparda texts fetch --out texts
    python -m benchmarks.recordings --texts texts --out recordings        # finished files are kept, the rest is made

Selectors x budgets over the same rows: every text is read once, densely, and each recording starts from that state, as
`sparda record` does from its own prefill. Each file says in its notes which command makes it alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from sparda_core import __version__
from sparda_core.errors import ConfigError
from sparda_core.files import check_place, make_folder
from sparda_core.shapes import BlockSpec

if TYPE_CHECKING:
    from sparda_core.bench.text import Reading
    from sparda_core.models.model import Model
    from sparda_core.runtimes.snapshot import RowSnapshot

#: Rows: a novel, the source of a module, a manual; all held out from the training of the shipped Forecast.
TEXTS = ("persuasion.txt", "stdlib--typing.py.txt", "debian-policy.txt")
LICENCES = (
    "selections of blocks only, no text; texts: public domain (persuasion), PSF (typing.py), GPL-2+ (debian-policy)"
)
TOKENS, STEPS = 8000, 192
METHODS = {"query": "offload-sync", "forecast": "offload-prefetch", "infinigen": "offload-prefetch"}
#: Of 125 blocks. 16 blocks are what the package decodes with by default; 8 with a local band of one block are a row of
#: 16 selections with 38 % of them forced, nearer to 96 of 2,048 blocks (21 selections, 35 % forced) of the 8B shape.
CUTS = {16: BlockSpec(budget=16, sink=1, local=3), 8: BlockSpec(budget=8, sink=1, local=1)}

Report = Callable[[str, int, int], None]


def main() -> int:
    """Read, record, say what was written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True, metavar="DIR", help="what `sparda texts fetch` wrote")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="one .npz a selector and budget")
    parser.add_argument("--model", default="smollm2", metavar="NAME|PATH", help="a model on this machine")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of each text, those recorded included")
    parser.add_argument("--steps", type=int, default=STEPS, help="decode steps recorded")
    parser.add_argument("--threads", type=int, help="cores (default: all but one)")
    args = parser.parse_args()
    from sparda_core.cli.running import progress

    make_folder(args.out)
    with progress() as report:
        for path in recordings(args, report):
            print(f"{path}: {path.stat().st_size} bytes, sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}")
    return 0


def recordings(args: argparse.Namespace, report: Report) -> Iterator[Path]:
    """Files in turn; the model is loaded and the texts are read at the first that is not there."""
    from sparda_core.cli.record import record
    from sparda_core.compose import compose
    from sparda_core.models.load import load_model

    model, starts, readings = None, None, None
    for budget, spec in CUTS.items():
        for selector, runtime in METHODS.items():
            path = args.out / f"{selector}-{budget}.npz"
            if not path.exists():
                check_place(path)
                model = model or load_model(args.model)
                readings = readings or [_reading(model, args, name) for name in TEXTS]
                starts = starts or [_read(model, one, args, report) for one in readings]
                pair = compose(model.decoder, selector, runtime, spec=spec, threads=args.threads)
                made = record(pair, [one.tokens for one in readings], steps=args.steps, report=report, starts=starts)
                notes = _notes(readings, args, selector=selector, runtime=runtime, spec=spec)
                # Facts follow from the selections (`recorded_facts`), all but lateness, which is this machine's.
                attrs.evolve(made, facts=(), notes=notes).save(path)
            yield path


def _reading(model: Model, args: argparse.Namespace, name: str) -> Reading:
    from sparda_core.bench.text import read
    from sparda_core.cli.running import tokenizer_of

    held_out: Mapping[str, Any] = {
        one["path"]: one for one in json.loads((args.texts / "manifest.json").read_text())["documents"].values()
    }
    path = args.texts / "held-out" / name
    if f"held-out/{name}" not in held_out:
        raise ConfigError(f"texts={str(args.texts)!r} holds no held-out/{name}; make it with `sparda texts fetch`")
    reading = read(
        tokenizer_of(model), path=path, limit=args.tokens, context=model.shape.context, least=args.tokens,
        filler_tokens=0,
    )  # fmt: skip
    return attrs.evolve(reading, name=name)


def _read(model: Model, reading: Reading, args: argparse.Namespace, report: Report) -> RowSnapshot:
    """State of a row after all but the last steps, from a dense prefill."""
    from sparda_core.compose import compose

    prompt = reading.tokens[: -args.steps]
    plain = compose(
        model.decoder, "window", "resident", spec=CUTS[16], threads=args.threads, keep_queries=len(prompt)
    )
    with plain.open_cpu() as session:
        row = session.add()
        what = f"reading {reading.name}, tokens"
        session.prefill(row, prompt, mode="dense", progress=lambda done: report(what, done, len(prompt)))
        return session.snapshot(row)


def _notes(
    readings: list[Reading], args: argparse.Namespace, *, selector: str, runtime: str, spec: BlockSpec
) -> dict[str, str]:  # fmt: skip
    first, *more = (f"texts/held-out/{one.name}" for one in readings)
    return {
        "command": f"sparda record --selector {selector} --runtime {runtime} --budget {spec.budget} "
        f"--local {spec.local} --steps {args.steps} --max-tokens {args.tokens} --text {first} "
        f"--more-texts {' '.join(more)} --out FILE",
        "texts": ", ".join(f"{one.name} sha256 {one.sha256}" for one in readings),
        "licence": LICENCES,
        "version": __version__,
    }  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())

"""Which of a prompt's queries should choose InfiniGen's dimensions: recall of the oracle's blocks, by what chose them.

    python -m benchmarks.infinigen_dimensions --out benchmarks/results/DATE-infinigen-dimensions.json

SmolLM2 on a CPU reads documents that no shipped Forecast was trained on, densely. The last positions of each, whose
queries choose nothing, are judged: at the default budget, layers 1 and up, in 32 of 64 dimensions. `session` is what
a session keeps, `released` the same sums over every query before the judged ones, rotated by the first 2,048.
Nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import torch

from sparda_core.bench.provenance import provenance
from sparda_core.distill.texts import Document, held_out_documents
from sparda_core.errors import ConfigError
from sparda_core.evaluate.study.methods import CHANNELS, Method
from sparda_core.evaluate.study.path import run_dense
from sparda_core.evaluate.study.ranks import Bounds, recall
from sparda_core.evaluate.study.scene import Scene
from sparda_core.evaluate.study.scores import Scorer
from sparda_core.files import write_whole
from sparda_core.models.load import load_model
from sparda_core.selectors.tensors.prompt_strength import PromptStrength
from sparda_core.selectors.tensors.skew import partial_projection
from sparda_core.shapes import BlockSpec

DOCUMENTS = ("help:types", "typing.py", "argparse.py")
SPEC = BlockSpec()

#: Queries before the judged positions [Hq, n, D], KV heads -> [Hk, D, CHANNELS].
Chooses = Callable[[torch.Tensor, int], torch.Tensor]


def session(calibration: int) -> Chooses:
    """As a session does, the rotation by the first `calibration` queries."""

    def chooses(queries: torch.Tensor, kv_heads: int) -> torch.Tensor:
        known = PromptStrength(limit=calibration, block=SPEC.block, kv_heads=kv_heads).added(0, queries)
        return known.projection(queries, channels=CHANNELS)

    return chooses


def first(tokens: int) -> Chooses:
    """Rotation and choice by the first so many queries alone."""
    return lambda queries, kv_heads: partial_projection(queries[:, :tokens], kv_heads=kv_heads, channels=CHANNELS)


def released(queries: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """Rotation by the first 2,048 queries, choice by all."""
    return partial_projection(queries, kv_heads=kv_heads, channels=CHANNELS, rotated_by=2048)


CASES: dict[str, Chooses] = {
    "first 512": first(512), "first 2048": first(2048), "released": released,
    "session 64": session(64), "session 512": session(512), "session 2048": session(2048),
}  # fmt: skip
EVERY = "every dimension"


@attrs.define
class Judge:
    """Sees a document's layers: which blocks each case takes of those that the oracle takes."""

    judged: int
    queries: dict[int, torch.Tensor] = attrs.field(factory=dict)
    recalls: dict[str, list[float]] = attrs.field(factory=lambda: {name: [] for name in (*CASES, EVERY)})
    scorer: Scorer = attrs.field(factory=Scorer)

    def saw(self, scene: Scene) -> None:
        """Judge one layer; its scene holds every position."""
        if not scene.layer:
            return
        before = scene.q.shape[1] - self.judged
        late = _positions_from(scene, before)
        bounds = Bounds.of(late.positions, SPEC.block_count(scene.k.shape[1]), SPEC)

        def chosen(kind: str, skew: torch.Tensor | None = None) -> torch.Tensor:
            method = Method(name=kind, kind=kind, channels=0 if skew is None else CHANNELS)
            return self.scorer.order(method, attrs.evolve(late, skew=skew), bounds).chosen(SPEC.free)

        wanted = chosen("oracle")
        for name, chooses in CASES.items():
            skew = chooses(scene.q[:, :before], scene.k.shape[0])
            self.recalls[name].append(recall(chosen("infinigen-released", skew), wanted))
        self.recalls[EVERY].append(recall(chosen("infinigen-token"), wanted))


def _positions_from(scene: Scene, start: int) -> Scene:
    turn = scene.decoder.rotation(scene.positions[None, start:])
    inputs = {layer: x[start:] for layer, x in scene.inputs.items()}
    return attrs.evolve(scene, positions=scene.positions[start:], q=scene.q[:, start:], inputs=inputs, turn=turn)


def measure(model: Any, document: Document, tokens: int, judged: int) -> dict[str, Any]:
    """Recall of every case, mean over layers, of one document's first tokens."""
    ids = model.tokenizer.encode(document.text)[:tokens]
    if len(ids) < tokens:
        raise ConfigError(f"document {document.name!r} has {len(ids)} tokens, fewer than --tokens {tokens}")
    judge = Judge(judged=judged)
    run_dense(model.decoder, torch.tensor(ids), first=0, spec=SPEC, consume=judge.saw)
    return {"document": document.name, **{name: statistics.mean(found) for name, found in judge.recalls.items()}}


def main() -> int:
    """Measure every document, print a line for each, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="where results go")
    parser.add_argument("--tokens", type=int, default=4096, metavar="N", help="tokens of each document")
    parser.add_argument("--judged", type=int, default=144, metavar="N", help="last positions that are judged")
    args = parser.parse_args()
    if not 0 < args.judged < args.tokens:
        parser.error("--judged must lie between 1 and --tokens - 1")
    model, rows = load_model("smollm2"), []
    for document in held_out_documents():
        if document.name in DOCUMENTS:
            rows.append(measure(model, document, args.tokens, args.judged))
            print(json.dumps(rows[-1]), flush=True)
    told = {**provenance(), "tokens": args.tokens, "judged": args.judged, "budget": SPEC.budget, "recall": rows}
    write_whole(args.out, json.dumps(told, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

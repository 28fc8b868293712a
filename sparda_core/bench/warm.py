"""Compile the CPU kernels once: `python -m sparda_core.bench.warm`, part of set-up.

numba keeps what it compiled beside the kernels, so the first run of everything else starts at full speed.
"""

from __future__ import annotations

from typing import Any

from sparda_core.compose import compose
from sparda_core.models.tiny import tiny_model
from sparda_core.shapes import BlockSpec

SPEC = BlockSpec(block=16, window=8, stride=4, sink=1, local=1, budget=5)
PAIRS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("query", "offload-sync", {}),
    ("forecast", "offload-prefetch", {}),
    ("infinigen", "offload-prefetch", {"channels": 4}),
    ("infinigen", "resident", {"channels": None, "scoring": "entry-raw"}),
    ("random", "resident", {}),
    ("window", "offload-prefetch", {}),
)


def warm() -> None:
    """Run a tiny float32 model through every method, alone and two rows at a time."""
    model = tiny_model()
    prompt = [i % model.shape.vocab for i in range(150)]
    for selector, runtime, options in PAIRS:
        with compose(model, selector, runtime, spec=SPEC, selector_options=options).open(keep_queries=64) as session:
            row = session.add()
            session.prefill(row, prompt, mode="selector", chunk=100)
            session.adopt(session.snapshot(session.fork(row)))
            for token in range(12):
                session.decode(dict.fromkeys(session.rows, token))
                session.decode({row: token})


if __name__ == "__main__":
    warm()

"""Offload, prefetch, streams and graphs: the kinds of fault that others met (docs/cases.md, C).

Races need two lanes, hence a GPU; what can be shown of them without one is shown on plans and on a CPU.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import torch

from sparda_core.compose import compose
from sparda_core.errors import ConfigError
from sparda_core.models.tiny import tiny_model
from sparda_core.plan import Kind
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.shapes import BlockSpec
from sparda_core.testing.dense_row import DenseRow
from tests.agreement.worlds import SHAPE, SPEC, TOKENS
from tests.gpu.session.test_graphs import disturb, filled, opened, same_outcome, spin
from tests.gpu.session.test_lanes import SHAPE as LANED
from tests.gpu.session.test_lanes import races
from tests.gpu_env import DEVICE

PACKAGE = Path(__file__).parents[2] / "sparda_core"


@pytest.mark.parametrize("layers", [3, 5, 7, 32])
@pytest.mark.parametrize("lead", [1, 2, 3, 4])
@pytest.mark.parametrize("runtime", ["offload-sync", "offload-prefetch"])
def test_no_number_of_layers_lets_a_copy_land_where_a_layer_still_reads(layers: int, lead: int, runtime: str) -> None:
    """Every layer has slots of its own, so nothing turns over at layers % lead; plans of three steps in a row."""
    shape, selector = attrs.evolve(LANED, layers=layers), SELECTORS.make("forecast", lead=lead)
    write = RUNTIMES.make(runtime).decode_plan
    if lead >= layers:
        with pytest.raises(ConfigError, match="lead"):
            write(shape=shape, spec=BlockSpec(), selector=selector)
        return
    plan = write(shape=shape, spec=BlockSpec(), selector=selector)
    assert sum(op.kind == Kind.FETCH for op in plan) == layers - lead
    assert list(races(plan, steps=3 if layers < 32 else 2)) == []


@pytest.mark.parametrize(("layers", "lead"), [(3, 2), (5, 3), (7, 4)])
@pytest.mark.parametrize("policy", ["last-selection", "lru"])
def test_every_layer_attends_to_its_own_blocks_whatever_the_lead(layers: int, lead: int, policy: str) -> None:
    """Random weights make every layer's keys and values its own; the judge keeps them in plain lists."""
    model = tiny_model(attrs.evolve(SHAPE, layers=layers), seed=2, dtype=torch.float64, lead=lead)
    pair = compose(
        model, "forecast", "offload-prefetch", spec=SPEC, runtime_options={"policy": policy, "slots": 6}, page_blocks=2
    )
    chosen: dict[int, torch.Tensor] = {}
    with pair.open_cpu() as session:
        session.on_selection = lambda view: chosen.update({view.layer: view.selection})  # type: ignore[dict-item]
        row, dense = session.add(), DenseRow(model.decoder, SPEC.block)
        session.prefill(row, TOKENS[:77])
        dense.append(TOKENS[:77], [None] * layers)
        for token in TOKENS[77:90]:
            got = session.decode({row: token}).logits[0]
            want = dense.append([token], [chosen[layer][0] for layer in range(layers)])
            torch.testing.assert_close(got, want)


def _calls(word: str) -> Iterator[tuple[str, str]]:
    """File, and statement, of every call with `word=True`."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            said = {k.arg: ast.unparse(k.value) for k in node.keywords} if isinstance(node, ast.Call) else {}
            if said.get(word, "False") != "False":
                yield path.relative_to(PACKAGE).as_posix(), ast.unparse(node)


def test_nothing_is_read_on_the_host_before_it_has_come() -> None:
    """Two copies to the device do not wait. None comes to the host: a list of misses is written there by a kernel, and
    who reads it has waited for the mark behind. A benchmark's copies are for their time alone.
    """
    assert [call for call in _calls("non_blocking") if not call[0].startswith("bench/")] == [
        ("runtimes/gpu/engines.py", "arrived.copy_(gathered, non_blocking=True)"),
        ("runtimes/gpu/upload.py", "target.copy_(staged, non_blocking=True)"),
    ]


def test_no_kernel_is_tuned_while_it_runs() -> None:
    """Trying variants under capture would end it; what each kernel takes follows from its inputs alone."""
    named = [path.name for path in PACKAGE.rglob("*.py") if "autotune" in path.read_text(encoding="utf-8")]
    assert named == []


def test_a_step_that_cannot_be_one_graph_says_how_it_runs_and_never_runs_eagerly_in_silence() -> None:
    """The host reads each layer's misses for this engine: segments on a GPU, refused where graphs cannot be had."""
    if DEVICE.type == "cpu":
        with pytest.raises(ConfigError, match="needs a CUDA device"):
            opened("forecast", "offload-prefetch", {"engine": "copy-engine"}, graph=True).close()
        return
    for engine, says in (("copy-engine", "graph segments, cut at each copy"), ("uva", "one CUDA graph a step")):
        with opened("forecast", "offload-prefetch", {"engine": engine}, graph=True) as session:
            assert session.machinery.captures
            assert says in session.machinery.describe()["steps"]


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [True, False])
def test_a_session_under_a_stream_of_the_callers_own_answers_the_same(*, graph: bool) -> None:
    """Memory is made, zeroed and read in the order of that stream, which is behind from the start."""
    with opened("forecast", "offload-prefetch", {}, graph=graph) as plain:
        filled(plain, 62, 9)
        plain.run(40)
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(side):
            for _ in range(20):
                spin()
            with opened("forecast", "offload-prefetch", {}, graph=graph) as late:
                filled(late, 62, 9)
                spin()
                late.run(40)
                same_outcome(late, plain)


@pytest.mark.gpu
def test_graphs_read_the_same_memory_after_others_have_allocated_pinned_and_freed() -> None:
    kept: list[torch.Tensor] = []
    with opened("query", "offload-sync", {}) as replayed, opened("query", "offload-sync", {}, graph=False) as eager:
        for session in (replayed, eager):
            filled(session, 62, 9)
            session.run(3)
        for _ in range(6):
            pinned = [torch.full((1 << power,), float("nan")).pin_memory() for power in range(8, 20)]
            disturb(kept)
            del pinned
            torch.cuda.empty_cache()
            for session in (replayed, eager):
                session.run(7)
            same_outcome(replayed, eager)

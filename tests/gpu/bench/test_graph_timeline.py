"""Spans of a captured step on a real device: kernels of the graph are those of the operations."""

from __future__ import annotations

import pytest

from sparda_core.errors import ConfigError
from sparda_core.plan import Lane
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.runtimes.gpu.options import GpuOptions
from sparda_core.runtimes.gpu.session import GpuSession
from tests.gpu.session.worlds import SHAPE, SPEC, WIDE, models, prompt
from tests.gpu_env import DEVICE

from sparda_core.bench.decode import timeline  # isort: skip - it imports kernels

ON_GPU = DEVICE.type == "cuda"


def opened(selector: str, runtime: str) -> GpuSession:
    return GpuSession(
        models(WIDE if ON_GPU else SHAPE)[1], runtime=RUNTIMES.make(runtime), selector=SELECTORS.make(selector),
        spec=SPEC, options=GpuOptions(places=2, tokens=400, page_blocks=4),
    )  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("selector", "runtime"),
    [("forecast", "offload-prefetch"), ("query", "offload-sync"), ("infinigen", "offload-prefetch"),
     ("dense", "resident")],
)  # fmt: skip
def test_every_operation_of_a_captured_step_has_its_span(
    selector: str, runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A step of this model is shorter than what issuing it takes: its time says nothing.
    monkeypatch.setattr(timeline, "TOLERANCE", float("inf"))
    with opened(selector, runtime) as session:
        session.prefill(session.add(), prompt(90))
        session.run(1)
        made, run = list[int](), session.run

        def counted(steps: int) -> None:
            made.append(steps)
            run(steps)

        monkeypatch.setattr(session, "run", counted)
        found = timeline.graph_timeline(session, steps=3)
        assert sum(made) == timeline.BEFORE + 3, "who has a trace tells the steps of the spans by this"
        assert {(span.step, span.name) for span in found.spans} == {
            (step, op.name) for step in range(3) for op in session.plan
        }
        assert found.busy_ns(Lane.COMPUTE) > 0
        assert (found.busy_ns(Lane.H2D) > 0) == (runtime != "resident")


def test_a_session_that_captures_nothing_is_refused() -> None:
    with opened("forecast", "offload-prefetch") as session:
        if ON_GPU:
            session.machinery._replays = session.machinery._replays._eager  # type: ignore[attr-defined]
        with pytest.raises(ConfigError, match="graph=True"):
            timeline.graph_timeline(session)


def test_a_marker_stands_before_every_operation_of_the_marked_step(monkeypatch: pytest.MonkeyPatch) -> None:
    markers: list[int] = []
    monkeypatch.setattr("torch.cuda._sleep", markers.append)
    with opened("forecast", "offload-prefetch") as session:
        session.prefill(session.add(), prompt(40))
        session.run(1)
        timeline._marked_step(session)
        assert markers == [1] * len(session.plan.ops)

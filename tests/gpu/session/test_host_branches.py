"""No step looks at data on the host: told by the calls it makes, by its code, and on a GPU by CUDA itself.

A branch on data works when a step is issued operation by operation, is wrong in every replay, and on a GPU a capture
refuses it only where the value is read: so what is introduced here must be found without one.
"""

from __future__ import annotations

import ast
import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from sparda_core.runtimes.gpu.session import GpuSession
from tests.gpu.session.host_reads import HostReadError, no_host_reads, no_waiting
from tests.gpu.session.test_graphs import PAIRS, filled, opened
from tests.gpu_env import DEVICE
from tests.house.tree import ROOT, python_files, syntax

ON_GPU = DEVICE.type == "cuda"
#: Engines that read a list of misses on the host do so between the pieces that are captured.
ONE_GRAPH = [pair for pair in PAIRS if pair[2].get("engine", "uva") == "uva"]

BRANCHES: dict[str, Callable[[torch.Tensor], Any]] = {
    "if": lambda scores: 1 if scores.max() > 0 else 2,
    "item": lambda scores: scores.max().item(),
    "int": lambda scores: int(scores.max()),
    "cpu": lambda scores: scores.cpu(),
    "list": lambda scores: scores.tolist(),
    "loop": list,
    "nonzero": lambda scores: scores.nonzero(),
}  # fmt: skip


def branch(session: GpuSession, look: Callable[[torch.Tensor], Any]) -> None:
    """Every layer looks at the scores of the step."""
    machinery = session.machinery
    observe = machinery.half.observe

    def curious(view: Any) -> None:
        look(machinery.tiers.layers[view.layer].scores)
        observe(view)

    machinery.half.observe = curious  # type: ignore[method-assign]


@pytest.mark.parametrize(("selector", "runtime", "options"), ONE_GRAPH if ON_GPU else ONE_GRAPH[:4])
def test_a_step_reads_no_tensor_on_the_host(selector: str, runtime: str, options: dict[str, Any]) -> None:
    with opened(selector, runtime, options, places=1, graph=False) as session:
        filled(session, 47)
        session.run(1)
        with no_host_reads():
            session.run(1)


@pytest.mark.parametrize("how", BRANCHES)
def test_a_branch_on_data_is_found_in_the_step_that_has_it(how: str) -> None:
    with opened("forecast", "offload-prefetch", {}, places=1, graph=False) as session:
        filled(session, 20)
        branch(session, BRANCHES[how])
        with pytest.raises(HostReadError, match="test_host_branches"), no_host_reads():
            session.run(1)
        assert session.length(0) == 20


@pytest.mark.parametrize("fails", [False, True])
def test_the_mode_ends_with_what_it_was_asked_for(monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> None:
    """torch's functions, as they warn, stood in for where there is no GPU: nothing else may turn into an error."""
    modes = [0]

    def set_mode(mode: str | int) -> None:
        modes.append({"error": 2}.get(str(mode), 0))
        warnings.warn("Synchronization debug mode is a prototype feature and does not yet detect all", stacklevel=2)

    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    with pytest.raises(ValueError, match="inside") if fails else contextlib.nullcontext(), no_waiting():
        assert modes[-1] == 2
        if fails:
            raise ValueError("inside")
    assert modes == [0, 2, 0]


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize(("selector", "runtime", "options"), ONE_GRAPH)
def test_no_step_waits_for_the_device(
    selector: str, runtime: str, options: dict[str, Any], *, graph: bool
) -> None:  # fmt: skip
    with opened(selector, runtime, options, graph=graph) as session:
        filled(session, 62, 9)
        session.run(4)  # compiled, and captured
        with no_waiting():
            session.run(8)


@pytest.mark.gpu
@pytest.mark.parametrize("how", [how for how in BRANCHES if how != "loop"])  # a loop over rows reads no value there
@pytest.mark.parametrize("graph", [True, False])
def test_cuda_refuses_a_branch_on_data_in_a_capture_and_between_replays(how: str, *, graph: bool) -> None:
    with opened("forecast", "offload-prefetch", {}, graph=graph) as session:
        filled(session, 62)
        session.run(1)
        branch(session, BRANCHES[how])
        with pytest.raises(RuntimeError), contextlib.nullcontext() if graph else no_waiting():
            session.run(1)  # with a graph: it is captured now


# By the code --------------------------------------------------------------------------------------------------------

#: Methods that give the host a tensor's values, or wait for the device.
_METHODS = {"item", "tolist", "cpu", "numpy", "nonzero", "is_nonzero", "masked_select", "unique", "synchronize"}
#: What runs inside a step; of `machinery.py` only its `run`.
_STEP = (
    "models/device_decoder.py", "runtimes/gpu/step.py", "runtimes/gpu/executor.py", "runtimes/gpu/graphs.py",
    "runtimes/gpu/capture.py", "runtimes/gpu/engines.py", "runtimes/gpu/host_list.py", "runtimes/gpu/lanes.py",
    "runtimes/gpu/sampling.py",
    "runtimes/gpu/upload.py", "runtimes/gpu/places.py", "kernels/early.py", "kernels/device.py", "kernels/strides.py",
    "kernels/tables.py", "kernels/checks.py",
)  # fmt: skip
#: Function -> why it may.
_MAY = {
    "runtimes/gpu/host_list.py:__init__": "views of pinned memory, before any step",
    "runtimes/gpu/host_list.py:room": "the same engines: memory that an earlier copy still reads",
    "runtimes/gpu/lanes.py:hear": "of the engines whose list the host reads: between pieces, never captured",
    "runtimes/gpu/lanes.py:settle": "waits, for whoever cleans up",
}


def _parts() -> list[str]:
    names = [path.relative_to("sparda_core").as_posix() for path in python_files("sparda_core")]
    folders = [name for name in names if name.startswith("selectors/device/")]
    kernels = [name for name in names if name.startswith("kernels/") and name.rpartition("/")[2].startswith("gpu")]
    return [*_STEP, *folders, *kernels]


def _reads(tree: ast.AST, place: str) -> Iterator[tuple[str, int, str]]:
    """(function, line, what) of every read in a file."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _METHODS:
                yield f"{place}:{node.name}", call.lineno, call.func.attr


def found(parts: list[str]) -> list[str]:
    """Reads that nobody may, and leave to read of what is not there any more."""
    seen = [read for part in parts for read in _reads(syntax(ROOT / "sparda_core" / part), part)]
    used = {function for function, _, _ in seen}
    wrong = [f"{function}, line {line}: .{what}()" for function, line, what in seen if function not in _MAY]
    return wrong + [f"{function} may read and does not" for function in sorted(_MAY) if function not in used]


def test_the_code_of_a_step_asks_for_no_value_on_the_host() -> None:
    assert found(_parts()) == []
    machinery = syntax(ROOT / "sparda_core" / "runtimes" / "gpu" / "machinery.py")
    assert [read for read in _reads(machinery, "machinery") if read[0] == "machinery:run"] == []


def test_a_read_in_the_code_of_a_step_is_told_by_file_function_and_line() -> None:
    tree = ast.parse("def _attend(self, op):\n    if self.count.item() > 3:\n        return\n")
    assert list(_reads(tree, "step.py")) == [("step.py:_attend", 2, "item")]

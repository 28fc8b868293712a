"""Kernels that start early wait before they look at what the kernel ahead of them wrote, and before they write."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparda_core.errors import CombinationError
from sparda_core.plan import Kind, Lane
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.shapes import SHAPES, BlockSpec

SCRIPT = Path(__file__).with_name("compiled.py")
#: By kernel, pointers that may be read before the wait: whatever is older than the kernel ahead.
OLD = {
    "_rotate_append_kernel": {"position", "cos", "sin"},
    "_rotate_kernel": {"position", "cos", "sin"},
    "_append_kernel": {"position"},
    "_norm_kernel": {"weight"},
    "_norm_heads_kernel": {"weight"},
    "_gate_kernel": set(),
    "_embed_kernel": {"position", "token", "table"},
    "_advance_kernel": {"position"},
    "_split_kernel": set(),
    "_combine_kernel": set(),
    "_pooled_dots_kernel": {"position", "keys"},
    "_logits_kernel": {"position"},
    "_shares_kernel": {"position"},
    "_project_kernel": {"position"},
    "_uniform_kernel": {"position"},
    "_list_kernel": {"position"},
    "_keep_bias_kernel": {"position", "delta", "scale"},
    "_shortlist_kernel": {"position"},
    "_play_kernel": {"position", "trace", "counter", "steps", "column"},
    "_diff_kernel": {"position"},
    "_quantise_kernel": {"position"},
    "_tell_kernel": set(),
    "attend_kernel": {"position"},
    "join_kernel": set(),
}
#: Whoever comes next is launched as usual, so it need not be let in.
LAST = {"join_kernel"}
WAIT, GO = "griddepcontrol.wait", "griddepcontrol.launch_dependents"
REGISTER = re.compile(r"%\w+")


def kernels(arch: int, early: int) -> list[dict[str, Any]]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(arch), str(early)], capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def read_before_the_wait(ptx: str, names: list[str]) -> set[str]:
    """Pointers that global loads before the wait go through; the wait must come before any branch and any write."""
    entry = ptx[ptx.index(".visible .entry") :]
    pointers = {int(number) for number in re.findall(r"\.ptr \.global .*_param_(\d+)", entry[: entry.index(")")])}
    reach: dict[str, set[str]] = {}  # which pointers a register was computed from
    read: set[str] = set()
    for line in (line.split("//")[0].strip() for line in entry[entry.index("{") :].splitlines()):
        if line.startswith(WAIT):
            return read
        assert not re.search(r"\b(bra|ret|st\.global|atom|red)\b", line), line
        parameter = re.match(r"ld\.param\S*\s+(%\w+), \[\w+_param_(\d+)\]", line)
        if parameter:
            number = int(parameter[2])
            reach[parameter[1]] = {names[number]} if number in pointers else set()
        elif "ld.global" in line:
            through, at = line.split("[")
            read |= reach[REGISTER.findall(at)[0]]
            # What is loaded is a value, not an address any more.
            reach |= {one: set() for one in REGISTER.findall(through[through.index("ld.global") :])}
        elif registers := REGISTER.findall(line.split(" ", 1)[-1] if line.startswith("@") else line):
            reach[registers[0]] = set().union(*(reach.get(one, set()) for one in registers[1:]))
    raise AssertionError("no wait")


@pytest.fixture(scope="module")
def early_kernels() -> list[dict[str, Any]]:
    return kernels(90, 2)


def test_every_early_kernel_waits_before_it_reads_what_is_new_or_writes(early_kernels: list[dict[str, Any]]) -> None:
    seen: dict[str, set[str]] = {}
    for one in early_kernels:
        read = read_before_the_wait(one["ptx"], one["pointers"])
        seen[one["kernel"]] = seen.get(one["kernel"], set()) | read
        assert one["ptx"].count(WAIT) == 1, one["kernel"]
        assert one["ptx"].count(GO) == (one["kernel"] not in LAST), one["kernel"]
        assert one["ptx"].rfind(GO) == -1 or one["ptx"].index(WAIT) < one["ptx"].index(GO), one["kernel"]
    assert seen == OLD


def test_keys_are_read_while_the_query_is_made_only_where_no_new_token_is_among_them(
    early_kernels: list[dict[str, Any]]
) -> None:
    read = [
        read_before_the_wait(one["ptx"], one["pointers"])
        for one in early_kernels
        if one["kernel"] == "_pooled_dots_kernel"
    ]
    assert read == [{"position"}, {"position", "keys"}]


def test_a_gpu_that_cannot_start_early_is_not_asked_to() -> None:
    assert not [one["kernel"] for one in kernels(80, 0) if "griddepcontrol" in one["ptx"]]


@pytest.mark.parametrize("runtime", ["resident", "offload-sync", "offload-prefetch"])
@pytest.mark.parametrize("selector", ["query", "infinigen", "forecast", "window", "random", "dense", "nosa"])
def test_the_compute_lane_waits_for_copies_before_attention_of_offloaded_layers_alone(
    selector: str, runtime: str
) -> None:
    """Attention behind a fetch is launched as usual, so no early kernel follows a wait for another lane."""
    shape, spec = SHAPES["nosa-8b" if selector == "nosa" else "minicpm4.1-8b"], BlockSpec(budget=96)
    try:
        plan = RUNTIMES.make(runtime).decode_plan(shape=shape, spec=spec, selector=SELECTORS.make(selector))
    except CombinationError:
        return
    waiting = [
        op for op in plan if op.lane == Lane.COMPUTE and any(plan[name].lane != Lane.COMPUTE for name in op.after)
    ]
    assert {op.kind for op in waiting} <= {Kind.ATTEND}
    assert all(op.layer >= plan.resident_layers for op in waiting)

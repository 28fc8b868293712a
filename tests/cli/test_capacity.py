"""`sparda capacity`: where each byte goes, what fits, and what to change."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparda_core.cli.main import main
from sparda_core.compose import compose
from sparda_core.shapes import BlockSpec, named_shape
from tests.cli.conftest import Refusal
from tests.house.test_predict_is_light import loaded_by

Captured = pytest.CaptureFixture[str]
GIB = 1 << 30
LOAD = ("--batch", "16", "--context", "131072")


def told(capsys: Captured, *argv: str) -> Any:
    assert main(["capacity", *argv, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_it_is_the_plan_that_a_session_would_check(capsys: Captured) -> None:
    got = told(capsys, *LOAD, "--slots", "128", "--policy", "lru", "--host-dtype", "fp8", "--page-blocks", "8")
    pair = compose(
        named_shape("minicpm4.1-8b"), "forecast", "offload-prefetch", spec=BlockSpec(sink=1, local=32, budget=96),
        runtime_options={"slots": 128, "policy": "lru"}, places=16, tokens=131072, host_dtype="fp8", page_blocks=8,
    )  # fmt: skip
    assert got["plan"] == json.loads(json.dumps(pair.capacity().as_json()))
    assert sum(got["plan"]["device_parts"].values()) == got["plan"]["device_bytes"]
    assert (got["policy"], got["fits"], got["problem"]) == ("lru", None, None)


def test_what_fits_is_the_most_that_fits(capsys: Captured) -> None:
    machine = ("--context", "131072", "--profile", "h200")
    got = told(capsys, "--batch", "16", *machine)
    assert got["fits"] is True
    assert got["copy"]["source"] == "by the profile h200 (measured)"
    rows = got["rows_that_fit"]
    for batch, fits in ((rows, True), (rows + 1, False)):
        assert told(capsys, "--batch", str(batch), *machine)["fits"] is fits


def test_every_change_that_is_offered_makes_it_fit(capsys: Captured) -> None:
    base = ("--context", "131072", "--gpu-memory-gib", "60", "--host-memory-gib", "400")
    got = told(capsys, "--batch", "64", "--slots", "384", *base)
    assert got["fits"] is False
    assert set(got["short_bytes"]) == {"device"}
    assert "what fits" in got["problem"]
    changes = [way["change"] for way in got["ways_out"]]
    assert changes[0].startswith("slots=")
    slots = changes[0].split()[0].removeprefix("slots=")
    assert told(capsys, "--batch", "64", "--slots", slots, *base)["fits"] is True
    rows = next(change for change in changes if change.endswith("rows of 131072 tokens")).split()[0]
    assert told(capsys, "--batch", rows, "--slots", "384", *base)["fits"] is True


def test_half_the_hosts_bytes_and_a_runtime_that_offloads_are_offered_where_they_help(capsys: Captured) -> None:
    narrow = told(capsys, "--batch", "16", "--context", "131072", "--host-memory-gib", "40")
    assert "host" in narrow["short_bytes"]
    assert any("fp8" in way["change"] for way in narrow["ways_out"])
    resident = told(capsys, "--runtime", "resident", "--batch", "64", "--context", "131072", "--gpu-memory-gib", "75")
    (way,) = [way for way in resident["ways_out"] if way["change"] == "runtime offload-prefetch"]
    assert way["device_bytes"] < 75 * GIB < resident["plan"]["device_bytes"]


def test_a_memory_budget_fills_the_slots_unless_they_are_named(capsys: Captured) -> None:
    found = told(capsys, *LOAD, "--gpu-memory-gib", "80")
    assert found["plan"]["slots"] > 96
    assert found["plan"]["device_bytes"] <= 80 * GIB
    assert found["slots_that_fit"] == found["plan"]["slots"]
    assert told(capsys, *LOAD, "--gpu-memory-gib", "80", "--slots", "96")["plan"]["slots"] == 96


def test_tables_name_every_part_and_the_verdict(capsys: Captured) -> None:
    assert main(["capacity", *LOAD, "--profile", "h200"]) == 0
    shown = capsys.readouterr().out
    for word in ("weights", "slots", "pinned pages", "It fits", "rows of this length", "thread blocks"):
        assert word in shown
    assert main(["capacity", *LOAD, "--gpu-memory-gib", "10"]) == 0
    assert "nothing that is tried here" in capsys.readouterr().out
    assert main(["capacity"]) == 0
    assert "No memory was named" in capsys.readouterr().out


def test_nonsense_is_refused(refusal: Refusal) -> None:
    assert "did you mean" in refusal("capacity", "minicpm4.1-8")
    assert "host-dtype" in refusal("capacity", "--host-dtype", "fp4")
    assert "attends to every block" in refusal("capacity", "--selector", "dense", "--runtime", "offload-sync")
    assert "slots=8 must be >= budget=96" in refusal("capacity", "--slots", "8")


def test_a_plan_loads_no_torch() -> None:
    done, names = loaded_by("capacity", *LOAD, "--profile", "h200", "--json")
    assert done.returncode == 0
    assert "sparda_core.runtimes.gpu.capacity" in names
    assert "torch" not in names


def test_rows_beyond_any_machine_are_planned_at_once_and_in_proportion(capsys: Captured) -> None:
    one, many = (told(capsys, "--batch", batch, "--context", "1024") for batch in ("1", "2147483647"))
    for name in ("entries", "slots", "resident pages"):
        parts = [got["plan"]["device_parts"][name] for got in (one, many)]
        assert parts[1] == 2147483647 * parts[0]

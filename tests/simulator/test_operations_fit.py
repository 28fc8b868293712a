"""From samples of kernels alone and in turn to the section `kernels`: numbers of a known machine are found again."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.gpu_fit.in_turn import BY_ROWS, in_turn_table
from sparda_core.simulator.gpu_fit.reading import descend, reading_table, tells
from sparda_core.simulator.gpu_fit.samples import Row, Samples
from sparda_core.simulator.gpu_fit.searches import search_table
from sparda_core.simulator.gpu_price import alone_s, kind_alone_s
from sparda_core.simulator.kernel_parts import Kernels
from sparda_core.simulator.quantity import Basis, Quantity, RowsCurve
from sparda_core.work import Work
from tests.simulator.beside import h200 as by_hand

ROWS = (1, 8, 16, 28, 40, 64, 112, 160)
TURN_US = 0.25


def number(value: float, unit: str) -> Quantity:
    return Quantity(value=value, unit=unit, source="a test", basis=Basis.MEASURED)


@functools.cache
def machine() -> GpuProfile:
    seconds = {
        "score_s": 1e-6, "attend_s": 2e-6, "attend_round_s": 3e-6, "score_ramp_s": 2e-6, "attend_ramp_s": 1e-6,
        "select_s": 3e-6, "diff_s": 2e-6,
    }  # fmt: skip
    rates = {"score_bytes_per_s": 3.9e12, "attend_bytes_per_s": 4.1e12}
    told: dict[str, Any] = {name: number(value, "s") for name, value in seconds.items()}
    told |= {name: number(value, "B/s") for name, value in rates.items()}
    curves: dict[str, Any] = {
        name: RowsCurve(tokens=tokens, s=s, source="a test", basis=Basis.MEASURED)
        for name, tokens, s in (
            ("select_searched", (512, 2048), (0.0, 1.5e-6)), ("diff_searched", (0, 96, 384), (0.0, 1e-6, 3e-6))
        )
    }  # fmt: skip
    return attrs.evolve(by_hand(), kernels=Kernels(**told, **curves, score_passed=number(1.4, "1")))


def kernels_of(rows: int) -> Iterator[tuple[str, str, Work, int]]:
    """(kernel, kind, work, slots)."""
    splits = {1: 96, 8: 16, 16: 8, 28: 7, 40: 8, 64: 2, 112: 4, 160: 2}[rows]
    for name, size in (("attend", 6.3e6), ("attend all", 3.4e7)):
        yield name, "attend", Work(hbm_bytes=size * rows, ctas=2 * rows * splits, ctas_per_sm=3, launches=2), 1
    yield "score forecast", "score", Work(hbm_bytes=4.2e6 * rows, ctas=128 * rows, ctas_per_sm=5), 1
    query = Work(hbm_bytes=6.3e6 * rows, passed_bytes=2.1e6 * rows, ctas=44 * rows, ctas_per_sm=3, launches=2)
    yield "score query", "score", query, 1
    yield "score proxy", "score", Work(hbm_bytes=1.7e7 * rows, ctas=512 * rows, ctas_per_sm=5), 1
    yield "choose", "select", Work(hbm_bytes=100.0, searched=2048.0), 1
    yield "diff last-selection", "diff", Work(hbm_bytes=100.0), 1
    for slots in (1, 4):
        yield "diff lru", "diff", Work(hbm_bytes=100.0, searched=96.0 * slots), slots
    yield "attend pages", "attend", Work(hbm_bytes=6.3e6 * rows, ctas=2 * rows * splits, ctas_per_sm=3, launches=2), 1


def row_of(name: str, kind: str, work: Work, rows: int, context: int, slots: int) -> Row:
    us = 1e6 * kind_alone_s(machine(), work, kind, rows)
    return {
        "kernel": name, "kind": kind, "rows": rows, "context": context, "slots": slots, "us": [us, us],
        "work": attrs.asdict(work),
    }  # fmt: skip


@functools.cache
def samples() -> Samples:
    kernels = [
        row_of(name, kind, work, rows, 131072, slots) for rows in ROWS for name, kind, work, slots in kernels_of(rows)
    ]
    short = Work(hbm_bytes=100.0, searched=512.0)
    kernels += [row_of("choose", "select", short, rows, 32768, 1) for rows in (1, 16)]
    return Samples(
        identity={}, provenance={}, sections={"kernels": kernels, "sequence": list(in_turn())}, seconds={}
    )


#: Microseconds of an operation beyond gaps and bytes, at so many rows.
def beyond_us(kind: str, rows: int) -> float:
    return {"project": 4.0, "output": 5.0, "mlp": 8.0, "head": 9.0, "proxy": 6.0, "begin": 1.0}[kind] + rows / 64


def in_turn() -> Iterator[Row]:
    launches = {"project": 3, "output": 1, "mlp": 4, "head": 6, "proxy": 4, "begin": 2}
    for rows in ROWS:
        us = {}
        for kind, count in launches.items():
            work = Work(hbm_bytes=1e7, launches=count)
            us[kind] = 1e6 * alone_s(machine(), work) + beyond_us(kind, rows)
            yield {"what": kind, "rows": rows, "launches": count, "us": [us[kind]], "work": attrs.asdict(work)}
        layer = us["project"] + us["output"] + us["mlp"] + 8 * TURN_US
        yield {"what": "layer", "rows": rows, "launches": 8, "us": [layer]}


def test_what_reads_much_is_said_again_whatever_its_rounds() -> None:
    bare = attrs.evolve(machine(), kernels=None)
    assert tells(samples())
    table = reading_table(samples(), bare)
    fitted: dict[str, Any] = {
        name: number(value["value"], value["unit"]) for name, value in table.items() if "value" in value
    }
    told = attrs.evolve(bare, kernels=Kernels(**fitted))
    off = [
        abs(kind_alone_s(told, Work(**row["work"]), row["kind"], row["rows"]) / (row["us"][0] * 1e-6) - 1)
        for row in samples().rows("kernels")
        if row["kind"] in ("attend", "score")
    ]
    assert sum(off) / len(off) < 0.01
    assert max(off) < 0.05
    assert table["attend_rows"]["tokens"] == [float(rows) for rows in ROWS]


def test_choices_and_diffs_are_told_by_candidates_and_rows() -> None:
    table = search_table(samples(), attrs.evolve(machine(), kernels=None))
    assert table["select_searched"]["tokens"] == [512, 2048]
    assert table["select_searched"]["s"] == pytest.approx([0, 1.5e-6], rel=0.01)
    assert table["diff_searched"]["tokens"] == [0, 96, 384]
    assert table["diff_searched"]["s"] == pytest.approx([0, 1e-6, 3e-6], rel=0.01)
    assert table["select_rows"]["s"] == pytest.approx([3e-6] * len(ROWS), rel=0.01)
    assert table["diff_rows"]["s"] == pytest.approx([2e-6] * len(ROWS), rel=0.01)


def test_operations_are_told_by_rows_and_a_launch_by_what_layers_take_beyond_their_parts() -> None:
    table = in_turn_table(samples(), attrs.evolve(machine(), kernels=None))
    for kind in BY_ROWS:
        assert table[f"{kind}_rows"]["s"] == pytest.approx([beyond_us(kind, rows) * 1e-6 for rows in ROWS], rel=0.01)
    assert table["turn_s"]["value"] == pytest.approx(TURN_US * 1e-6, rel=0.01)
    assert table["embed_s"]["value"] == pytest.approx(beyond_us("begin", 34) / 2 * 1e-6, rel=0.2)


def test_older_samples_tell_none_of_it() -> None:
    old = [
        {key: value for key, value in row.items() if key not in ("context", "slots")}
        for row in samples().rows("kernels")
        if row["rows"] in (1, 16) and row["kernel"] in ("attend", "choose", "diff lru")
    ]
    for row in old:
        row["work"] = {key: value for key, value in row["work"].items() if key not in ("searched", "passed_bytes")}
    less = attrs.evolve(
        samples(), sections={"kernels": old, "sequence": [{"rows": 1, "launches": 8, "us_per_layer": [136.0]}]}
    )
    for table in (reading_table, search_table, in_turn_table):
        assert table(less, machine()) == {}


def test_the_search_finds_the_least_of_a_bowl() -> None:
    found = descend(lambda at: abs(at["x"] / 3e-6 - 1) + abs(at["y"] / 5e9 - 1), {"x": 1e-6, "y": 1e10})
    assert found == pytest.approx({"x": 3e-6, "y": 5e9}, rel=0.01)

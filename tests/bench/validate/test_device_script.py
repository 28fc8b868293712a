"""The script that measures a validation on a GPU machine: small cells first, the rest in what is left of the time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from benchmarks.gpu import validate as script
from sparda_core.bench.validate.compact import CompactFacts
from sparda_core.bench.validate.folder import Run, read_run, shipped_cells, write_run
from sparda_core.bench.validate.measure_gpu import decode_cell
from sparda_core.bench.validate.predicting import planned_of
from sparda_core.bench.validate.record import Measured
from sparda_core.cli.parser import Parser
from sparda_core.cli.validate import add_arguments

FACTS = CompactFacts(
    layers=1, batch=8, kv_heads=2, budget=96, slots=96, lengths=(4097,), selected=(64,), opened=(0,), misses=((50,),)
)


class Command:
    """Stands for `sparda`: parses what it is given, and leaves records of which so many failed."""

    def __init__(self, failed: int) -> None:
        self.failed, self.asked = failed, list[Any]()

    def __call__(self, words: list[str]) -> int:
        parser = Parser(prog="sparda validate", description="")
        add_arguments(parser)
        args = parser.parse(words[1:])
        self.asked.append(args)
        records = (read_run(args.cells) if args.cells else shipped_cells()).records
        measured = Measured(rounds_s=((0.01,),), facts=FACTS)
        broken: dict[str, Any] = {"refused": "broken", "failed": True}
        made = [
            attrs.evolve(one, **(broken if at < self.failed else {"measured": measured}))
            for at, one in enumerate(records)
        ]
        args.out.mkdir(parents=True, exist_ok=True)
        write_run(args.out / "validation.json", Run(records=made))
        return 1 if self.failed else 0


def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failed: int) -> tuple[int, list[Any]]:
    command = Command(failed)
    monkeypatch.setattr(script, "sparda", command)
    return script.main(["--seconds", "250", "--out", str(tmp_path / "out")]), command.asked


def test_small_cells_come_first_and_the_rest_gets_what_time_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, (small, rest) = run(monkeypatch, tmp_path, failed=0)
    assert code == 0
    assert small.measure_only
    assert rest.measure_only
    assert rest.cells is None
    assert 200 < rest.limit_s <= 250
    assert set(rest.timelines) <= {record.cell.key for record in shipped_cells().records}
    assert set(small.timelines) <= {record.cell.key for record in script.small_cells()}


def test_nothing_more_is_begun_where_the_small_cells_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, asked = run(monkeypatch, tmp_path, failed=3)
    assert (code, len(asked)) == (1, 1)


def test_small_cells_can_be_named_composed_and_predicted() -> None:
    for record in script.small_cells():
        planned_of(record.cell, "h200")
        assert decode_cell(record.cell).spec.block == record.cell.block

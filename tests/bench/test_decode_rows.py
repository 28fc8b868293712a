"""Cells, floors, rows and bars of the decode benchmark, without a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest

from sparda_core.bench.decode.bars import bars
from sparda_core.bench.decode.cell import NOSA, NOSA_CHURN, SPEC, Cell, core_cells, main_shape
from sparda_core.bench.decode.floors import kind_floors_s, step_bytes
from sparda_core.bench.decode.markdown import bars_table, kinds_table, steps_table
from sparda_core.bench.decode.report import GAINS, comparisons, gains, refused_row, row_of, table
from sparda_core.bench.decode.store import Settings, Store, read_rows, table_csv
from sparda_core.bench.decode.trace import batch_trace
from sparda_core.cli.main import main
from sparda_core.errors import ConfigError
from sparda_core.simulator.locality_file import load_locality

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
KINDS = {"project": 5e-4, "score": 6e-4, "select": 2e-4, "attend": 1e-3, "output": 4e-4, "mlp": 3e-3, "head": 2e-4}


def measured(step_s: float, *, moved: float = 0.0) -> dict[str, Any]:
    copies = moved / 51e9 or None
    return {
        "step_s": step_s, "step_p90_s": step_s, "moved_bytes": moved, "miss_share": 0.1 if moved else 0.0,
        "copies_s": copies, "copies_beside_s": copies, "head_s": 1e-4, "tail_s": 3e-4, "compute_s": 6.6e-3,
        "compute_beside_copy_s": 6.9e-3, "kinds_s": {**KINDS, "diff": 1e-4} if moved else KINDS,
    }  # fmt: skip


def rows_at(batch: int) -> list[dict[str, Any]]:
    """A resident, a query-driven, a synchronous and a prefetching step."""
    found = []
    for (selector, runtime), step_s, moved in (
        (("forecast", "resident"), 6.5e-3, 0.0), (("query", "offload-sync"), 14e-3, 3.2e8),
        (("forecast", "offload-sync"), 13e-3, 3.1e8), (("forecast", "offload-prefetch"), 7.2e-3, 3.1e8),
    ):  # fmt: skip
        cell = Cell(selector=selector, runtime=runtime, batch=batch, context=1 << 17)
        found.append(row_of(cell, measured(step_s, moved=moved), main_shape(), SPEC))
    return found


def test_core_cells_are_about_eighty_and_no_two_alike_or_of_one_name() -> None:
    cells = core_cells()
    assert 70 <= len(cells) <= 90
    assert len({cell.key for cell in cells}) == len(cells) == len(set(cells))
    assert cells[0].key == "forecast resident b16 128K"


def test_cells_beyond_the_paper_have_names_and_cuts_of_their_own_and_are_compared_with_nothing() -> None:
    beyond = [cell for cell in core_cells() if cell.beyond]
    assert [cell.key for cell in beyond if cell.lead > 1 or cell.batch == 1] == [
        "forecast resident b1 128K entries 8/8", "forecast resident b1 128K entries 4/4",
        "forecast prefetch b16 128K churn 10% last-selection x1 lead 2",
        "forecast prefetch b16 128K churn 10% last-selection x1 lead 4",
    ]  # fmt: skip
    fine = next(cell for cell in beyond if cell.entries == "4/4")
    assert (fine.spec.window, fine.spec.stride, fine.spec.budget) == (4, 4, SPEC.budget)
    assert step_bytes(fine, main_shape(), fine.spec).entries == pytest.approx(
        4 * step_bytes(attrs.evolve(fine, entries="32/16"), main_shape(), SPEC).entries, rel=1e-3
    )
    ours = row_of(beyond[0], measured(1e-3), main_shape(), beyond[0].spec)
    assert comparisons([*rows_at(16), ours]) == comparisons(rows_at(16))
    for wrong in ({"entries": "16/8"}, {"lead": 0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            attrs.evolve(fine, **wrong)


@pytest.mark.parametrize("selector", ["forecast", "dense"])
def test_the_floors_of_a_steps_parts_add_up_to_its_own(selector: str) -> None:
    cell = Cell(selector=selector, runtime="resident", batch=16, context=1 << 17)
    parts = kind_floors_s(cell, main_shape(), SPEC)
    assert sum(parts.values()) == pytest.approx(step_bytes(cell, main_shape(), SPEC).floor_s, rel=1e-12)
    assert parts["mlp"] == 32 * 3 * 4096 * 16384 * 2 / 4.2e12
    assert (parts["score"] > 0) == (selector == "forecast")


def test_a_row_tells_its_cell() -> None:
    cells = core_cells()
    assert [Cell.of({**cell.to_plain(), "step_s": 1.0}) for cell in cells] == cells


def test_the_floor_of_a_step_is_weights_blocks_and_entries_over_the_memory() -> None:
    cell = Cell(selector="forecast", runtime="resident", batch=16, context=1 << 17)
    least = step_bytes(cell, main_shape(), SPEC)
    assert least.blocks == 16 * 32 * 2 * 96 * 32768
    assert least.entries == 16 * 32 * 2 * 8191 * 256
    assert least.weights == pytest.approx(15.8e9, rel=0.01)
    dense = step_bytes(attrs.evolve(cell, selector="dense"), main_shape(), SPEC)
    assert dense.blocks == 16 * 32 * 2 * 2048 * 32768
    assert dense.entries == 0


def test_four_cells_are_of_nosa_and_judged_by_what_its_paper_gains() -> None:
    cells = [cell for cell in core_cells() if cell.shape == NOSA]
    assert cells == core_cells()[-4:]
    assert {(cell.method, cell.batch, cell.churn, cell.spec.local) for cell in cells} == {
        (method, batch, NOSA_CHURN, 16) for method in ("nosa sync", "nosa-forecast prefetch") for batch in (8, 16)
    }
    least = step_bytes(cells[0], cells[0].model, cells[0].spec)
    assert least.blocks == 16 * 32 * 2 * 96 * (32768 + 64 * 4)
    assert least.entries == 16 * 32 * 2 * 8191 * (256 + 4)
    assert all(cell.told_apart for cell in cells)
    rows = [
        row_of(cell, measured(step_s, moved=1.7e8), cell.model, cell.spec)
        for cell, step_s in zip(cells, (11e-3, 7.5e-3, 8e-3, 6e-3), strict=True)
    ]
    (bar,) = [bar for bar in bars([*rows_at(16), *rows]) if bar.name.startswith("nosa sync")]
    assert (bar.where, bar.met) == ("nosa-8b b16 128K", True)
    assert bar.figure == pytest.approx(11 / 7.5)
    assert comparisons([*rows_at(16), *rows])[-1] == comparisons(rows_at(16))[0]
    with pytest.raises(ConfigError, match=r"shape='nosa-7b' is unknown; known: minicpm4\.1-8b, nosa-8b"):
        attrs.evolve(cells[0], shape="nosa-7b")


def test_comparisons_and_bars_follow_from_the_rows() -> None:
    rows = rows_at(16)
    (line,) = comparisons(rows)
    assert line["prefetch_over_query_sync"] == pytest.approx(14 / 7.2)
    assert line["overlap_alone"] == pytest.approx(13 / 7.2)
    bound = max(6.9 / 6.6 * 6.5e-3, 1e-4 + 3.1e8 / 51e9 + 3e-4)
    assert line["prefetch_bound_s"] == pytest.approx(bound)
    judged = {(bar.name, bar.where): bar for bar in bars(rows)}
    assert judged["resident step: floor / step", "b16 128K"].figure == pytest.approx(5.0485 / 6.5, rel=1e-3)
    assert judged["query sync / forecast prefetch, best", "b16 128K"].met
    slow = [{**row, "step_s": 2 * row["step_s"], "floor_share": row["floor_share"] / 2} for row in rows]
    assert not {(bar.name, bar.where): bar for bar in bars(slow)}["resident step: floor / step", "b16 128K"].met


def test_gains_are_told_in_milliseconds_and_only_where_there_are_some() -> None:
    rows = rows_at(16)
    ((batch, headline, _, bound_ms, *_),) = gains(rows)
    assert (batch, headline) == (16, pytest.approx(14 / 7.2))
    assert bound_ms == pytest.approx(comparisons(rows)[0]["prefetch_bound_s"] * 1e3)
    assert len(gains(rows)[0]) == len(GAINS)
    assert gains([row for row in rows if row["runtime"] == "resident"]) == []


def test_cells_are_measured_at_every_early_asked_for_and_judged_at_none(capsys: pytest.CaptureFixture[str]) -> None:
    told = ["bench", "decode", "--list", "--only", "forecast", "b1", "--most", "2", "--early", "0", "2"]
    assert main(told) == 0
    shown = capsys.readouterr().out
    assert [shown.count(f" early {early}") for early in (0, 1, 2)] == [2, 0, 2]
    row = rows_at(16)[0]
    assert not bars([{**row, "early": 0}])
    assert bars([row, {**row, "early": 0}]) == bars([row])
    with pytest.raises(ConfigError, match="early=3"):
        Cell(selector="forecast", runtime="resident", batch=16, context=1 << 17, early=3)


def test_rows_are_kept_read_again_and_told_apart_by_settings(tmp_path: Path) -> None:
    cell, row = Cell(selector="forecast", runtime="resident", batch=16, context=1 << 17), rows_at(16)[0]
    store = Store(tmp_path, Settings(), "one GPU")
    assert store.read(cell) is None
    store.write(cell, row)
    assert store.read(cell) == row
    assert Store(tmp_path, Settings(steps=64), "one GPU").read(cell) is None
    assert Store(tmp_path, Settings(), "another").read(cell) is None
    store.path(cell).write_text("{")
    with pytest.raises(ConfigError, match=r"is damaged .* delete it"):
        store.read(cell)


def test_a_document_holds_all_rows_and_is_shown_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [*rows_at(16), refused_row(Cell(selector="dense", runtime="resident", batch=64, context=1 << 17), "no room")]
    Store(tmp_path, Settings(), "one GPU").finish(rows, {"gpu": None})
    assert read_rows(tmp_path / "decode.json")["rows"] == rows
    assert len((tmp_path / "decode.csv").read_text().splitlines()) == len(rows) + 1
    assert main(["bench", "decode", "--show", str(tmp_path / "decode.json")]) == 0
    shown = capsys.readouterr().out
    assert "does not fit" in shown
    assert "query sync / forecast prefetch, best" in shown
    (tmp_path / "other.json").write_text(json.dumps({"rows": [{}]}))
    assert main(["bench", "decode", "--show", str(tmp_path / "other.json")]) == 2
    assert "no result of `sparda bench decode`" in capsys.readouterr().err
    older = [{name: value for name, value in row.items() if name != "copies_beside_s"} for row in rows_at(16)]
    (tmp_path / "older.json").write_text(json.dumps({"rows": older}))
    assert main(["bench", "decode", "--show", str(tmp_path / "older.json")]) == 2
    assert "a row lacks copies_beside_s" in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*-decode-h200.json")), ids=lambda path: path.stem)
def test_every_measurement_that_is_kept_is_shown_again(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "decode", "--show", str(path)]) == 0
    assert "forecast prefetch b16 128K churn 10% last-selection x1" in capsys.readouterr().out


def test_tables_have_a_line_a_row() -> None:
    rows = rows_at(16)
    assert len(table(rows)) == len(rows)
    assert steps_table(rows).count("\n") == kinds_table(rows).count("\n") == len(rows) + 1
    assert bars_table(bars(rows)).count("\n") == len(bars(rows)) + 1
    assert table_csv(rows).count("\n") == len(rows) + 1


def test_without_a_gpu_the_command_says_what_does_without_one(capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert main(["bench", "decode", "--most", "1"]) == 2
    assert "sparda predict --profile h200" in capsys.readouterr().err
    assert main(["bench", "dekode"]) == 2
    assert main(["bench", "decode", "--only", "nothing-like-it"]) == 2
    assert "--list" in capsys.readouterr().err


def test_cells_are_chosen_by_whole_words_where_one_has_the_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "decode", "--list", "--json", "--only", "b1", "forecast"]) == 0
    assert {cell["batch"] for cell in json.loads(capsys.readouterr().out)} == {1}
    assert main(["bench", "decode", "--list", "--json", "--only", "copy-e"]) == 0
    assert {cell["engine"] for cell in json.loads(capsys.readouterr().out)} == {"copy-engine"}


def test_the_rows_that_the_documentation_shows_are_still_read(capsys: pytest.CaptureFixture[str]) -> None:
    results = Path(__file__).parents[2] / "benchmarks" / "results" / "2026-11-30-decode-h200.json"
    assert main(["bench", "decode", "--show", str(results)]) == 0
    assert "Decode steps" in capsys.readouterr().out


@pytest.mark.parametrize("damage", ["missing", "text", "list"])
def test_rows_that_no_table_can_be_made_of_are_refused(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row: Any = rows_at(16)[0]
    if damage == "missing":
        del row["floor_s"]
    elif damage == "text":
        row["step_s"] = "fast"
    else:
        row = ["key"]
    (tmp_path / "decode.json").write_text(json.dumps({"rows": [row]}), encoding="utf-8")
    assert main(["bench", "decode", "--show", str(tmp_path / "decode.json")]) == 2
    assert "no result of `sparda bench decode`" in capsys.readouterr().err
    store, cell = Store(tmp_path, Settings(), "gpu"), core_cells()[0]
    store.write(cell, row)
    with pytest.raises(ConfigError, match=r"damaged.*delete it"):
        store.read(cell)


def test_a_seed_that_no_generator_takes_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "decode", "--list", "--seed", str(2**64)]) == 2
    assert "--seed" in capsys.readouterr().err


def test_a_trace_is_lawful_and_the_same_every_time() -> None:
    locality = attrs.evolve(load_locality("hisparse"), churn=0.1)
    given: dict[str, Any] = {"shape": main_shape(), "spec": SPEC, "batch": 2, "context": 20_000, "steps": 70}
    one, two = (batch_trace(locality, **given) for _ in range(2))
    assert (one.selections == two.selections).all()
    for step, chosen in enumerate(one.selections):
        position = given["context"] + step
        assert (chosen[:, 1:] > chosen[:, :-1]).all()
        assert chosen.max() == position // SPEC.block
        assert all(set(SPEC.forced_blocks(position)) <= set(row.tolist()) for row in chosen)
    held = one.held(2 * SPEC.budget, "lru")
    assert held.shape == (64, 192)
    assert all(len(set(row.tolist())) == 192 for row in held)

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparda_core.bench import provenance as told


def test_provenance_names_the_machine_and_is_json() -> None:
    found = told.provenance()
    assert json.loads(json.dumps(found)) == found
    assert found["machine"]["cores"] >= 1
    assert found["packages"]["numpy"]
    assert found["sparda"]


def test_busy_cores_is_the_share_of_time_that_was_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([(100, 1000), (150, 1200)])
    monkeypatch.setattr(told, "_processor_time", lambda: next(ticks))
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert told.busy_cores(0) == pytest.approx(1.0)


@pytest.mark.parametrize("last", [None, (100, 1000)])
def test_a_system_that_does_not_say_gives_none(
    monkeypatch: pytest.MonkeyPatch, last: tuple[int, int] | None
) -> None:
    ticks = iter([(100, 1000), last])
    monkeypatch.setattr(told, "_processor_time", lambda: next(ticks))
    assert told.busy_cores(0) is None


def test_a_package_that_is_installed_has_no_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sparda_core").mkdir()
    monkeypatch.setattr("sparda_core.__file__", str(tmp_path / "sparda_core" / "__init__.py"))
    assert told.commit() is None

"""`sparda profile new` and `lint`: a file to start from, and a line for each thing that is wrong with one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sparda_core.cli.main import main
from sparda_core.simulator.profile_file import load_profile, profile_names
from tests.simulator.beside import BY_HAND

Captured = pytest.CaptureFixture[str]
Refusal = Callable[..., str]


@pytest.mark.parametrize("like", profile_names())
def test_a_new_profile_starts_from_any_shipped_one_and_is_sound(like: str, tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "mine.toml"
    assert main(["profile", "new", str(file), "--like", like]) == 0
    assert "replace its numbers, then `sparda profile lint" in capsys.readouterr().out
    assert load_profile(file).name == "mine"
    assert load_profile(file).capacity()["h2d"] == load_profile(like).capacity()["h2d"]
    assert main(["profile", "lint", str(file)]) == 0


def test_a_new_profile_replaces_nothing(tmp_path: Path, refusal: Refusal) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("mine")
    assert "exists; name another" in refusal("profile", "new", file)
    assert file.read_text() == "mine"
    assert "must end in .toml" in refusal("profile", "new", tmp_path / "mine.txt")
    assert "takes one file" in refusal("profile", "new")
    assert "did you mean 'l40s'?" in refusal("profile", "new", tmp_path / "other.toml", "--like", "l40")
    assert "absent" in refusal("profile", "new", tmp_path / "absent" / "mine.toml")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]


def test_lint_tells_every_finding_on_a_line_of_its_own(tmp_path: Path, capsys: Captured) -> None:
    text = BY_HAND.read_text()
    first, second, sound = (tmp_path / f"{name}.toml" for name in ("one", "two", "three"))
    first.write_text(text.replace("value = 761e12", "value = 1979e12").replace("value = 55.3e9", "value = 64e9"))
    second.write_text(text.replace("[launch]", "[lunch]"))
    sound.write_text(text)
    assert main(["profile", "lint", str(first), str(sound), str(second)]) == 2
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert len(lines) == 3
    assert all(line.startswith(f"sparda: error: {tmp_path}") for line in lines)
    for line, words in zip(lines, ("structured sparsity?", "link.d2h_bytes_per_s=6.4e+10", "lunch"), strict=True):
        assert words in line
    assert main(["profile", "lint", str(first), str(sound), "--json"]) == 2
    told = {Path(item["profile"]).stem: len(item["findings"]) for item in json.loads(capsys.readouterr().out)}
    assert told == {"one": 2, "three": 0}


def test_show_says_what_a_profile_was_calibrated_for(capsys: Captured) -> None:
    assert main(["profile", "show", "h200"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Calibrated for copy_ctas 1 to 32, in_flight_bytes 16384 to 131072, copy_bytes_in_flight 0 to" in told
    assert main(["profile", "show", "h200", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["domain"]["tokens"] == [1, 256]


def test_an_unknown_profile_is_no_finding(refusal: Refusal) -> None:
    assert "did you mean 'gh200'?" in refusal("profile", "lint", "gh20")

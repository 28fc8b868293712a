"""One command fills every page that is made from data, in order, and says where it stopped."""

from __future__ import annotations

import importlib.util
import re

import pytest

from benchmarks import pages
from benchmarks.decode_page import PAGE as DECODE
from benchmarks.decode_page import documents
from benchmarks.readme_page import README, filled
from sparda_core.bench.decode.page import filled as decode_filled
from sparda_core.errors import ConfigError
from sparda_core.whatif.scenario import Scenario
from tests.house.tree import ROOT

MARKED = re.compile(r"^<!-- (?:table|text): ", re.MULTILINE)


def test_every_page_with_places_to_fill_has_a_step() -> None:
    marked = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/*.md") if MARKED.search(path.read_text())}
    assert len(marked) > 5
    assert marked <= {page for step in pages.steps() for page in step.pages}


def test_every_step_is_a_program_that_is_there_and_names_files_that_are() -> None:
    for step in pages.steps():
        assert importlib.util.find_spec(step.words[0]), step
        assert all((ROOT / page).is_file() for page in step.pages), step
        assert all((ROOT / word.partition("=")[2]).exists() for word in step.words if "=" in word), step


def test_a_step_that_fails_ends_the_run_and_names_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    ran: list[str] = []

    def run(step: pages.Step) -> int:
        ran.append(step.name)
        return 3 if step.name == "published" else 0

    assert pages.fill(pages.steps(), run) == 3
    assert ran == ["cases", "leads-and-grids", "published"]
    assert "python -m benchmarks.pages published readme" in capsys.readouterr().err
    assert pages.fill(pages.chosen(["readme", "cases"], pages.steps()), run) == 0
    assert ran[3:] == ["cases", "readme"]


def test_an_unknown_step_is_one_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        pages.main(["casse"])
    assert "name='casse' is unknown; known: cases" in capsys.readouterr().err


def test_decode_page_and_command_have_the_same_data() -> None:
    assert decode_filled(DECODE.read_text(), documents()) == DECODE.read_text()


TEXT = README.read_text(encoding="utf-8")
TOLD = re.compile(r"barely: (\d+) rows .*? of the (\d+) that fit.*?churn of ([\d.]+) or below\s+(\d+) GB/s", re.DOTALL)


def advised() -> dict[str, object]:
    """Advice as README.md tells it: the rows from its text, how much they gain from two predictions."""
    found = TOLD.search(TEXT)
    assert found, "run python -m benchmarks.readme_page"
    more, fit = (int(found[at]) for at in (1, 2))
    base = Scenario(context=2**17, locality="infllm-v2", policy="lru", slot_factor=4.0, ctas=1, batch=more)
    ahead, resident = base.predict().step_s, Scenario(context=2**17, runtime="resident", batch=fit).predict().step_s
    flips = [{"knob": "churn", "value": float(found[3])}, {"knob": "link_gb_s", "value": float(found[4])}]
    return {
        "offload_pays": True, "flips": flips, "offload": {"batch": more}, "resident": {"batch": fit},
        "margin_over_resident": more / ahead / (fit / resident) - 1,
    }  # fmt: skip


def test_readme_says_what_is_predicted_today() -> None:
    assert filled(TEXT, advised()) == TEXT, "run python -m benchmarks.readme_page"


def test_readme_is_not_filled_with_another_answer_than_it_tells() -> None:
    with pytest.raises(ConfigError, match="predicted otherwise"):
        filled(TEXT, advised() | {"offload_pays": False})
    with pytest.raises(ConfigError, match="0 places"):
        filled(TEXT.replace("On an H200 barely", "On an H200 hardly"), advised())

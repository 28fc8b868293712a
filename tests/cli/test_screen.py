"""Tables on screens of any width: nothing is left out, and no figure is broken."""

from __future__ import annotations

import io
import re
import sys

import pytest

from sparda_core.cli.screen import show_table

PAIRS = [
    ("forecast x offload-prefetch", 8, "4x lru", 1419.25, "5.64 ms", "26.8 GB"),
    ("query x resident", 4, None, 3.5, "0", "1 B"),
]
HEADS = ("selector x runtime", "batch", "slots", "tokens/s", "step", "device")


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, width: int, *table: object, terminal: bool = True) -> str:
    screen = Screen() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    show_table(*table)  # type: ignore[arg-type]
    return re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_every_figure_is_there_whole_and_no_line_is_wider_than_the_screen(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shown(monkeypatch, width, "The best", HEADS, PAIRS)
    assert max(map(len, text.splitlines())) <= width
    for word in ("1419", "3.5", "5.64 ms", "26.8 GB", "4x lru", "tokens/s", "offload-prefetch", "device"):
        assert word in text
    assert text.count("step") == 1


def test_a_screen_that_is_wide_enough_gets_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, 100, "The best", HEADS, PAIRS).count("selector x runtime") == 1
    assert shown(monkeypatch, 60, "The best", HEADS, PAIRS).count("selector x") == 2


def test_a_long_name_leaves_room_for_the_figures_of_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    long = "exposed wait of a mean layer: most error over the larger of 10 % and 5 us"
    rows = [(long, "all", 41, "0.4853", "<= 0.02", "no"), (long, "link", 11, "0.0452", "<= 0.02", "no")]
    text = shown(monkeypatch, 80, "Bars", ("what", "where", "cells", "figure", "bound", "met"), rows)
    assert all(word in text for word in ("0.4853", "0.0452", "41", "11", "<= 0.02"))
    assert max(map(len, text.splitlines())) <= 80


def test_columns_that_name_a_row_stand_in_every_part(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(batch, mode, f"{batch}.25 ms", f"{mode}-figure") for batch in (4, 8) for mode in ("no-offload", "sync")]
    text = shown(monkeypatch, 34, "Published", ("batch", "mode", "step", "what"), rows)
    assert [line.split()[:2] for line in text.splitlines() if "no-offload" in line].count(["4", "no-offload"]) == 2


def test_a_pipe_has_a_width_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, 40, "The best", HEADS, PAIRS, terminal=False).count("selector x runtime") == 1


def test_a_table_without_rows_has_its_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "tokens/s" in shown(monkeypatch, 30, "Nothing", HEADS, [])

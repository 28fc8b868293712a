from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from sparda_core.errors import ConfigError, UnknownNameError
from sparda_core.whatif.figures import COLOURS, save_figure, value_named
from sparda_core.whatif.frontier import Between
from sparda_core.whatif.grid import Grid
from sparda_core.whatif.heat_map import plot_heat
from sparda_core.whatif.plots import plot_lines
from sparda_core.whatif.scenario import Scenario
from sparda_core.whatif.study import Study, run_grid
from tests.whatif.fakes import prediction, short_of

pytestmark = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")

SYNC, PREFETCH = {"runtime": "offload-sync"}, {"runtime": "offload-prefetch"}
BETWEEN = Between(first=SYNC, second=PREFETCH)


def legend(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def xs(line: Any) -> list[float]:
    return list(line.get_xdata())


def ys(line: Any) -> list[float]:
    return list(line.get_ydata())


def by_link(scenario: Scenario) -> Any:
    """Prefetching wins from 20 GB/s on; batch 64 does not fit."""
    speed = (scenario.link_gb_s or 0) if scenario.runtime == "offload-prefetch" else 20.0
    return prediction(speed * scenario.batch, short_of() if scenario.batch == 64 else None)


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.setattr(Scenario, "predict", by_link)
    axes = {
        "link_gb_s": (5.0, 10.0, 40.0, 80.0), "batch": (8, 16, 64), "runtime": ("offload-sync", "offload-prefetch")
    }  # fmt: skip
    return run_grid(Grid(axes=axes))


def test_lines_have_units_names_and_the_crossover(study: Study) -> None:
    (axes,) = plot_lines(study, "link_gb_s", crossings=[20.0]).axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("host link, GB/s each way", "tokens/s")
    assert legend(axes) == ["runtime offload-sync", "runtime offload-prefetch"]
    by_name = {line.get_label(): line for line in axes.lines}
    assert ys(by_name["runtime offload-prefetch"]) == [40, 80, 320, 640]
    assert any(xs(line) == [20.0, 20.0] for line in axes.lines)
    assert "batch 8" in axes.get_title()
    assert "predicted, not measured" in axes.get_title()


def test_what_does_not_fit_is_marked_and_has_no_height(study: Study) -> None:
    (axes,) = plot_lines(study, "batch", at={"link_gb_s": 80.0}).axes
    lines = {line.get_label(): line for line in axes.lines}
    heights = ys(lines["runtime offload-prefetch"])
    assert heights[:2] == [640, 1280]
    assert heights[2] != heights[2]  # NaN: no point
    assert "does not fit into memory" in lines
    assert [xs(line) for line in axes.lines if line.get_marker() == "x"] == [[64], [64], []]


def test_a_heat_map_of_a_speed_up_has_its_crossover_line_and_hatches(study: Study) -> None:
    axes = plot_heat(study, "link_gb_s", "batch", between=BETWEEN).axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("host link, GB/s each way", "batch, rows")
    assert [patch.get_hatch() for patch in axes.patches] == ["////"] * 4
    edges = [(xs(line), ys(line)) for line in axes.lines]
    assert edges == [([2, 2], [0, 1]), ([2, 2], [1, 2])]  # between 10 and 40 GB/s, for both batches that fit
    numbers = [text.get_text() for text in axes.texts]
    assert numbers[:2] == ["0.25", "0.25"]


def test_a_heat_map_of_the_best_names_it(study: Study) -> None:
    axes = plot_heat(study, "link_gb_s", "batch").axes[0]
    texts = [text.get_text() for text in axes.texts]
    assert "160\noffload-sync" in texts
    assert "1,280\noffload-prefetch" in texts


def test_figures_are_written_in_both_forms_with_the_same_bytes_each_time(study: Study, tmp_path: Path) -> None:
    for name in ("one", "two"):
        written = save_figure(plot_heat(study, "link_gb_s", "batch"), tmp_path / name)
        assert [path.name for path in written] == [f"{name}.png", f"{name}.svg"]
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")


def test_more_lines_than_colours_are_cut_to_the_fastest_and_the_legend_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scenario, "predict", lambda s: prediction(float(s.ctas * s.batch)))
    study = run_grid(Grid(axes={"batch": (1, 2), "ctas": range(1, 12)}))
    (axes,) = plot_lines(study, "batch").axes
    assert legend(axes) == [f"ctas {count}" for count in range(12 - len(COLOURS), 12)]
    box: Any = axes.get_legend()
    assert box.get_title().get_text() == "the 8 fastest of 11"


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda s: plot_lines(s, "runtime"), "runtime has no two numbers"),
        (lambda s: plot_lines(s, "context"), "'context' is no axis"),
        (lambda s: plot_lines(s, "batch", at={"link_gb_s": 7.0}), "link_gb_s=7.0 is not on the grid"),
        (lambda s: plot_heat(s, "batch", "runtime"), "runtime has no two numbers"),
    ],
)
def test_figures_that_cannot_be_drawn_are_refused(draw: Any, says: str, study: Study) -> None:
    with pytest.raises(ConfigError, match=says):
        draw(study)


def test_a_value_has_to_be_known() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'tokens_per_s'"):
        value_named("token_per_s")

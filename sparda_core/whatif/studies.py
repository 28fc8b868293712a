"""Studies that come with the package: a question, the grid that answers it, and how to read the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from sparda_core.errors import UnknownNameError
from sparda_core.whatif.backends import Pool
from sparda_core.whatif.grid import Grid
from sparda_core.whatif.lookahead import lookahead_grid
from sparda_core.whatif.lookahead_figures import lookahead_figures
from sparda_core.whatif.lookahead_tables import lookahead_tables
from sparda_core.whatif.reading import Sheet
from sparda_core.whatif.scenario import Scenario
from sparda_core.whatif.study import Report, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@attrs.frozen(kw_only=True)
class NamedStudy:
    """A study under a name.

    question  what it answers, one sentence
    grid      of a base scenario and the axes that its user set
    tables    of the finished study: crossovers go through the pool, progress to the report
    figures   of the finished study, by the name of their files; needs matplotlib
    """

    question: str
    grid: Callable[[Scenario, Mapping[str, Any]], Grid]
    tables: Callable[[Study, Pool, Report | None], tuple[Sheet, ...]]
    figures: Callable[[Study], dict[str, Figure]]


STUDIES = {
    "lookahead": NamedStudy(
        question="Where does lookahead still pay once the device keeps 1x, 2x, 4x the last selection?",
        grid=lookahead_grid, tables=lookahead_tables, figures=lookahead_figures,
    ),
}  # fmt: skip


def study_named(name: str) -> NamedStudy:
    """The study of that name; raises UnknownNameError with the nearest one."""
    if name not in STUDIES:
        raise UnknownNameError(what="study", name=name, known=STUDIES)
    return STUDIES[name]

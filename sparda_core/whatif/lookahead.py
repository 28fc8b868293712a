"""The lookahead study: where knowing a selection one layer early still pays once the device keeps more of them.

The paper's device keeps exactly the last selection, the worst case for misses (SparDA, section 4). An LRU of 2 or 4
selections misses far less (HiSparse: 30, 13.4, 6.7 % at 1x, 2x, 4x), so there is less left to hide. The study sets
prefetching against the same selector without it, and against plain query selection, over pools, batches and links.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparda_core.errors import ConfigError
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.whatif.backends import Pool
from sparda_core.whatif.crossover import Asked, Found, crossovers_in
from sparda_core.whatif.figures import COLOURS, MARKERS, axis_label, new_figure
from sparda_core.whatif.frontier import Between, Pair, pairs
from sparda_core.whatif.grid import Grid
from sparda_core.whatif.plots import title_of
from sparda_core.whatif.reading import Sheet, readable
from sparda_core.whatif.scenario import Scenario
from sparda_core.whatif.study import Report, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOCALITY = "hisparse"
#: A gain that is worth the trained Forecast.
PAYS = 1.05
AHEAD, SAME, QUERY = "forecast x offload-prefetch", "forecast x offload-sync", "query x offload-sync"
METHODS: dict[str, dict[str, Any]] = {
    QUERY: {"selector": "query", "runtime": "offload-sync"},
    SAME: {"selector": "forecast", "runtime": "offload-sync"},
    AHEAD: {"selector": "forecast", "runtime": "offload-prefetch"},
}
POOLS: dict[str, dict[str, Any]] = {
    "1x last-selection": {"policy": "last-selection", "slot_factor": 1.0},
    "1x lru": {"policy": "lru", "slot_factor": 1.0},
    "2x lru": {"policy": "lru", "slot_factor": 2.0},
    "4x lru": {"policy": "lru", "slot_factor": 4.0},
}
#: The usual axes. 128 GiB of host memory hold some 28 rows of 128K tokens.
BATCHES, GENERATIONS = (1, 4, 8, 16, 24), (3, 4, 5, 6)
AXES = ("batch", "pcie", "link_gb_s", "context", "budget", "churn", "engine", "ctas", "profile")
#: Where the search for a link begins, GB/s; it ends at what a link of the profile's kind can carry.
SLOWEST = 0.5
LINK, GENERATION = "link_gb_s", "pcie"
REMARKS = (
    "Predicted, not measured: misses come from a synthetic locality, and the engine is not calibrated on whole steps.",
    "Both sides of a comparison have equal budgets and equal pools; what a Forecast costs in quality is not in here.",
)


def lookahead_grid(base: Scenario, axes: Mapping[str, Any]) -> Grid:
    """Methods x pools x batches x links; axes given replace the usual ones, one of AXES may join.

    raises  ConfigError for an axis that the study turns itself
    """
    for name in axes:
        if name not in AXES:
            may = ", ".join(AXES)
            raise ConfigError(f"grid {name}: the study lookahead varies {may}; leave --study out for a free grid")
    usual: dict[str, Any] = {"batch": BATCHES}
    fixed = {LINK, GENERATION} & axes.keys() or base.pcie is not None or base.link_gb_s is not None
    if not fixed and _has_generations(base):
        usual[GENERATION] = GENERATIONS
    shifted = base if base.locality is not None else base.turned(locality=LOCALITY)
    return Grid(base=shifted, axes={"pool": POOLS, "method": METHODS, **usual, **axes})


def _has_generations(base: Scenario) -> bool:
    machine = base.machine()
    return isinstance(machine, GpuProfile) and machine.link.generation is not None


def lookahead_tables(study: Study, pool: Pool, report: Report | None) -> tuple[Sheet, ...]:
    """Gain, exposed share and memory by pool and point; the link and the batch between which lookahead pays."""
    return (_by_pool(study), _matrix(study), _slots_instead(study), _points(study), *_crossovers(study, pool, report))


def _by_pool(study: Study) -> Sheet:
    """One row a pool, over all its points that fit."""
    rows = []
    for name in POOLS:
        fit = [pair for pair in _pairs(study, SAME) if pair.given["pool"] == name and pair.speedup is not None]
        plain = [pair.speedup for pair in _pairs(study, QUERY) if pair.given["pool"] == name]
        if not fit:
            rows.append((name, *[None] * 7))
            continue
        gains = [pair.speedup for pair in fit if pair.speedup is not None]
        sides = [(pair.first, pair.second) for pair in fit if pair.first is not None and pair.second is not None]
        batch = [int(pair.given.get("batch", study.grid.base.batch)) for pair in fit]
        moved = [(row.misses or 0) / n for (_, row), n in zip(sides, batch, strict=True)]
        held = [(row.pool_bytes or 0) / n / 1e6 for (_, row), n in zip(sides, batch, strict=True)]
        rows.append((
            name, _spread(moved), _spread(gains), f"{sum(gain >= PAYS for gain in gains)} of {len(gains)}",
            _spread([gain for gain in plain if gain is not None]),
            _spread([row.exposed_share for row, _ in sides]), _spread([row.exposed_share for _, row in sides]),
            _spread(held),
        ))  # fmt: skip
    return Sheet(
        title=f"What lookahead adds: {AHEAD} by {SAME}, over all batches and links",
        columns=(
            "slots", "blocks moved per row", "times as fast", f"pays ({PAYS - 1:.0%} or more)", f"times {QUERY}",
            "exposed share without", "exposed share with", "slots per row, MB",
        ),
        rows=tuple(rows), notes=(f"Locality: {study.grid.base.locality}. {REMARKS[0]}", REMARKS[1]),
    )  # fmt: skip


def _spread(values: Sequence[float | None]) -> str | None:
    real = [value for value in values if value is not None]
    low, high = (readable(float(f"{value:.3g}")) for value in (min(real), max(real))) if real else ("", "")
    return None if not real else low if low == high else f"{low} to {high}"


def _matrix(study: Study) -> Sheet:
    """Gains as pools and links by batches."""
    return Sheet(
        title="The same by batch; - where it does not fit into memory",
        **_by_batch(study, [(pair.given, pair.speedup) for pair in _pairs(study, SAME)]),
    )


def _slots_instead(study: Study) -> Sheet:
    """What more slots do without lookahead, against lookahead on the paper's pool."""
    paper, *more = POOLS
    first = {"method": AHEAD, "pool": paper}
    cells = []
    for name in more:
        found = pairs(study, Between(first=first, second={"method": SAME, "pool": name}))
        cells += [({"pool": name, **pair.given}, pair.speedup) for pair in found]
    return Sheet(
        title=f"Slots instead of lookahead: {SAME} with these slots, times as fast as {AHEAD} with {paper}",
        **_by_batch(study, cells), notes=("More than 1: memory alone does more than lookahead on the last selection.",),
    )  # fmt: skip


def _by_batch(study: Study, cells: Sequence[tuple[Mapping[str, Any], float | None]]) -> dict[str, Any]:
    """Columns and rows of a sheet: what is given down, batches across."""
    batches = study.grid.axis("batch").labels
    given = [axis.name for axis in study.grid.axes if axis.name not in ("method", "batch")]
    table: dict[tuple[Any, ...], dict[Any, float | None]] = {}
    for labels, value in cells:
        table.setdefault(tuple(labels[name] for name in given), {})[labels["batch"]] = _rounded(value)
    return {
        "columns": (*given, *(f"batch {batch}" for batch in batches)),
        "rows": tuple((*rest, *(row.get(batch) for batch in batches)) for rest, row in table.items()),
    }


def _points(study: Study) -> Sheet:
    """One row a pool and point: prefetching against the same selector, and against plain query selection."""
    by_query = {_key(pair): pair for pair in _pairs(study, QUERY)}
    rows = []
    for pair in _pairs(study, SAME):
        before, after = pair.first, pair.second
        if before is None or after is None or pair.speedup is None:
            reason = next((row.reason for row in (after, before) if row is not None and not row.fits), None)
            rows.append((*pair.given.values(), *[None] * 8, reason))
            continue
        rows.append((
            *pair.given.values(), after.misses, pair.speedup, by_query[_key(pair)].speedup, before.exposed_share,
            after.exposed_share, after.pool_bytes, after.tokens_per_s, after.bound, None,
        ))  # fmt: skip
    given = tuple(axis.name for axis in study.grid.axes if axis.name != "method")
    return Sheet(
        title=f"Every point ({AHEAD})",
        columns=(
            *given, "misses", f"times {SAME}", f"times {QUERY}", "exposed share without", "exposed share with",
            "pool_bytes", "tokens_per_s", "bound", "reason",
        ),
        rows=tuple(rows), long=True,
    )  # fmt: skip


def _crossovers(study: Study, pool: Pool, report: Report | None) -> list[Sheet]:
    """Where the gain over the same selector passes PAYS, along the batch and along the link."""
    sheets = []
    for name, apart in ((LINK, {LINK, GENERATION}), ("batch", {"batch"})):
        low, high = _span(study.grid, name)
        if not low < high:
            continue
        rest = {
            axis.name: dict(zip(axis.labels, axis.settings, strict=True)) if axis.name == "pool" else axis.labels
            for axis in study.grid.axes
            if axis.name not in {"method", *apart}
        }
        cells = Grid(base=study.grid.base, axes=rest, most=study.grid.most)
        ask = Asked(knob=name, low=low, high=high, lead=PAYS)
        found = crossovers_in(cells, METHODS[AHEAD], METHODS[SAME], ask, pool=pool, report=report)
        sheets.append(_changes(found, tuple(rest), ask))
    return sheets


def _span(grid: Grid, name: str) -> tuple[float, float]:
    """From where to where: one row to the largest batch; a slow link to the fastest of the profile's kind."""
    if name == "batch":
        return 1, max(grid.axis(name).labels)
    machine = grid.base.machine()
    if not isinstance(machine, GpuProfile):
        return SLOWEST, SLOWEST
    return SLOWEST, float(f"{machine.link.ceiling_bytes_per_s / 1e9 * 0.999:.3g}")


def _changes(found: list[Found], given: tuple[str, ...], ask: Asked) -> Sheet:
    says = (one.crossovers.told("pays", "does not pay") if one.crossovers is not None else one.reason for one in found)
    return Sheet(
        title=f"Where lookahead gains {PAYS - 1:.0%} or more over the same selector without it, "
        f"as {axis_label(ask.knob)} goes from {ask.low:g} to {ask.high:g}",
        columns=(*given, "changes (within 1 %)"),
        rows=tuple((*one.given.values(), text) for one, text in zip(found, says, strict=True)),
    )


def _pairs(study: Study, base: str) -> list[Pair]:
    return pairs(study, Between(first={"method": base}, second={"method": AHEAD}))


def _key(pair: Pair) -> tuple[Any, ...]:
    return tuple(pair.given.items())


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def lookahead_figures(study: Study) -> dict[str, Figure]:
    """The gain over the batch, one panel a link (or one panel), one line a pool; dotted where it begins to pay."""
    panels = next((axis for axis in study.grid.axes if axis.name in (LINK, GENERATION)), None)
    labels = panels.labels if panels is not None else (None,)
    figure = new_figure(3.4 * len(labels) + 1.2, 4.4)
    drawn = figure.subplots(1, len(labels), sharey=True, squeeze=False)[0]
    others = [axis for axis in study.grid.axes if axis.name not in ("method", "pool", "batch")]
    held = {axis.name: axis.labels[0] for axis in others if axis is not panels}
    for axes, label in zip(drawn, labels, strict=True):
        here = held | ({panels.name: label} if panels is not None else {})
        for turn, name in enumerate(POOLS):
            points = [
                (pair.given["batch"], pair.speedup)
                for pair in _pairs(study, SAME)
                if pair.given["pool"] == name and all(pair.given[key] == value for key, value in here.items())
            ]
            line = [(x, gain) for x, gain in points if gain is not None]
            # The two pools of one selection may coincide: the first is drawn wide, beneath the second.
            axes.plot(
                *zip(*line, strict=True) if line else ([], []), color=COLOURS[turn], marker=MARKERS[turn],
                linewidth=1.6 if turn else 5.0, alpha=1.0 if turn else 0.5, markersize=5, label=name,
            )  # fmt: skip
        axes.axhline(PAYS, color="black", linestyle=":", linewidth=1, label=f"pays: {PAYS:g} times")
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set_xscale("log", base=2)
        batches = study.grid.axis("batch").labels
        axes.set_xticks(batches, [str(batch) for batch in batches])
        axes.set_xlabel(axis_label("batch"))
        axes.set_title("" if panels is None else f"{axis_label(panels.name)}: {label}", fontsize=9)
        axes.grid(alpha=0.3)
    drawn[0].set_ylabel("times as many tokens/s as without lookahead")
    drawn[0].legend(fontsize=8, title="slots", title_fontsize=8)
    figure.suptitle(f"{title_of(study, held)} (synthetic locality)", fontsize=9)
    return {"lookahead": figure}

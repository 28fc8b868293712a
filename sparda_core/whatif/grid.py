"""Grid: every combination of the values of some axes around one scenario."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from sparda_core.errors import ConfigError, SpardaError, UnknownNameError
from sparda_core.policy import POLICIES
from sparda_core.simulator.cpu import CpuProfile
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.whatif.axes import MOST_POINTS, checked, knob_named, without_repeats
from sparda_core.whatif.point import locality_of
from sparda_core.whatif.scenario import Scenario

#: What a person who owns the machine and the load is free to choose. All else is given: it makes a cell.
#: Budget and host_dtype stay out: less of either is always faster, and what it costs is not time.
CHOICES = frozenset({
    "selector", "runtime", "policy", "slots", "slot_factor", "engine", "ctas", "cluster", "in_flight_kib",
    "resident_layers", "lead", "launches",
})  # fmt: skip

Axes = Mapping[str, Sequence[Any] | Mapping[str, Mapping[str, Any]]]


@attrs.frozen(kw_only=True)
class Axis:
    """One axis. `labels` are what rows and tables show, `settings` the knobs that each of them turns."""

    name: str
    labels: tuple[Any, ...]
    settings: tuple[dict[str, Any], ...]

    @property
    def knobs(self) -> frozenset[str]:
        """Knobs that it turns."""
        return frozenset(itertools.chain.from_iterable(self.settings))

    @property
    def chosen(self) -> bool:
        """Whether every knob of it is a person's choice."""
        return self.knobs <= CHOICES

    @property
    def numeric(self) -> bool:
        """Whether all its labels are numbers."""
        return all(isinstance(label, int | float) and not isinstance(label, bool) for label in self.labels)


def _axes(given: Axes) -> tuple[Axis, ...]:
    return tuple(_axis(name, values) for name, values in given.items())


def _axis(name: str, values: Sequence[Any] | Mapping[str, Mapping[str, Any]]) -> Axis:
    if isinstance(values, str) or not values:
        raise ConfigError(f"axis {name}={values!r} has no list of values; give at least one")
    if not isinstance(values, Mapping):
        labels = without_repeats(checked(knob_named(name), value) for value in values)
        return Axis(name=name, labels=labels, settings=tuple({name: label} for label in labels))
    if name in Scenario.knobs():
        raise ConfigError(f"axis {name!r} bundles several knobs but has the name of one; call it something else")
    settings = tuple({key: checked(knob_named(key), item) for key, item in one.items()} for one in values.values())
    return Axis(name=name, labels=tuple(values), settings=settings)


@attrs.frozen(kw_only=True)
class Grid:
    """Points of a study, numbered from 0; the last axis varies fastest.

    base  knobs that no axis turns
    axes  knob -> its values, or a name of your own -> {label: {knob: value}} for knobs that turn together
    most  points allowed
    raises  UnknownNameError, ConfigError: an empty axis, a value of the wrong type, a knob on two axes, too many points
    """

    base: Scenario = attrs.field(factory=Scenario)
    axes: tuple[Axis, ...] = attrs.field(converter=_axes)
    most: int = attrs.field(default=MOST_POINTS, eq=False)

    def __attrs_post_init__(self) -> None:
        turned = list(itertools.chain.from_iterable(axis.knobs for axis in self.axes))
        twice = sorted({name for name in turned if turned.count(name) > 1})
        if twice:
            raise ConfigError(f"{', '.join(twice)}: turned by more than one axis; list all values on one")
        if len(self) > self.most:
            counts = " x ".join(f"{axis.name} {len(axis.labels)}" for axis in self.axes)
            raise ConfigError(
                f"the grid has {len(self):,} points ({counts}), but {self.most:,} are allowed: use fewer values, "
                "split it into several studies, or raise the bound (--most-points)"
            )

        self._check_names()

    def _check_names(self) -> None:
        """A name that nobody knows is a slip, not a point that cannot work."""
        for axis in self.axes:
            for setting in axis.settings if not axis.numeric else ():
                try:
                    _known_names(self.base.turned(**setting))
                except UnknownNameError:
                    raise
                except (SpardaError, OSError):
                    continue  # alone it does not work; other axes may mend that, or their rows say why

    def __len__(self) -> int:
        return math.prod(len(axis.labels) for axis in self.axes)

    def axis(self, name: str) -> Axis:
        """The axis of that name; raises ConfigError that lists those there are."""
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise ConfigError(f"{name!r} is no axis of this grid; it has: {', '.join(a.name for a in self.axes) or 'none'}")

    def places(self, point: int) -> tuple[int, ...]:
        """Position of a point on every axis."""
        found = []
        for axis in reversed(self.axes):
            point, at = divmod(point, len(axis.labels))
            found.append(at)
        return tuple(reversed(found))

    def labels(self, point: int) -> dict[str, Any]:
        """Axis -> label of a point."""
        return {axis.name: axis.labels[at] for axis, at in zip(self.axes, self.places(point), strict=True)}

    def settings(self, point: int) -> dict[str, Any]:
        """Knob -> value of a point, for the knobs that an axis turns."""
        turned = (axis.settings[at] for axis, at in zip(self.axes, self.places(point), strict=True))
        return {knob: value for one in turned for knob, value in one.items()}

    def scenario(self, point: int) -> Scenario:
        """The scenario of a point; raises ConfigError where its knobs contradict each other."""
        return self.base.turned(**self.settings(point))

    def spread_out(self) -> Iterator[int]:
        """Every point once, in an order that meets all values of all axes early."""
        count = len(self)
        stride = next(n for n in itertools.count(max(1, round(count * 0.618))) if math.gcd(n, count) == 1)
        return (at * stride % count for at in range(count))

    def described(self) -> dict[str, Any]:
        """The grid as plain values: what makes two studies the same one."""
        turned = set(itertools.chain.from_iterable(axis.knobs for axis in self.axes))
        base = attrs.asdict(self.base, value_serializer=lambda _, __, value: _plain(value))
        axes = {axis.name: [dict(one) for one in axis.settings] for axis in self.axes}
        kept = {name: value for name, value in base.items() if name not in turned}
        return {"axes": axes, "order": list(axes), "base": kept}


def _known_names(scenario: Scenario) -> None:
    """Raise UnknownNameError for the name of a method, machine, shape or locality that nobody knows."""
    engines = (*GpuProfile.engines, *CpuProfile.engines)
    for what, name, known in (("policy", scenario.policy, POLICIES), ("engine", scenario.engine, engines)):
        if name is not None and name not in known:
            raise UnknownNameError(what=what, name=name, known=known)
    if scenario.locality is not None:
        locality_of(scenario)
    if scenario.recording is not None:
        from sparda_core.whatif.recorded import recording_of

        recording_of(scenario)
    scenario.combination()


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str | tuple | list | dict) else str(value)

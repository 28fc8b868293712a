"""Names to selectors and runtimes, through entry points; the built-in ones come the same way.

A third party adds `[project.entry-points."sparda.selectors"] mine = "package.module:Factory"`.
Nothing is imported before it is asked for by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from sparda_core.errors import ConfigError, SpardaError, UnknownNameError
from sparda_core.runtime import Runtime
from sparda_core.selector import Selector

T = TypeVar("T")


class Registry(Generic[T]):
    """Factories of one kind, by name."""

    def __init__(self, *, what: str, group: str, base: type[T]) -> None:
        self._what, self._group, self._base = what, group, base
        self._added: dict[str, Callable[..., T]] = {}

    def names(self) -> tuple[str, ...]:
        """Known names, sorted."""
        return tuple(sorted({*self._added, *(point.name for point in entry_points(group=self._group))}))

    def register(self, name: str, factory: Callable[..., T]) -> None:
        """Add a factory for this process; raises ConfigError where the name is taken by another."""
        if self._added.get(name, factory) is not factory or self._points(name):
            raise ConfigError(f"{self._what}={name!r} is already registered; choose another name")
        self._added[name] = factory

    def unregister(self, name: str) -> None:
        """Take back what `register` added."""
        self._added.pop(name, None)

    def added(self, name: str) -> Callable[..., T] | None:
        """The factory that `register` added under this name; None for one of an entry point, and for an unknown one."""
        return self._added.get(name)

    def factory(self, name: str) -> Callable[..., T]:
        """The factory called `name`; raises UnknownNameError with the nearest known name."""
        if name in self._added:
            return self._added[name]
        points = self._points(name)
        if not points:
            raise UnknownNameError(what=self._what, name=name, known=self.names())
        if len({point.value for point in points}) > 1:
            raise ConfigError(
                f"{self._what}={name!r} is offered twice: {sorted(point.value for point in points)}; uninstall one"
            )
        try:
            loaded: Callable[..., T] = points[0].load()
        except (Exception, SystemExit) as wrong:  # importing runs a third party's code
            why = str(wrong) if isinstance(wrong, ImportError) else f"{type(wrong).__name__}: {wrong}"
            raise ConfigError(f"{self._what}={name!r} ({points[0].value}) cannot be imported: {why}") from wrong
        if not callable(loaded):
            raise ConfigError(f"{self._what}={name!r} ({points[0].value}) is no class or function: {loaded!r}")
        return loaded

    def make(self, name: str, /, **options: Any) -> T:
        """Build one; raises ConfigError for an option that the factory does not take, or that it fails on."""
        factory = self.factory(name)
        signature = inspect.signature(factory)
        try:
            signature.bind(**options)
        except TypeError as wrong:
            known = ", ".join(signature.parameters) or "none"
            raise ConfigError(f"{self._what}={name!r}: {wrong}; its options: {known}") from wrong
        try:
            made = factory(**options)
        except (SpardaError, OSError):
            raise
        except Exception as wrong:  # whatever a third party's code raises
            raise ConfigError(f"{self._what}={name!r} cannot be made: {type(wrong).__name__}: {wrong}") from wrong
        if not isinstance(made, self._base):
            raise ConfigError(f"{self._what}={name!r} made a {type(made).__name__}, not a {self._base.__name__}")
        return made

    def _points(self, name: str) -> list[EntryPoint]:
        return list(entry_points(group=self._group, name=name))


SELECTORS: Registry[Selector] = Registry(what="selector", group="sparda.selectors", base=Selector)  # type: ignore[type-abstract]
RUNTIMES: Registry[Runtime] = Registry(what="runtime", group="sparda.runtimes", base=Runtime)  # type: ignore[type-abstract]

"""Looking for an example that fails, and for the smallest one, with hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from sparda_core.testing.tools import needed

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

T = TypeVar("T")


def search_settings(examples: int | None, **given: Any) -> Any:
    """Those of the loaded profile, without deadline, database and reports: failures are told by LawBroken."""
    hypothesis = needed("hypothesis")
    now = hypothesis.settings()
    checks = tuple(hypothesis.HealthCheck)
    # Explaining a failure traces every line of hundreds of runs, for a text that nobody is shown.
    given.setdefault("phases", tuple(phase for phase in now.phases if phase != hypothesis.Phase.explain))
    return hypothesis.settings(
        now, max_examples=now.max_examples if examples is None else examples, database=None, deadline=None,
        suppress_health_check=checks, report_multiple_bugs=False, verbosity=hypothesis.Verbosity.quiet,
        **given,
    )  # fmt: skip


def first_failure(
    attempt: Callable[[T, Callable[[], Any]], None], strategy: SearchStrategy[T], *, examples: int | None
) -> BaseException | None:
    """What `attempt` raised on the smallest failing example found; None where none fails.

    attempt  called with an example and a function that rejects it. Its last failing call is the smallest example
    """
    hypothesis = needed("hypothesis")
    errors = hypothesis.errors

    @search_settings(examples)  # type: ignore[untyped-decorator]
    @hypothesis.given(strategy)  # type: ignore[untyped-decorator]
    def looking(example: T) -> None:
        attempt(example, hypothesis.reject)

    try:
        looking()
    except errors.Unsatisfiable:
        return None
    except Exception as wrong:  # noqa: BLE001 - whatever the subject raises breaks the law, if only now and then
        return wrong
    return None

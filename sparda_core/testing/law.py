"""What a law is, and what is said when one is broken or does not apply."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import attrs

from sparda_core.errors import ConfigError, UnknownNameError

TrialT = TypeVar("TrialT")


class LawBroken(AssertionError):  # noqa: N818 - what happened, and not how an error is called
    """A law that does not hold.

    law        its name
    says       what it demands
    found      what was found instead
    example    the smallest example that was found
    reproduce  a call that fails again
    """

    def __init__(self, *, law: str, says: str, found: str, example: str, reproduce: str) -> None:
        self.law, self.says, self.found, self.example, self.reproduce = law, says, found, example, reproduce
        super().__init__(
            f"law {law!r} is broken: {says}\nfound: {found}\nsmallest example: {example}\nreproduce: {reproduce}"
        )


@attrs.frozen
class Law(Generic[TrialT]):
    """One thing that holds for everybody.

    name    how it is asked for
    says    the law as a sentence
    check   raises AssertionError where a trial breaks it
    waived  why it does not apply to the subject of a trial; None where it does
    """

    name: str
    says: str
    check: Callable[[TrialT], None]
    waived: Callable[[TrialT], str | None] = lambda _trial: None


@attrs.frozen(kw_only=True)
class Verdict:
    """What was checked and holds.

    held    names of laws, each of which held in every example that it applied to
    waived  law -> why it applied to none
    trials  examples that were tried
    """

    held: tuple[str, ...]
    waived: Mapping[str, str]
    trials: int


def chosen_laws(
    laws: Sequence[Law[TrialT]], names: Sequence[str] | None, exempt: Mapping[str, str]
) -> tuple[Law[TrialT], ...]:  # fmt: skip
    """The laws asked for, None for all, without the exempt ones; raises UnknownNameError for a name nobody knows."""
    known = {law.name: law for law in laws}
    for name in (*(names or ()), *exempt):
        if name not in known:
            raise UnknownNameError(what="law", name=name, known=known)
    asked = tuple(law for law in laws if (names is None or law.name in names) and law.name not in exempt)
    if not asked:
        raise ConfigError(f"laws={names!r}, exempt={sorted(exempt)}: no law is left; known: {', '.join(known)}")
    return asked


def told(wrong: BaseException) -> str:
    """What an exception says, with its kind where it is no assertion."""
    text = str(wrong).strip() or "an assertion without words"
    return text if isinstance(wrong, AssertionError) else f"{type(wrong).__name__}: {text}"


def require(condition: Any, found: Callable[[], str] | str) -> None:
    """Raise AssertionError with what was found unless `condition` holds."""
    if not condition:
        raise AssertionError(found() if callable(found) else found)

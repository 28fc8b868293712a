"""The agreement machine: random operations on a Stage, drawn and shrunk by hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparda_core.testing.searching import search_settings
from sparda_core.testing.stage import Stage
from sparda_core.testing.tools import needed

#: Rows at most, and tokens of a row at most: the model without a cache keeps and recomputes everything.
MOST_ROWS, MOST_TOKENS = 4, 150
REFUSED = ("unknown row", "no tokens", "no such token", "longer crop", "incomplete order", "budget below the forced")


def run_machine(
    open_stage: Callable[[], Stage], *, budgets: tuple[int, int], examples: int | None, steps: int | None,
    appends: bool = True,
) -> tuple[Stage, BaseException] | None:  # fmt: skip
    """Operations at random on fresh stages; a stage that broke a law, whose story tells how, or None.

    budgets   least and most that set_budget is called with
    examples  stories to try, steps in each; None: as the loaded profile says
    appends   whether tokens are appended by the selector's choice, too
    """
    stateful = needed("hypothesis.stateful")
    failed: list[tuple[Stage, BaseException]] = []

    kinds = tuple(kind for kind in _KINDS if appends or kind != "append")
    machine = _machine(open_stage, kinds, budgets, failed)
    given = {} if steps is None else {"stateful_step_count": steps}
    hypothesis = needed("hypothesis")
    # Stories are made short by shorten.py.
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.reuse, hypothesis.Phase.generate)
    try:
        stateful.run_state_machine_as_test(machine, settings=search_settings(examples, phases=phases, **given))
    except Exception:
        if not failed:
            raise
        return failed[-1]
    return None


#: What a step of a story may be; decoding oftenest, since only that moves blocks.
_KINDS = (
    *["decode"] * 6, *["prefill"] * 2, *["append"] * 2, "fork", "crop", "add", "reorder", "retire", "set_budget",
    "refused",
)  # fmt: skip


def _machine(
    open_stage: Callable[[], Stage], kinds: tuple[str, ...], budgets: tuple[int, int],
    failed: list[tuple[Stage, BaseException]],
) -> Any:  # fmt: skip
    """A RuleBasedStateMachine over `open_stage`; made here, since hypothesis may not be installed.

    Hypothesis leaves out some of a machine's rules in every story. So there is one rule of many operations, and every
    story begins with a row that has a prompt: else most would never decode.
    """
    stateful, st = needed("hypothesis.stateful"), needed("hypothesis").strategies
    prompt = st.one_of(st.sampled_from([0, 1, 8, 16, 17]), st.integers(0, 70), st.integers(40, 90))
    number, pick = st.integers(0, 2**16), st.integers(0, MOST_ROWS - 1)

    class Machine(stateful.RuleBasedStateMachine):  # type: ignore[misc, name-defined]
        """Draws operations; the stage does them and judges."""

        def __init__(self) -> None:
            super().__init__()
            self.stage = open_stage()

        @stateful.initialize(count=prompt, seed=number)  # type: ignore[untyped-decorator]
        def begin(self, count: int, seed: int) -> None:
            self.do("add")
            _more_tokens(self.do, self.stage, "prefill", 0, count, seed)

        @stateful.rule(  # type: ignore[untyped-decorator]
            kind=st.sampled_from(kinds), pick=pick, seed=number, count=prompt, sits=st.sets(pick, max_size=2),
            steps=st.integers(1, 9),
        )  # fmt: skip
        def step(self, kind: str, **drawn: Any) -> None:
            name, values = _operation(self.stage, kind, budgets, **drawn)
            for step in range(drawn["steps"] if name == "decode" else 1):
                if name in ("prefill", "append"):
                    _more_tokens(self.do, self.stage, name, *values)
                elif name == "decode":
                    _decode(self.do, self.stage, drawn["sits"], drawn["seed"] + step)
                else:
                    self.do(name, *values)

        def do(self, operation: str, *values: Any) -> None:
            try:
                getattr(self.stage, operation)(*values)
            except Exception as wrong:
                failed.append((self.stage, wrong))
                raise

        def teardown(self) -> None:
            self.stage.close()

    return Machine


def _operation(
    stage: Stage, kind: str, budgets: tuple[int, int], *, pick: int, seed: int, count: int, **_: Any
) -> tuple[str, tuple[Any, ...]]:  # fmt: skip
    """What is done where `kind` was drawn, with its values: something else where it cannot be."""
    rows, full = list(stage.dense), len(stage.dense) == MOST_ROWS
    if kind == "set_budget":
        return kind, (budgets[0] + seed % (budgets[1] - budgets[0] + 1),)
    if not rows or (kind == "add" and not full):
        return "add", ()
    row = rows[pick % len(rows)]
    possible: dict[str, tuple[Any, ...]] = {
        "decode": (), "prefill": (row, count, seed), "append": (row, count, seed),
        "crop": (row, min(count, stage.dense[row].tokens)),
        "reorder": (sorted(rows, key=lambda one: (one * 7919 + seed) % 101),), "retire": (row,),
        "refused": (REFUSED[seed % len(REFUSED)], row), "fork": (row,),
    }  # fmt: skip
    name = "retire" if kind in ("add", "fork") and full else kind
    return name, possible[name]


def _more_tokens(do: Callable[..., None], stage: Stage, how: str, row: int, count: int, seed: int) -> None:
    """`how` they are appended: "prefill" or "append"."""
    count = min(count, MOST_TOKENS - stage.dense[row].tokens)
    if count > 0:
        tokens = [(seed + 7 * i + i * i) % stage.model.shape.vocab for i in range(count)]
        do(how, row, tokens, 1 + seed % 40, *([seed] if how == "append" else []))


def _decode(do: Callable[..., None], stage: Stage, sits: set[int], seed: int) -> None:
    """One step of every row but those whose places are in `sits`."""
    rows = [row for at, row in enumerate(stage.dense) if at not in sits] or list(stage.dense)
    rows = [row for row in rows if stage.dense[row].tokens < MOST_TOKENS]
    if rows:
        do("decode", {row: (seed + row) % stage.model.shape.vocab for row in rows}, seed)

"""Stage: sessions that are told the same, beside a model without a cache, and what must hold after each operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from sparda_core.errors import CapacityError, SpardaError
from sparda_core.models.model import Model
from sparda_core.runtime import Session, StepResult
from sparda_core.runtimes.session import CpuSession
from sparda_core.shapes import BlockSpec
from sparda_core.testing.dense_row import DenseRow
from sparda_core.testing.runtime_laws import RuntimeBroken, hold
from sparda_core.testing.scripted import Script
from sparda_core.testing.watch import Watch

#: One operation: its name and plain values, so that a story can be printed and played again.
Step = tuple[Any, ...]


class Stage:
    """Sessions by name; the first lies on a CPU, and its selections are what the model without a cache attends to.

    model      of the judge, on the CPU
    tolerance  relative to the largest logit
    script     what `scripted` selects by; a decode sets it
    twins      session -> one that must count the same: a GPU's and a CPU's under one runtime. A change of budget
               empties the slots of a GPU session, so it empties the twin's
    `story` has every operation so far. Every method but `close` is one, raises RuntimeBroken where a law breaks, and is
    known by its name to `play`.
    """

    def __init__(
        self, model: Model, sessions: Mapping[str, Session], *, spec: BlockSpec, tolerance: float,
        script: Script | None = None, twins: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.twins = dict(twins or {})
        self.model, self.sessions, self.spec, self.tolerance = model, dict(sessions), spec, tolerance
        self.script = Script() if script is None else script
        self.dense: dict[int, DenseRow] = {}
        self.story: list[Step] = []
        self.watches = {
            name: Watch(name, session, tolerance=tolerance)
            for name, session in self.sessions.items()
            if isinstance(session, CpuSession)
        }
        self.judge = self.watches[next(iter(self.sessions))]

    def close(self) -> None:
        """Close every session."""
        for session in self.sessions.values():
            session.close()

    def play(self, story: Sequence[Step]) -> None:
        """Do every operation of a story."""
        for name, *values in story:
            getattr(self, name)(*values)

    # Operations -----------------------------------------------------------------------------------

    def add(self) -> None:
        """A new row."""
        self._each(("add",), lambda session: session.add())
        self.dense[self.judge.session.rows[-1]] = DenseRow(self.model.decoder, self.spec.block)
        self.hold()

    def prefill(self, row: int, tokens: Sequence[int], chunk: int) -> None:
        """Tokens appended densely, in chunks."""
        made = self._each(("prefill", row, list(tokens), chunk), lambda one: one.prefill(row, tokens, chunk=chunk))
        if made:
            want = self.dense[row].append(tokens, [None] * self.model.shape.layers)
            for name, logits in made.items():
                self._close(name, row, logits, want)
        self.hold()

    def append(self, row: int, tokens: Sequence[int], chunk: int, seed: int) -> None:
        """Tokens appended in chunks, each of which attends to what the selector chooses for it; `seed` as of decode."""
        self.script.seed = seed
        for watch in self.watches.values():
            watch.forget()
        made = self._each(
            ("append", row, list(tokens), chunk, seed),
            lambda one: one.prefill(row, tokens, mode="selector", chunk=chunk),
        )
        if made:
            self._same_selections((row,), "appended")
            chosen = [self.judge.appended.get(layer) for layer in range(self.model.shape.layers)]
            want = self.dense[row].append(tokens, chosen)
            for name, logits in made.items():
                self._close(name, row, logits, want)
        self.hold()

    def decode(self, tokens: Mapping[int, int], seed: int) -> None:
        """One step of the rows named; `seed` is what `scripted` selects by."""
        self.script.seed = seed
        before = {name: watch.held() for name, watch in self.watches.items()}
        moved = {name: watch.session.transferred for name, watch in self.watches.items()}
        made = self._each(("decode", dict(tokens), seed), lambda session: session.decode(tokens))
        rows = tuple(row for row in self.dense if row in tokens)
        if made:
            self._answers(made, tokens, rows)
        self.hold()
        for name, watch in self.watches.items() if made else ():
            watch.step_was_lawful(made[name].facts, rows, before[name], moved[name])

    def _answers(self, made: Mapping[str, StepResult], tokens: Mapping[int, int], rows: tuple[int, ...]) -> None:
        self._same_selections(rows, "chosen")
        for at, row in enumerate(rows):
            chosen = [self.judge.chosen[layer][at] for layer in range(self.model.shape.layers)]
            want = self.dense[row].append([tokens[row]], chosen)
            for name, result in made.items():
                self._close(name, row, result.logits[list(self.dense).index(row)], want)
        for name, result in made.items():
            self._sat_out(name, result, rows)
        for name, twin in self.twins.items():
            for count in ("selected", "misses", "opened", "wasted"):
                got, want = (getattr(made[one].facts, count).tolist() for one in (name, twin))
                hold("counts", got == want, f"{name}: {count} {got}, {twin} counts {want}")

    def fork(self, row: int) -> None:
        """A copy of a row."""
        self._each(("fork", row), lambda session: session.fork(row))
        self.dense[self.judge.session.rows[-1]] = self.dense[row].fork()
        self.hold()

    def crop(self, row: int, tokens: int) -> None:
        """The first tokens of a row are kept."""
        self._each(("crop", row, tokens), lambda session: session.crop(row, tokens))
        self.dense[row].crop(tokens)
        self.hold()

    def retire(self, row: int) -> None:
        """A row less."""
        self._each(("retire", row), lambda session: session.retire(row))
        del self.dense[row]
        self.hold()

    def reorder(self, rows: Sequence[int]) -> None:
        """Another order of the batch."""
        self._each(("reorder", list(rows)), lambda session: session.reorder(rows))
        self.dense = {row: self.dense[row] for row in rows}
        self.hold()

    def set_budget(self, budget: int) -> None:
        """Another budget from the next step on."""
        made = self._each(("set_budget", budget), lambda session: session.set_budget(budget))
        for twin in self.twins.values() if made else ():
            self._empty_slots(self.sessions[twin])
        self.hold()

    def _empty_slots(self, twin: Session) -> None:
        """As those of a GPU session are behind another budget, which takes its memory anew."""
        assert isinstance(twin, CpuSession), "what counts as a GPU session does is a CPU session"
        for row in twin.rows:
            twin.tiers.refresh(row, twin.length(row), stale_from=0)

    def refused(self, what: str, row: int) -> None:
        """Something that cannot be, of a row that may be there or not."""
        self.story.append(("refused", what, row))
        gone = max((*self.dense, *([row] if row >= 0 else []), 0)) + 100
        calls: dict[str, Callable[[Session], Any]] = {
            "unknown row": lambda one: one.decode({gone: 0}), "no tokens": lambda one: one.prefill(row, []),
            "no such token": lambda one: one.decode({row: self.model.shape.vocab}),
            "longer crop": lambda one: one.crop(row, one.length(row) + 1 if row in one.rows else 1),
            "incomplete order": lambda one: one.reorder([*self.dense, gone]),
            "budget below the forced": lambda one: one.set_budget(self.spec.forced - 1),
        }  # fmt: skip
        for name, session in self.sessions.items():
            try:
                calls[what](session)
            except SpardaError:
                continue
            except Exception as wrong:
                found = f"{name}: {what!r} ended in {type(wrong).__name__}: {wrong}"
                raise RuntimeBroken("refusals", found) from wrong
            raise RuntimeBroken("refusals", f"{name}: {what!r} was accepted")
        self.hold()

    # What must hold -------------------------------------------------------------------------------

    def hold(self) -> None:
        """Everything that must hold between operations."""
        for name, session in self.sessions.items():
            hold("rows", session.rows == tuple(self.dense), f"{name}: rows {session.rows}, want {list(self.dense)}")
            for row, model in self.dense.items():
                length = session.length(row)
                hold("rows", length == model.tokens, f"{name}: row {row} has {length} tokens, want {model.tokens}")
        for watch in self.watches.values():
            watch.tiers_are_lawful(self.dense)

    def _each(self, step: Step, call: Callable[[Session], Any]) -> dict[str, Any]:
        """What every session made of it; nothing where one has no room, which then is as it was."""
        self.story.append(step)
        made: dict[str, Any] = {}
        for name, session in reversed(self.sessions.items()):
            try:
                made[name] = call(session)
            except RuntimeBroken:
                raise
            except CapacityError:
                if made:  # the others have done it, and cannot be compared any more
                    raise
                return {}
            except Exception as wrong:
                found = f"{name}: {step[0]} ended in {type(wrong).__name__}: {wrong}"
                raise RuntimeBroken("no-error", found) from wrong
        return made

    def _same_selections(self, rows: tuple[int, ...], which: str) -> None:
        """`which` of a watch's selections are those of the judge."""
        for name, watch in self.watches.items():
            for layer, want in getattr(self.judge, which).items():
                got = getattr(watch, which).get(layer)
                same = got is not None and torch.equal(got, want)
                if not same:
                    found = f"{name}: layer {layer} of rows {rows} chose {got}, want {want}"
                    raise RuntimeBroken("same-selection", found)

    def _close(self, name: str, row: int, got: torch.Tensor, want: torch.Tensor) -> None:
        error = float((got.double() - want.double()).abs().max() / want.double().abs().max())
        hold("same-answer", error <= self.tolerance, f"{name}: logits of row {row} are {error:.1e} off")

    def _sat_out(self, name: str, result: StepResult, rows: tuple[int, ...]) -> None:
        lengths = []
        for at, row in enumerate(self.dense):
            lengths.append(self.dense[row].tokens if row in rows else 0)
            if row not in rows:
                nan = bool(result.logits[at].isnan().all())
                hold("sits-out", nan, f"{name}: row {row} sat the step out, and its logits are numbers")
        counted = result.facts.lengths.tolist()
        hold("counts", counted == lengths, f"{name}: lengths are counted as {counted}, want {lengths}")

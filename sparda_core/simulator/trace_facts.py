"""Facts of recorded selections, under any policy and any number of slots; and the mean of several steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import attrs
import numpy as np
import numpy.typing as npt

from sparda_core.errors import ConfigError
from sparda_core.facts import StepFacts
from sparda_core.policy import SCORE, SCORED_POOLS
from sparda_core.selection import NO_BLOCK, Selection
from sparda_core.shapes import BlockSpec, check_integer
from sparda_core.simulator.residency import Pools, check_pool

Ints = npt.NDArray[np.int64]

#: Streams that are played together, so that their tables stay small.
_TOGETHER = 512


class Recorded(Protocol):
    """What is read of a recording (sparda_core.selectors.recording loads one from a file).

    selections  int32 [steps, L, B, Hk, budget], ascending, -1 last
    positions   int64 [steps, B], of each row's query; negative where the row sat out
    scored      int16 [steps, 3, L, B, Hk], misses under "score" in pools of SCORED_POOLS selections; None without
    """

    @property
    def spec(self) -> BlockSpec: ...  # noqa: D102 - see the class
    @property
    def selections(self) -> Selection: ...  # noqa: D102
    @property
    def positions(self) -> Ints: ...  # noqa: D102
    @property
    def scored(self) -> npt.NDArray[np.int16] | None: ...  # noqa: D102


def recorded_facts(
    recording: Recorded, *, slots: int | None = None, policy: str = "last-selection", resident_layers: int = 0,
    skip: int = 0,
) -> tuple[StepFacts, ...]:  # fmt: skip
    """Facts of a recording's steps, had its selections met these slots under this policy.

    Slots begin empty but for each row's partly filled last block, as after a prefill: with the policy and
    slots of the session that was recorded these are the session's own facts, but for lateness. Under "score",
    which follows scores, they are what was counted while it was recorded, for pools of SCORED_POOLS selections.
    skip  steps left out at the start, when the slots still fill; they are played all the same
    Raises ConfigError, UnknownNameError (policy).
    """
    spec, shape = recording.spec, recording.selections.shape
    count = spec.budget if slots is None else slots
    if policy != SCORE:
        check_pool(slots=count, policy=policy, spec=spec)
    for name, value in (("skip", skip), ("resident_layers", resident_layers)):
        check_integer(name, value, 0)
    if skip >= shape[0]:
        raise ConfigError(f"skip={skip} must be < steps={shape[0]}: leave at least one step")
    if resident_layers > shape[1]:
        raise ConfigError(f"resident_layers={resident_layers} must be <= layers={shape[1]}")
    opened = opened_blocks(recording)
    misses = np.zeros(shape[:4], np.int64)
    if policy == SCORE:
        misses[:, resident_layers:] = _scored(recording, count)[:, resident_layers:]
    else:
        offloaded = np.zeros((shape[0], misses[0, resident_layers:].size), np.int64)
        for part in _parts(recording, opened, resident_layers):
            offloaded[:, part.which] = part.play(count, policy)
        misses[:, resident_layers:] = offloaded.reshape(misses[:, resident_layers:].shape)
    selected = (recording.selections != NO_BLOCK).sum(-1)
    none = np.zeros(shape[1:4], np.int64)
    return tuple(
        StepFacts(
            new_tokens=1, budget=spec.budget, slots=count if resident_layers < shape[1] else 0,
            active=recording.positions[step] >= 0, lengths=np.maximum(recording.positions[step] + 1, 0),
            selected=selected[step], misses=misses[step],
            opened=none + (opened[step] >= 0)[None, :, None], late=none, wasted=none,
        )
        for step in range(skip, shape[0])
    )  # fmt: skip


def _scored(recording: Recorded, slots: int) -> npt.NDArray[np.int16]:
    """int16 [steps, L, B, Hk]: misses under "score"; raises ConfigError where they were not counted."""
    if recording.scored is None:
        raise ConfigError(
            "policy='score' follows scores, and this recording did not count its misses: record again on a CPU with a "
            "selector that makes scores, or use 'lru'"
        )
    pools = [times * recording.spec.budget for times in SCORED_POOLS]
    if slots not in pools:
        known = ", ".join(map(str, pools))
        raise ConfigError(f"slots={slots}: misses under policy='score' were counted for {known} slots; use these")
    return recording.scored[:, pools.index(slots)]


def opened_blocks(recording: Recorded) -> Ints:
    """int64 [steps, B]: the block that each step's own token opens; -1 for none."""
    at, block = recording.positions, recording.spec.block
    return np.where((at >= 0) & (at % block == 0), at // block, -1)


def mean_facts(facts: Sequence[StepFacts]) -> StepFacts:
    """One step that stands for several: counts are means over the steps, per layer, row and KV head.

    Fractions of a block are carried on to the next (layer, row, KV head), so that each count's sum over
    any run of them is right to one block. Lengths are those of the last step. The step that has the mean
    misses takes no longer than the steps do in the mean, and less where misses come in bursts: a burst waits
    for its transfer, its mean may hide.
    Raises ConfigError for facts that do not belong together.
    """
    last = facts[-1] if facts else None
    if last is None:
        raise ConfigError("facts is empty; give at least one step")
    for step in facts:
        same = step.selected.shape == last.selected.shape and (step.active == last.active).all()
        if not same or (step.new_tokens, step.budget, step.slots) != (last.new_tokens, last.budget, last.slots):
            raise ConfigError("facts of steps with different rows, budgets, slots or new tokens have no mean")
    selected, misses, opened, late, wasted = (
        _spread([getattr(step, name) for step in facts]) for name in ("selected", "misses", "opened", "late", "wasted")
    )
    selected = np.maximum(selected, misses)
    return attrs.evolve(
        last, selected=selected, misses=misses, opened=np.minimum(opened, selected - misses),
        late=np.minimum(late, misses), wasted=wasted,
    )  # fmt: skip


def _spread(counts: list[Ints]) -> Ints:
    mean = np.mean(counts, axis=0)
    edges = np.floor(np.concatenate(([0.0], np.cumsum(mean.ravel()))) + 1e-6)
    return np.diff(edges).astype(np.int64).reshape(mean.shape)


@attrs.frozen(kw_only=True, eq=False)
class _Part:
    """Some streams of a recording.

    which      int64 [P], their numbers among all (layer, row, KV head) that are played
    selection  int32 [steps, P, W]
    opened     int64 [steps, P]
    first      int64 [P], the step in which each stream first selects; tails int64 [P], its partly filled block
               before it, -1 for none
    """

    which: Ints
    selection: Selection
    opened: Ints
    first: Ints
    tails: Ints

    def play(self, slots: int, policy: str) -> Ints:
        """int64 [steps, P]: misses."""
        pools = Pools(streams=self.which.size, slots=slots, policy=policy, blocks=int(self.selection.max()) + 1)
        misses = np.zeros(self.opened.shape, np.int64)
        for step, chosen in enumerate(self.selection):
            begins = np.flatnonzero((self.first == step) & (self.tails >= 0))
            pools.admit(begins, self.tails[begins])
            misses[step] = pools.play(chosen, self.opened[step])
        return misses


def _parts(recording: Recorded, opened: Ints, resident_layers: int) -> Iterator[_Part]:
    """The offloaded layers' streams, a bounded number at a time."""
    steps, layers, rows, heads, width = recording.selections.shape
    sat_out = recording.positions < 0
    first = np.where(sat_out.all(0), steps, (~sat_out).argmax(0))
    before = np.where(first < steps, recording.positions[np.minimum(first, steps - 1), np.arange(rows)], 0)
    tails = np.where(before % recording.spec.block != 0, before // recording.spec.block, -1)
    flat = recording.selections[:, resident_layers:].reshape(steps, -1, width)
    row = np.broadcast_to(np.arange(rows)[:, None], (layers - resident_layers, rows, heads)).ravel()
    for start in range(0, row.size, _TOGETHER):
        which = np.arange(start, min(start + _TOGETHER, row.size))
        yield _Part(
            which=which, selection=flat[:, which], opened=opened[:, row[which]], first=first[row[which]],
            tails=tails[row[which]],
        )  # fmt: skip

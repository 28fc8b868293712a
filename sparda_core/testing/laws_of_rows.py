"""Laws of what a selector keeps for rows: forked, cropped and retired rows choose as if they had always been alone."""

from __future__ import annotations

from sparda_core.testing.law import Law
from sparda_core.testing.trial import Trial, all_equal


def _fork(trial: Trial) -> None:
    """Source and copy go on in different texts, each as a row of its own would."""
    forked, source, copy = (trial.drive() for _ in range(3))
    at, twin = trial.scene.tokens[0], len(trial.scene.tokens) + 5
    for driven in (forked, source, copy):
        driven.prefill(0, at)
    forked.bound.row_forked(0, twin)
    other = len(trial.scene.tokens)
    texts = {driven: driven.world.splice(0, other, at) for driven in (forked, source, copy)}
    for position in range(at, at + trial.spec.stride + 1):
        got = forked.decode([0, texts[forked]], [position] * 2, rows=(0, twin))
        all_equal([got[:, 0]], [source.decode([0], [position])[:, 0]], "the source after a fork")
        want = copy.decode([texts[copy]], [position], rows=(0,))
        all_equal([got[:, 1]], [want[:, 0]], "the copy after a fork")


def _crop(trial: Trial) -> None:
    at = trial.scene.tokens[0]
    kept = 1 + trial.scene.seed % at
    cropped, fresh = trial.drive(), trial.drive()
    cropped.prefill(0, at)
    cropped.decode([0], [at])
    cropped.bound.row_cropped(0, kept)
    fresh.prefill(0, kept)
    texts = [driven.world.splice(0, len(trial.scene.tokens), kept) for driven in (cropped, fresh)]
    for position in range(kept, kept + trial.spec.stride + 1):
        got, want = (
            driven.decode([text], [position], rows=(0,)) for driven, text in zip((cropped, fresh), texts, strict=True)
        )
        all_equal([got[:, 0]], [want[:, 0]], f"a row of {at} tokens, cut to {kept}")


def _retire(trial: Trial) -> None:
    left, alone = trial.drive(), trial.drive()
    at, gone = trial.scene.tokens[0], len(trial.scene.tokens)
    left.prefill(gone, at)
    for driven in (left, alone):
        driven.prefill(0, at)
    left.bound.row_retired(gone)
    for position in range(at, at + trial.scene.steps):
        got, want = (driven.decode([0], [position]) for driven in (left, alone))
        all_equal([got[:, 0]], [want[:, 0]], "after its neighbour was retired")


ROW_LAWS: tuple[Law[Trial], ...] = (
    Law("fork", "a fork goes on as its source did, and then its own way", _fork),
    Law("crop", "a cropped row chooses as one that never was longer", _crop),
    Law("retire", "a retired row is forgotten and its neighbours do not notice", _retire),
)

"""Making a story that breaks a law short: operations are left out and values made small while it still breaks it.

Hypothesis would do it too, by hundreds of stories from their beginnings; a story that is data needs some dozens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sparda_core.testing.stage import Step

#: Stories tried at most.
MOST_TRIES = 200


def shortened(story: Sequence[Step], breaks: Callable[[Sequence[Step]], bool]) -> list[Step]:
    """A story that `breaks`, none of whose single operations can be left out or made smaller, or MOST_TRIES later.

    story  breaks; its last operation is the one that shows it
    """
    tries, best = 0, list(story)
    better = True
    while better and tries < MOST_TRIES:
        better = False
        for candidate in (*_without(best), *_smaller(best)):
            tries += 1
            if breaks(candidate):
                best, better = candidate, True
                break
            if tries >= MOST_TRIES:
                break
    return best


def _without(story: Sequence[Step]) -> Iterator[list[Step]]:
    """Runs of operations left out, long ones first; never the last operation."""
    size = len(story) // 2
    while size:
        for start in range(0, len(story) - 1, size):
            kept = [*story[:start], *story[min(start + size, len(story) - 1) :]]
            if len(kept) < len(story):
                yield kept
        size //= 2


def _smaller(story: Sequence[Step]) -> Iterator[list[Step]]:
    for at, step in enumerate(story):
        for simple in _simpler(step):
            yield [*story[:at], simple, *story[at + 1 :]]


def _simpler(step: Step) -> Iterator[Step]:
    """The same operation with fewer tokens, fewer rows, smaller numbers."""
    if step[0] in ("prefill", "append"):
        yield from _shorter_prompt(*step)
    elif step[0] == "decode":
        yield from _plainer_step(*step[1:])
    elif step[0] == "crop" and step[2]:
        yield ("crop", step[1], step[2] // 2)


def _shorter_prompt(name: str, row: int, tokens: list[int], chunk: int, *seed: int) -> Iterator[Step]:
    for fewer in {len(tokens) // 2, len(tokens) - 1} - {0}:
        yield (name, row, tokens[:fewer], chunk, *seed)
    if chunk < len(tokens):
        yield (name, row, tokens, len(tokens), *seed)
    if any(tokens):
        yield (name, row, [0] * len(tokens), chunk, *seed)
    if any(seed):
        yield (name, row, tokens, chunk, seed[0] // 2)


def _plainer_step(tokens: dict[int, int], seed: int) -> Iterator[Step]:
    for row in tokens if len(tokens) > 1 else ():
        yield ("decode", {one: token for one, token in tokens.items() if one != row}, seed)
    if any(tokens.values()):
        yield ("decode", dict.fromkeys(tokens, 0), seed)
    if seed:
        yield ("decode", tokens, seed // 2)

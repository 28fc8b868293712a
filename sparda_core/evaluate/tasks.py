"""Tasks whose answer lies far back: passkey retrieval and long-range copying.

On prose, a window of the last few hundred tokens predicts nearly as well as the whole context; these
two are where a selector shows whether it finds what matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs
import numpy as np

from sparda_core.errors import ConfigError

_HEAD = "There is a pass key hidden in the following text. Find it and remember it.\n\n"
_NEEDLE = "\n\nThe pass key is {key}. Remember it. {key} is the pass key.\n\n"
_QUESTION = "\n\nWhat is the pass key? The pass key is"


class Encoder(Protocol):
    """The part of a tokenizer that tasks need."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without begin or end tokens."""


@attrs.frozen(kw_only=True)
class Task:
    """A prompt, and the tokens that should follow it.

    name    "passkey", "copy", or one of far_tasks.py
    prompt  token ids to prefill and feed
    answer  token ids that the model should continue with
    note    what the answer is, for people
    asked   tokens at the prompt's end that ask: where a reader begins to need what lies far back
    """

    name: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    note: str = ""
    asked: int = 1

    def __attrs_post_init__(self) -> None:
        if len(self.prompt) < 2 or not self.answer:
            raise ConfigError(
                f"task {self.name!r} has {len(self.prompt)} prompt and {len(self.answer)} answer tokens; "
                "needs >= 2 and >= 1"
            )
        if not 1 <= self.asked < len(self.prompt):
            raise ConfigError(f"task {self.name!r}: asked={self.asked} must be in [1, {len(self.prompt)})")

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and answer."""
        return self.prompt + self.answer


def passkey_task(
    encoder: Encoder, filler: Sequence[int], *, tokens: int, depth: float = 0.5, seed: int = 0, digits: int = 5
) -> Task:
    """Digits stated twice, `depth` of the way into filler text, and asked for at the end.

    filler  token ids to hide them in; as many as needed are taken from its start
    tokens  length of the whole prompt
    depth   0: right after the instruction, 1: right before the question
    seed    draws the digits
    raises  ConfigError where the filler is too short or `tokens` leaves no room for it
    """
    if not 0 <= depth <= 1:
        raise ConfigError(f"depth={depth} must be in [0, 1]")
    if digits < 1:
        raise ConfigError(f"digits={digits} must be >= 1")
    key = "".join(map(str, np.random.default_rng([seed, digits]).integers(0, 10, digits)))
    head, needle, question = (encoder.encode(part.format(key=key)) for part in (_HEAD, _NEEDLE, _QUESTION))
    # Where the space before the digits is a token of its own it belongs to the question: a model that
    # would say "a 12345" knows the key.
    answer, blank = encoder.encode(f" {key}"), encoder.encode(" ")
    if answer[: len(blank)] == blank:
        question, answer = question + blank, answer[len(blank) :]
    room = _room(tokens, len(head) + len(needle) + len(question), len(filler))
    before = round(room * depth)
    prompt = (*head, *filler[:before], *needle, *filler[before:room], *question)
    return Task(name="passkey", prompt=prompt, answer=tuple(answer), note=key, asked=len(question))


def copy_task(
    passage: Sequence[int], filler: Sequence[int], *, tokens: int, before: int = 0, lead_in: int = 8
) -> Task:
    """A passage, filler, and the passage again: its second copy after the first `lead_in` tokens is the answer.

    passage  token ids
    filler   token ids around the first copy; as many as needed are taken from its start
    tokens   length of the whole prompt: filler, passage, filler, lead-in
    before   filler tokens before the first copy; with 0 it may lie in the sink, where every selector sees it
    raises   ConfigError where the passage is not longer than the lead-in, or the filler does not fit
    """
    if not 1 <= lead_in < len(passage):
        raise ConfigError(f"lead_in={lead_in} must be >= 1 and < the passage's {len(passage)} tokens")
    room = _room(tokens, len(passage) + lead_in, len(filler))
    if not 0 <= before < room:
        raise ConfigError(f"before={before} must be >= 0 and < {room}, the filler of the whole prompt")
    prompt = (*filler[:before], *passage, *filler[before:room], *passage[:lead_in])
    return Task(
        name="copy", prompt=prompt, answer=tuple(passage[lead_in:]), note=f"{room - before} tokens apart",
        asked=lead_in,
    )  # fmt: skip


def _room(tokens: int, taken: int, filler: int) -> int:
    room = tokens - taken
    if room < 1:
        raise ConfigError(f"tokens={tokens} must be > {taken}, what the task itself takes")
    if room > filler:
        raise ConfigError(f"filler has {filler} tokens but tokens={tokens} needs {room}; lower tokens or add text")
    return room

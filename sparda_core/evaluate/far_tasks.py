"""Tasks with several things to find: needles under many keys, and chains of variables (after RULER's tasks).

The texts are ours; RULER (arXiv 2404.06654) had the idea of each. Answers are given token by token to a teacher-forced
model, so a small model that cannot do a task whole still shows what it lost.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparda_core.errors import ConfigError
from sparda_core.evaluate.tasks import Encoder, Task, copy_task, passkey_task

_KEYS_HEAD = "Some special magic numbers are hidden in the following text. Remember them.\n\n"
_KEYS_NEEDLE = "\n\nThe special magic number for {word} is {number}.\n\n"
_KEYS_QUESTION = "\n\nWhat is the special magic number for {word}? The special magic number for {word} is"
_WORDS = (
    "amber", "badger", "candle", "dragon", "ember", "falcon", "garden", "harbor", "island", "jungle", "kettle",
    "lantern", "meadow", "needle", "orchard", "pepper", "quartz", "ribbon", "saddle", "timber", "umbrella", "velvet",
    "walnut", "yellow",
)  # fmt: skip
#: Tokens of a passage that is copied.
_PASSAGE = 40
_CHAIN_HEAD = "Variables are assigned in the following text. Remember their values.\n\n"
_CHAIN_QUESTION = "\n\nThe variables that are assigned the value {value}, in order, are:"


def keys_task(
    encoder: Encoder, filler: Sequence[int], *, tokens: int, keys: int = 4, seed: int = 0, digits: int = 5
) -> Task:
    """Numbers under several words, spread over filler text in a drawn order; one of them is asked for.

    filler  token ids to hide them in; as many as needed are taken from its start
    tokens  length of the whole prompt
    keys    needles; 1 to the number of words known
    seed    draws words, numbers, places and the one asked for
    raises  ConfigError where the filler is too short or `tokens` leaves no room for it
    """
    if not 1 <= keys <= len(_WORDS):
        raise ConfigError(f"keys={keys} must be between 1 and {len(_WORDS)}")
    rng = np.random.default_rng([seed, keys, digits])
    words = [str(word) for word in rng.choice(_WORDS, keys, replace=False)]
    numbers = ["".join(map(str, rng.integers(0, 10, digits))) for _ in words]
    asked = int(rng.integers(keys))
    needles = [encoder.encode(_KEYS_NEEDLE.format(word=w, number=n)) for w, n in zip(words, numbers, strict=True)]
    question, answer = _split(encoder, _KEYS_QUESTION.format(word=words[asked]), f" {numbers[asked]}")
    prompt = _scatter(encoder.encode(_KEYS_HEAD), needles, question, filler, tokens=tokens, rng=rng)
    return Task(
        name="keys", prompt=prompt, answer=answer, note=f"{words[asked]}: {numbers[asked]}", asked=len(question)
    )


def variables_task(
    encoder: Encoder, filler: Sequence[int], *, tokens: int, hops: int = 3, chains: int = 2, seed: int = 0
) -> Task:
    """Chains `VAR ABCDE = 12345`, `VAR FGHIJ = VAR ABCDE`, ...; all names that hold one value are asked for.

    hops    assignments from one variable to the next in each chain
    chains  chains, of which one is asked for
    The rest as in keys_task. A chain's assignments come in order.
    """
    if hops < 1 or chains < 1:
        raise ConfigError(f"hops={hops} and chains={chains} must be >= 1")
    rng = np.random.default_rng([seed, hops, chains])
    letters = np.array(list("ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
    names = [["".join(rng.choice(letters, 5)) for _ in range(hops + 1)] for _ in range(chains)]
    values = [str(int(rng.integers(10000, 100000))) for _ in range(chains)]
    order = rng.permutation(np.repeat(np.arange(chains), hops + 1))
    needles, told = [], [0] * chains
    for chain in order:
        at, known = told[chain], names[chain]
        right = f"VAR {known[at - 1]}" if at else values[chain]
        needles.append(encoder.encode(f"\n\nVAR {known[at]} = {right}\n\n"))
        told[chain] += 1
    asked = int(rng.integers(chains))
    question, answer = _split(encoder, _CHAIN_QUESTION.format(value=values[asked]), " " + ", ".join(names[asked]))
    prompt = _scatter(encoder.encode(_CHAIN_HEAD), needles, question, filler, tokens=tokens, rng=rng)
    return Task(name="variables", prompt=prompt, answer=answer, note=" ".join(names[asked]), asked=len(question))


def draw_task(name: str, encoder: Encoder, filler: Sequence[int], *, tokens: int, seed: int) -> Task:
    """The `seed`-th prompt of the task `name`: a passkey or passage at a drawn depth, keys, variables, or a copy.

    filler  enough for any start: the prompt takes its text from a place drawn by the seed
    raises  ConfigError for another name or too little filler
    """
    rng = np.random.default_rng([seed, len(name)])
    spare = len(filler) - tokens - _PASSAGE
    if spare < 1:
        raise ConfigError(
            f"filler has {len(filler)} tokens, must be > tokens={tokens} + {_PASSAGE}: add text, or lower the tokens"
        )
    start = _PASSAGE + int(rng.integers(spare))
    text = filler[start:]
    if name == "passkey":
        return passkey_task(encoder, text, tokens=tokens, depth=float(rng.uniform(0.05, 0.8)), seed=seed)
    if name == "keys":
        return keys_task(encoder, text, tokens=tokens, seed=seed)
    if name == "variables":
        return variables_task(encoder, text, tokens=tokens, seed=seed)
    if name == "copy":
        before = int(rng.integers(64, max(65, tokens // 2)))
        # From before the text, so that it comes nowhere else.
        passage = filler[int(rng.integers(start - _PASSAGE + 1)) :][:_PASSAGE]
        return copy_task(passage, text, tokens=tokens, before=before)
    raise ConfigError(f"task={name!r} is unknown; known: passkey, keys, copy, variables")


def _split(encoder: Encoder, question: str, answer: str) -> tuple[list[int], tuple[int, ...]]:
    """Ids of both; a space that is a token of its own belongs to the question (see passkey_task)."""
    asked, told, blank = encoder.encode(question), encoder.encode(answer), encoder.encode(" ")
    if told[: len(blank)] == blank:
        asked, told = asked + blank, told[len(blank) :]
    return asked, tuple(told)


def _scatter(
    head: list[int], needles: list[list[int]], question: list[int], filler: Sequence[int], *, tokens: int,
    rng: np.random.Generator,
) -> tuple[int, ...]:  # fmt: skip
    """The prompt: head, filler with the needles at drawn places in order, question."""
    room = tokens - len(head) - len(question) - sum(map(len, needles))
    if room < 1 or room > len(filler):
        raise ConfigError(
            f"tokens={tokens} leaves {room} tokens for filler, must be between 1 and the {len(filler)} there are"
        )
    cuts = [0, *sorted(int(at) for at in rng.integers(0, room + 1, len(needles))), room]
    prompt = list(head)
    for at, needle in enumerate(needles):
        prompt += [*filler[cuts[at] : cuts[at + 1]], *needle]
    return (*prompt, *filler[cuts[-2] : room], *question)

"""The laws of runtimes, by name, and the assertion that one of them is broken."""

from __future__ import annotations

from typing import Any

#: Law -> what it says. All of them are looked at after every operation.
RUNTIME_LAWS: dict[str, str] = {
    "no-error": "an operation that is allowed does not fail",
    "refusals": "an operation that cannot be is refused by an error of ours, and every row is as it was",
    "rows": "rows, their order and their lengths are what was asked for",
    "same-answer": "logits are those of a model that keeps all keys and values and attends to the same blocks",
    "same-selection": "a selector chooses the same blocks under every runtime",
    "sits-out": "a row that sits a step out gets NaN for logits",
    "counts": "selected, opened and lengths are counted as they were; hits and misses make up the selections",
    "misses-are-transfers": "as many blocks are moved in a step as are counted as misses",
    "counted-once": "no block is late that was not missed, and none is wasted more often than it was moved",
    "resident-when-attended": "a selected block lies on the device, with its bytes, when attention starts",
    "one-slot-a-block": "no block of a row and head has two slots",
    "slots-hold-copies": "a slot holds the bytes that the host store has for its block",
    "tail-in-a-slot": "the partly filled last block of a row has a slot in every offloaded layer",
    "victims": "no selected block loses its slot, and none is dropped that its policy would keep",
    "nothing-lost": "every key and value ever appended is in its store, as it was appended",
    "pages": "a page belongs to the rows that hold it and is free when none does",
}


class RuntimeBroken(AssertionError):  # noqa: N818 - see LawBroken
    """One of RUNTIME_LAWS does not hold, in the middle of a story."""

    def __init__(self, law: str, found: str) -> None:
        self.law = law
        super().__init__(found)


def hold(law: str, condition: Any, found: str) -> None:
    """Raise RuntimeBroken unless `condition` holds."""
    if not condition:
        raise RuntimeBroken(law, found)

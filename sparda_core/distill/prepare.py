"""From sources to a corpus: documents in a seeded order, split by what they say, encoded until there are enough.

A document is held out when the hash of its content falls below a threshold. So the side it is on does not depend on
its name, its neighbours or the seed, it stays there when others come and go, and two copies are on one side.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from sparda_core.distill.rows import Corpus
from sparda_core.distill.sources import Ids, Item, Source
from sparda_core.errors import ConfigError, RecordingError
from sparda_core.files import parse_json, read_document, whole_file, write_whole

#: Names are kept of this many documents, the first ones.
NAMED = 1000
#: Samples beyond those trained on that are looked at for held-out documents.
SEARCHED = 20_000
#: Most bytes of what is kept beside the tokens: where each of some hundred million documents ends.
_MOST_BYTES = 2 << 30


@attrs.frozen(kw_only=True, eq=False)
class Need:
    """What a run wants of its sources.

    tokens     to train on; reading ends once there are as many, or no document is left
    held_out   share of documents to hold out, by hash
    windows    held-out documents of at least `window` tokens to find; reading goes on for them, within bounds
    encode     text -> ids; decode  ids of the data's own tokenizer -> text, or None where they are the model's
    decoder    what tells one `decode` from another: prepared text is not taken for that of another one
    vocab      ids of the model are below it
    """

    tokens: int
    encode: Callable[[str], list[int]]
    vocab: int
    seed: int = 0
    held_out: float = attrs.field(default=0.05)
    windows: int = attrs.field(default=0)
    window: int = 1
    decode: Callable[[Sequence[int]], str] | None = None
    decoder: str = ""

    @held_out.validator
    def _a_share(self, attribute: attrs.Attribute[float], value: float) -> None:
        if not 0 <= value < 1:
            raise ConfigError(f"held_out={value!r} must be >= 0 and < 1: a share of all documents")

    @windows.validator
    def _a_count(self, attribute: attrs.Attribute[int], value: int) -> None:
        if value < 0:
            raise ConfigError(f"evaluate_windows={value} must be >= 0: windows of held-out text")


@attrs.frozen(kw_only=True, eq=False)
class Prepared:
    """Corpora to train on and held out, and the number of documents of either kind that were read."""

    train: Corpus
    held: Corpus
    documents: int
    held_documents: int


def is_held_out(item: Item, share: float) -> bool:
    """Whether the hash of a document's content is among the lowest `share` of all hashes."""
    content = np.ascontiguousarray(item.ids, "<i8").tobytes() if isinstance(item, Ids) else item.text.encode(
        "utf-8", "surrogatepass")  # fmt: skip
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") < share * 2**64


def reading_order(sources: Sequence[Source], weights: Sequence[float] | None, seed: int) -> Iterator[tuple[int, int]]:
    """Source and sample, every sample once, in a seeded order.

    weights  share of each source among the samples given so far, as long as it has any left; left out, all
             samples are shuffled together
    """
    source = random.Random(seed)  # noqa: S311  repeatable, not secret
    if weights is None:
        whole = [(number, at) for number, one in enumerate(sources) for at in range(len(one))]
        source.shuffle(whole)
        yield from whole
        return
    orders = [list(range(len(one))) for one in sources]
    for order in orders:
        source.shuffle(order)
    given = [0] * len(sources)
    while open_ones := [n for n in range(len(sources)) if given[n] < len(orders[n])]:
        behind = min(open_ones, key=lambda n: ((given[n] + 1) / weights[n], n))
        yield behind, orders[behind][given[behind]]
        given[behind] += 1


class _Writer:
    """Collects documents in a file, as int32, and where each of them ends."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self.ends: list[int] = []
        self.names: list[str] = []

    @property
    def tokens(self) -> int:
        return self.ends[-1] if self.ends else 0

    def add(self, name: str, ids: np.ndarray) -> None:
        if len(ids):
            self._file.write(np.ascontiguousarray(ids, "<i4").tobytes())
            self.ends.append(self.tokens + len(ids))
            if len(self.names) < NAMED:
                self.names.append(name)

    def close(self) -> None:
        self._file.close()


def prepare(
    sources: Sequence[Source],
    need: Need,
    folder: Path,
    *,
    weights: Sequence[float] | None = None,
    on_tokens: Callable[[int], None] | None = None,
) -> Prepared:
    """Read, split and encode into files of `folder`, or find there what an earlier call with equal wishes made.

    on_tokens  called with the number of tokens to train on so far
    raises     ConfigError for ids that the model does not know, and where nothing is left to train on
    """
    probe = need.encode("The 12 quick brown foxes; naïve café.\n")
    decoder = need.decode is not None and hashlib.sha256(need.decoder.encode()).hexdigest()
    key = json.dumps(
        [[one.fingerprint() for one in sources], weights and list(weights), need.tokens, need.seed, need.held_out,
         need.windows, need.window, need.vocab, probe, decoder]
    )  # fmt: skip
    stem = hashlib.sha256(key.encode()).hexdigest()[:20]
    about = folder / f"{stem}.json"
    if not about.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(folder / f"{stem}.train") as train, whole_file(folder / f"{stem}.held") as held:
            facts = _read(sources, need, weights, (_Writer(train), _Writer(held)), on_tokens)
        write_whole(about, json.dumps(facts))
    return _open(folder, stem, need.vocab)


def _open(folder: Path, stem: str, vocab: int) -> Prepared:
    """What was prepared; raises RecordingError where it is damaged, which a disk can do to it, or a hand."""
    about = folder / f"{stem}.json"
    try:
        facts = parse_json(read_document(about, most_bytes=_MOST_BYTES))
        train, held = (_corpus(folder / f"{stem}.{side}", facts[side], vocab) for side in ("train", "held"))
    except (LookupError, OSError, OverflowError, TypeError, ValueError) as wrong:
        raise RecordingError(
            f"prepared texts {str(about)!r} are damaged ({wrong}); remove this file, and they are prepared again"
        ) from wrong
    return Prepared(train=train, held=held, documents=len(train.ends), held_documents=len(held.ends))


def _corpus(path: Path, facts: Any, vocab: int) -> Corpus:
    ends, names = np.array(facts["ends"]), facts["names"]
    if not len(ends):
        return Corpus(ids=np.zeros(0, dtype=np.int32), ends=ends.astype(np.int64), names=())
    if ends.dtype != np.int64 or ends.ndim != 1 or ends[0] < 1 or (np.diff(ends) < 1).any():
        raise ValueError("ends of documents are no rising whole numbers")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("names of documents are no texts")
    ids = np.memmap(path, "<i4", "r")
    if len(ids) != ends[-1] or int(ids.min()) < 0 or int(ids.max()) >= vocab:
        raise ValueError(f"{path.name} holds {len(ids)} tokens, {ends[-1]} in [0, {vocab}) are wanted")
    return Corpus(ids=ids, ends=ends, names=tuple(names))


def _read(
    sources: Sequence[Source],
    need: Need,
    weights: Sequence[float] | None,
    writers: tuple[_Writer, _Writer],
    on_tokens: Callable[[int], None] | None,
) -> dict[str, Any]:
    train, held = writers
    long_ones = beyond = 0
    # Closing writes what is left, and may find no room: the other one is closed all the same.
    with contextlib.closing(train), contextlib.closing(held):
        for number, at in reading_order(sources, weights, need.seed):
            enough = train.tokens >= need.tokens
            if enough and (long_ones >= need.windows or not need.held_out or beyond >= SEARCHED):
                break
            beyond += enough
            for item in sources[number].read(at):
                if is_held_out(item, need.held_out):
                    if long_ones < need.windows:
                        ids = _ids(item, need)
                        held.add(item.name, ids)
                        long_ones += len(ids) >= need.window
                elif not enough:
                    train.add(item.name, _ids(item, need))
            if on_tokens is not None:
                on_tokens(train.tokens)
    if need.tokens and not train.ends:
        raise ConfigError("there is no document to train on: add text, or lower --held-out")
    return {"train": {"ends": train.ends, "names": train.names}, "held": {"ends": held.ends, "names": held.names}}


def _ids(item: Item, need: Need) -> np.ndarray:
    """Ids of the model; raises ConfigError for those it does not have."""
    if isinstance(item, Ids):
        if need.decode is None:
            wrong = item.ids[(item.ids < 0) | (item.ids >= need.vocab)]
            if len(wrong):
                raise ConfigError(
                    f"{item.name}: token {int(wrong[0])} must be in [0, {need.vocab}): these ids are of another "
                    "tokenizer; name it with --source-tokenizer to encode its text anew"
                )
            return item.ids
        return np.array(need.encode(need.decode(item.ids.tolist())), dtype=np.int64)
    return np.array(need.encode(item.text), dtype=np.int64)

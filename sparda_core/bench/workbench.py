"""What all phases of a comparison share: the model, the text, its dense prefill. Made when first asked for."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch

from sparda_core.bench.config import CompareConfig
from sparda_core.bench.contenders import Contender, combine
from sparda_core.bench.paired import Start
from sparda_core.bench.text import Reading
from sparda_core.compose import compose
from sparda_core.evaluate.passages import Passage, answer_of, windows_of
from sparda_core.evaluate.quality import dense_logits
from sparda_core.evaluate.tasks import Encoder, Task, copy_task, passkey_task
from sparda_core.runtimes.session_options import compute_threads
from sparda_core.runtimes.snapshot import RowSnapshot

#: Other text that tasks are made of. The passage to be copied is its end, which lies in prose that cannot be guessed:
#: with the far copy in sight the demo's dense model needs a third of the nats that a window does. It stands an
#: eighth into the prompt, outside the sink that every selector sees.
FILLER_TOKENS, PASSAGE_TOKENS = 8040, 28
#: Where in its prompt the passkey stands (0 start, 1 end).
PASSKEY_DEPTH = 0.3
#: The demo's dense model is sure of both tasks at this length; beyond 4,096 it begins to fail itself.
TASK_TOKENS = 3072
#: Share of the cores that other programs may keep busy before it matters.
BUSY_SHARE = 0.25

Progress = Callable[[str, int, int], None]


@attrs.frozen(kw_only=True, eq=False)
class Workbench:
    """Model, reading and what is computed from them once. Prefill is dense, so that all start from one state.

    busy  cores that other programs keep busy; None: not known
    """

    config: CompareConfig
    decoder: Any
    encoder: Encoder
    reading: Reading
    progress: Progress
    busy: float | None = None
    _dense: list[torch.Tensor] = attrs.field(factory=list, init=False)

    @functools.cached_property
    def tasks(self) -> tuple[Task, ...]:
        """Passkey and copy, each as long as the document, or as the configuration says."""
        longest = self.decoder.shape.context - PASSAGE_TOKENS
        tokens = self.config.task_tokens or min(TASK_TOKENS, len(self.reading.tokens), longest)
        filler = self.reading.filler
        passage, rest = filler[-PASSAGE_TOKENS:], filler[:-PASSAGE_TOKENS]
        return (
            passkey_task(self.encoder, rest, tokens=tokens, depth=PASSKEY_DEPTH, seed=self.config.seed),
            copy_task(passage, rest, tokens=tokens, before=tokens // 8),
        )

    @functools.cached_property
    def document(self) -> RowSnapshot:
        """State after all of the document but its last token."""
        return self._prefill("document", self.reading.tokens[:-1])

    @functools.cached_property
    def windows(self) -> tuple[Passage, ...]:
        """The document's last tokens, as rows to continue."""
        return windows_of(
            self.document, self.reading.tokens, windows=self.config.windows, steps=self.config.steps
        )

    @functools.cached_property
    def passages(self) -> tuple[Passage, ...]:
        """Windows of the document, and the tasks."""
        answers = (answer_of(self._prefill(t.name, t.prompt[:-1]), t.name, t.prompt, t.answer) for t in self.tasks)
        return (*self.windows, *answers)

    def dense(self, contender: Contender) -> list[torch.Tensor]:
        """Logits of the dense model for every passage; run once."""
        if not self._dense:
            combination = combine(
                self.decoder, contender, "resident", self.config, threads=self.reading_threads
            )
            self._dense.extend(dense_logits(combination, self.passages))
        return self._dense

    @property
    def reading_threads(self) -> int:
        """Threads where nothing is timed and no copy lane runs: every core, unless configured.

        Threads that wait for one another on a busy machine take several times as long as one alone.
        """
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if self.config.threads is None and (self.busy or 0) > BUSY_SHARE * cores:
            return compute_threads()
        return self.config.threads or cores

    def timed_from(self, steps: int) -> tuple[Start, tuple[int, ...]]:
        """Where step times are measured: the document's last steps, after `warmup` others; and the tokens fed."""
        feed = self.reading.tokens[-1 - steps - self.config.warmup : -1]
        at = len(self.reading.tokens) - 1 - len(feed)
        return Start(snapshot=self.document, tokens=at, batch=self.config.batch), feed

    def _prefill(self, name: str, tokens: Sequence[int]) -> RowSnapshot:
        plain = compose(
            self.decoder, "window", "resident", spec=self.config.spec, threads=self.reading_threads,
            # All: InfiniGen chooses its dimensions by a whole prompt. They take a group's times the keys.
            keep_queries=len(tokens),
        )  # fmt: skip
        what = f"prefill {name}, tokens"
        with plain.open() as session:
            row = session.add()
            session.prefill(
                row, tokens, mode="dense", progress=lambda done: self.progress(what, done, len(tokens))
            )
            return session.snapshot(row)

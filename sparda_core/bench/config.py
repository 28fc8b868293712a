"""CompareConfig: everything that decides what `compare` does, checked before anything is loaded. Torch-free."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import attrs

from sparda_core.errors import ConfigError
from sparda_core.policy import check_policy
from sparda_core.shapes import BlockSpec

#: Tokens of the demo's document, and with `full`.
DEMO_TOKENS, FULL_TOKENS = 4096, 8192


def _at_least(bound: float, *, optional: bool = False) -> Any:
    def check(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value is None and optional:
            return
        if isinstance(value, bool) or not isinstance(value, int | float) or value < bound:
            raise ConfigError(f"{attribute.name}={value!r} must be a number >= {bound}")

    return check


def _path(value: Any) -> Path | None:
    return None if value is None else Path(value)


@attrs.frozen(kw_only=True)
class CompareConfig:
    """What to compare, on what, and how long to measure.

    model         "smollm2", a GGUF file or a model directory
    forecast      Forecast weights; None: those shipped for smollm2, none for another model
    text          a UTF-8 file; None: a document of Python's own help that no shipped Forecast was trained on
    max_tokens    read no more of the text than its first so many tokens
    full          the demo's document at 8,192 tokens, not 4,096; a file is always read whole
    spec          block spec; its budget is what every selector gets
    slots         device slots per row and KV head of an offloaded layer; None: the budget
    policy        what a full pool keeps
    batch         rows side by side in the measurement of step times
    link_gb_s     emulated link in GB/s; None: chosen so that the transfers of a synchronous run take
                  `link_share` of a resident step
    device        "cpu"
    out           folder for results; made if absent
    seed          of the passkey's digits and of the selector `random`
    windows       rows of the document judged side by side
    steps         steps of each of them: windows * steps tokens are scored
    task_tokens   prompt length of the tasks; None: as many as the document, at most 3,072: the demo's
                  dense model is sure of them there, and begins to fail beyond 4,096
    timed_steps   steps behind a quoted step time
    rounds        interleaved rounds they are measured in
    warmup        steps before them, to fill the pools
    threads       cores of the compute lane; None: all but one
    """

    model: str = "smollm2"
    forecast: Path | None = attrs.field(default=None, converter=_path)
    text: Path | None = attrs.field(default=None, converter=_path)
    max_tokens: int | None = attrs.field(default=None, validator=_at_least(1, optional=True))
    full: bool = False
    spec: BlockSpec = attrs.field(factory=BlockSpec)
    slots: int | None = attrs.field(default=None, validator=_at_least(1, optional=True))
    policy: str = attrs.field(default="last-selection")
    batch: int = attrs.field(default=1, validator=_at_least(1))
    link_gb_s: float | None = attrs.field(default=None, validator=_at_least(1e-6, optional=True))
    link_share: float = 0.6
    device: str = "cpu"
    out: Path = attrs.field(default=Path("sparda-results"), converter=Path)
    seed: int = attrs.field(default=0, validator=_at_least(0))
    windows: int = attrs.field(default=8, validator=_at_least(1))
    steps: int = attrs.field(default=18, validator=_at_least(1))
    task_tokens: int | None = attrs.field(default=None, validator=_at_least(128, optional=True))
    timed_steps: int = attrs.field(default=64, validator=_at_least(1))
    rounds: int = attrs.field(default=4, validator=_at_least(1))
    warmup: int = attrs.field(default=4, validator=_at_least(1))
    threads: int | None = attrs.field(default=None, validator=_at_least(1, optional=True))

    @policy.validator
    def _known(self, attribute: attrs.Attribute[str], value: str) -> None:
        check_policy(value)

    def __attrs_post_init__(self) -> None:
        if self.device != "cpu":
            raise ConfigError(f"device={self.device!r} is not supported by compare; supported: cpu")
        if self.slots is not None and self.slots < self.spec.budget:
            raise ConfigError(f"slots={self.slots} must be >= budget={self.spec.budget}: raise slots or lower budget")
        if self.timed_steps % self.rounds:
            raise ConfigError(f"timed_steps={self.timed_steps} must be a multiple of rounds={self.rounds}")
        if not 0 < self.link_share <= 1:
            raise ConfigError(f"link_share={self.link_share} must be in (0, 1]")

    @property
    def slot_count(self) -> int:
        """Slots of an offloaded layer, the same for every selector."""
        return self.spec.budget if self.slots is None else self.slots

    @property
    def token_limit(self) -> int | None:
        """Most tokens read of the text; None: all of it."""
        whole = None if self.text is not None else (FULL_TOKENS if self.full else DEMO_TOKENS)
        return self.max_tokens if whole is None or (self.max_tokens or whole) < whole else whole

    @property
    def wanted_tokens(self) -> int:
        """Fewest tokens of text that the measurements need."""
        return max(self.windows * self.steps, self.timed_steps + self.warmup) + 2

    def to_plain(self) -> dict[str, Any]:
        """All settings as JSON can hold them."""
        return attrs.asdict(self, value_serializer=lambda _, __, v: str(v) if isinstance(v, Path) else v)

    def key(self, *parts: str) -> str:
        """A name for results that depend on these settings (not on where they are kept) and on `parts`."""
        settings = {name: value for name, value in self.to_plain().items() if name != "out"}
        return hashlib.sha256(json.dumps([settings, *parts], sort_keys=True).encode()).hexdigest()[:16]

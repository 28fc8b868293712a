"""Search: every combination worth trying on a machine, each at the batch that serves the target best."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import attrs

from sparda_core.errors import CapacityError, ConfigError, SpardaError
from sparda_core.whatif.point import room
from sparda_core.whatif.scenario import Scenario

#: Where misses come from unless a scenario says so.
LOCALITY = "infllm-v2"
#: Rows of one batch at most; a device holds fewer.
MOST_ROWS = 4096
#: Called with (what, done, total).
Report = Callable[[str, int, int], None]


@attrs.frozen(kw_only=True)
class Choices:
    """What is tried. Bytes in flight, cluster, host dtype and everything else stay as in the scenario.

    slot_factors  slots in multiples of the budget; without a locality or recording only 1 is tried, since every
                  newcomer is a miss then, however many slots there are
    engines       None: every engine of the profile
    ctas          thread blocks of the engine uva
    At one selection's worth of slots both policies keep the same blocks; with more, last-selection keeps no more
    than with one: so it is tried at 1 and lru above.
    """

    selectors: tuple[str, ...] = ("forecast", "query", "infinigen")
    runtimes: tuple[str, ...] = ("resident", "offload-sync", "offload-prefetch")
    slot_factors: tuple[float, ...] = (1.0, 2.0, 4.0)
    engines: tuple[str, ...] | None = None
    ctas: tuple[int, ...] = (1, 2, 4, 8, 16, 32)


@attrs.frozen(kw_only=True)
class Option:
    """One combination that fits: where it stands and what it takes. Times are seconds per step."""

    scenario: Scenario
    step_s: float
    tokens_per_s: float
    exposed_s: float
    bound: str
    device_bytes: float
    host_bytes: float

    @property
    def pair(self) -> str:
        """Selector and runtime, as a reader would say it."""
        return f"{self.scenario.selector} x {self.scenario.runtime}"


@attrs.frozen(kw_only=True)
class Found:
    """What a search found.

    options  everything that fits, each at its best batch of those tried
    short    by combination that does not fit with one row: what is short
    most     most rows that fit, by combination
    refused  by what cannot be tried: the reason
    tried    predictions made
    """

    options: tuple[Option, ...]
    short: dict[str, CapacityError]
    most: dict[str, int]
    refused: dict[str, str]
    tried: int


def search(base: Scenario, choices: Choices, *, batch: int | None, least: float | None, report: Report) -> Found:
    """Try all choices.

    batch  rows wanted; a combination for which they are too many takes as many as serve best. None: no wish
    least  tokens per second wanted: the smallest batch that gives them is taken, and `batch` is None
    """
    looked = _Search(base, choices, batch, least)
    starts, engines = list(looked.starts()), looked.engines()
    for at, start in enumerate(starts):
        looked.at_best_batch(start)
        report("batches", at + 1, len(starts))
    best = list(looked.options)
    for at, option in enumerate(best):
        if option.scenario.runtime != "resident":
            for engine, ctas in engines:
                looked.try_at(option.scenario.turned(engine=engine, ctas=ctas))
        report("engines", at + 1, len(best))
    return Found(
        options=tuple(looked.options), short=looked.short, most=looked.most, refused=looked.refused, tried=looked.tried
    )


class _Search:
    def __init__(self, base: Scenario, choices: Choices, batch: int | None, least: float | None) -> None:
        self._base, self._choices, self._batch, self._least = base, choices, batch, least
        self.options: list[Option] = []
        self.short: dict[str, CapacityError] = {}
        self.most: dict[str, int] = {}
        self.refused: dict[str, str] = {}
        self.tried = 0

    def starts(self) -> Iterator[Scenario]:
        """Each pair with each number of slots, at the first engine."""
        back = self._base.locality or self._base.recording  # whether blocks come back at all
        factors = sorted(set(self._choices.slot_factors)) if back else [1.0]
        first = {"engine": self.engines()[0][0], "ctas": self.engines()[0][1]}
        for runtime, selector in itertools.product(self._choices.runtimes, self._choices.selectors):
            start = self._base.turned(selector=selector, runtime=runtime, slot_factor=1.0, **first)
            try:
                offloads = start.combination().runtime.offloads
            except ConfigError as wrong:
                self.refused[f"{selector} x {runtime}"] = str(wrong)
                continue
            for factor in factors if offloads else [1.0]:
                yield start.turned(slot_factor=factor, policy="last-selection" if factor == 1 else "lru")

    def engines(self) -> list[tuple[str, int]]:
        """Engines with thread blocks, the usual one first."""
        machine, usual = self._base.machine(), Scenario().ctas
        names = self._choices.engines or machine.engines
        whole = {ctas for ctas in self._choices.ctas if ctas % self._base.cluster == 0}
        if not whole:
            raise ConfigError(f"none of ctas={self._choices.ctas} is a multiple of cluster={self._base.cluster}")
        counts = sorted(whole, key=lambda ctas: (ctas != usual, ctas))
        return [(name, ctas) for name in names for ctas in (counts if name == "uva" else [usual])]

    def at_best_batch(self, start: Scenario) -> None:
        """Add the start at the batch that serves the target best, if it fits with any."""
        name, most = _name(start), most_rows(start)
        self.most[name] = max(most, self.most.get(name, 0))
        if most == 0:
            problem = room(start.turned(batch=1))[1]
            assert problem is not None
            self.short[name] = problem
        elif self._batch is not None and self._batch <= most:
            self.try_at(start.turned(batch=self._batch))
        else:
            self._scan(start, most)

    def _scan(self, start: Scenario, most: int) -> None:
        """Doubling batches up to `most`: the fastest; or with a target, the smallest that reaches it."""
        batches = [2**k for k in range(most.bit_length()) if 2**k < most] + [most]
        tried = [option for rows in batches if (option := self._predict(start.turned(batch=rows))) is not None]
        if not tried:
            return
        enough = [option for option in tried if self._least is not None and option.tokens_per_s >= self._least]
        if enough:
            self.options.append(self._smallest(start, tried, enough[0]))
        else:
            self.options.append(max(tried, key=lambda option: option.tokens_per_s))

    def _smallest(self, start: Scenario, tried: Sequence[Option], enough: Option) -> Option:
        """The smallest batch that reaches the target, between a doubling that does not and one that does."""
        below = [option.scenario.batch for option in tried if option.scenario.batch < enough.scenario.batch]
        low = max(below, default=0)
        while enough.scenario.batch - low > 1:
            middle = (low + enough.scenario.batch) // 2
            option = self._predict(start.turned(batch=middle))
            if option is not None and self._least is not None and option.tokens_per_s >= self._least:
                enough = option
            else:
                low = middle
        return enough

    def try_at(self, scenario: Scenario) -> None:
        """Add one point, unless it is there or cannot be predicted."""
        if any(option.scenario == scenario for option in self.options):
            return
        option = self._predict(scenario)
        if option is not None:
            self.options.append(option)

    def _predict(self, scenario: Scenario) -> Option | None:
        self.tried += 1
        try:
            return option_of(scenario)
        except SpardaError as wrong:
            self.refused[f"{_name(scenario)}, {scenario.engine} with {scenario.ctas} CTAs"] = str(wrong)
        return None


def option_of(scenario: Scenario) -> Option:
    """Predict one point; raises CapacityError where it does not fit."""
    got = scenario.predict()
    return Option(
        scenario=scenario, step_s=got.step_s, tokens_per_s=got.tokens_per_s, exposed_s=got.exposed_s,
        bound=got.bound, device_bytes=got.need.device, host_bytes=got.need.host,
    )  # fmt: skip


def most_rows(scenario: Scenario) -> int:
    """Most rows whose memory fits, at most MOST_ROWS; 0 where not one does."""
    fits = 0
    step = 1
    while fits + step <= MOST_ROWS and room(scenario.turned(batch=fits + step))[1] is None:
        fits, step = fits + step, 2 * step
    while step > 1:
        step //= 2
        if fits + step <= MOST_ROWS and room(scenario.turned(batch=fits + step))[1] is None:
            fits += step
    return fits


def _name(scenario: Scenario) -> str:
    return f"{scenario.selector} x {scenario.runtime}"

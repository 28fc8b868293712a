"""Contenders: the selectors that are compared, each with the spec and the options it is compared under."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

from sparda_core.bench.config import CompareConfig
from sparda_core.compose import Combination, compose, make_selector
from sparda_core.errors import ConfigError
from sparda_core.registry import RUNTIMES
from sparda_core.shapes import BlockSpec, ModelShape

RUNTIME_NAMES = ("resident", "offload-sync", "offload-prefetch")
#: Selectors whose choices every other one is held against.
REFERENCES = ("query", "oracle")


@attrs.frozen(kw_only=True)
class Contender:
    """One selector as it is compared.

    label     unique among contenders
    selector  registry name
    note      what it stands for
    timed     False for what is judged by quality alone, such as a measuring stick
    replays   its selections are played back from those of the contender `query`
    """

    label: str
    selector: str
    note: str
    spec: BlockSpec
    options: dict[str, Any] = attrs.field(factory=dict)
    timed: bool = True
    replays: bool = False


#: Share of the free blocks that go by the query in NOSA-8B: 23 of 78. The query's own block is one of `select_blocks`.
BY_QUERY = 23 / 78


def contenders(config: CompareConfig, shape: ModelShape, *, blocks: int, has_forecast: bool) -> list[Contender]:
    """All contenders in the order they are run; `query` before the one that replays it.

    blocks        blocks of the longest row: what dense attends to
    has_forecast  a model without Forecast weights is compared without the selectors that need them
    The two NOSA methods stand among them where the model has a token bias.
    """
    spec = config.spec
    wide = attrs.evolve(spec, local=max(spec.local, spec.budget - spec.sink - 1))
    listed = [
        Contender(
            label="dense", selector="dense", note="attends to everything",
            spec=spec.with_budget(max(blocks, spec.budget)),
        ),
        Contender(label="query", selector="query", note="the layer's own query (InfLLM-V2): known too late", spec=spec),
        Contender(label="forecast", selector="forecast", note="SparDA: a trained Forecast, one layer early", spec=spec),
        Contender(
            label="infinigen", selector="infinigen", options={"channels": max(1, shape.head_dim // 2)},
            note="proxy query on half the channels of every token key, one layer early", spec=spec,
        ),
        Contender(
            label="infinigen-entries", selector="infinigen", options={"scoring": "entry-softmax"},
            note="the same on the entries that query and forecast see; quality only", spec=spec, timed=False,
        ),
        Contender(label="window", selector="window", note="a sliding window of equal budget", spec=wide),
        Contender(
            label="random", selector="random", options={"seed": config.seed}, note="forced blocks and a draw", spec=spec
        ),
        Contender(
            label="oracle", selector="oracle", note="true attention mass; cost not counted", spec=spec, timed=False
        ),
        Contender(
            label="replay", selector="replay", note="the selections of `query`, known as early as wanted", spec=spec,
            replays=True,
        ),
    ]  # fmt: skip
    if shape.token_bias:
        options = {"select_blocks": 1 + round(spec.free * BY_QUERY)}
        notes = {"nosa": "the query's best blocks", "nosa-forecast": "the Forecast's best blocks, one layer early"}
        listed += [
            Contender(label=name, selector=name, note=f"{note}; the rest by the token bias", spec=spec, options=options)
            for name, note in notes.items()
        ]
    return [c for c in listed if has_forecast or "forecast" not in c.selector]


def combine(
    model: Any, contender: Contender, runtime: str, config: CompareConfig, *, recording: Path | None = None,
    link_bytes_per_s: float | None = None, threads: int | None = None,
) -> Combination:  # fmt: skip
    """Contender and runtime put together under the memory that all of them get.

    model    a loaded model, or a shape
    threads  of the compute lane; None: as configured
    raises   CombinationError or ConfigError where they do not fit together
    """
    options = dict(contender.options)
    if contender.replays:
        if recording is None:
            raise ConfigError(f"{contender.label!r} needs the recording of `query`: run that first")
        options["path"] = recording
    selector = make_selector(model, contender.selector, **options)
    offloads = RUNTIMES.factory(runtime).offloads  # type: ignore[attr-defined]
    pool: dict[str, Any] = {"slots": config.slot_count, "policy": config.policy} if offloads else {}
    if offloads and selector.lead is None:
        # Known as early as a runtime wants: prefetching wants one layer, so waiting keeps one on the device too.
        pool["resident_layers"] = 1
    return compose(
        model, selector, runtime, spec=contender.spec, runtime_options=pool, threads=threads or config.threads,
        link_bytes_per_s=link_bytes_per_s if offloads else None,
    )  # fmt: skip


def refusals(shape: ModelShape, every: list[Contender], config: CompareConfig, recording: Path) -> dict[str, str]:
    """Pairs that do not fit together, "label + runtime", and why."""
    refused = {}
    for contender in every:
        for runtime in RUNTIME_NAMES:
            try:
                combine(shape, contender, runtime, config, recording=recording)
            except ConfigError as reason:
                refused[f"{contender.label} + {runtime}"] = str(reason)
    return refused

"""The timing phases of a comparison: the emulated link, step times, timelines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from sparda_core.bench.contenders import RUNTIME_NAMES, Contender, combine
from sparda_core.bench.paired import Samples, hiding, measure_in_turns
from sparda_core.bench.predicted import figures, predict_measured
from sparda_core.bench.timelines import compute_slowdown, exposed_s, join_steps, timeline_to_plain
from sparda_core.bench.workbench import Workbench
from sparda_core.compose import Combination
from sparda_core.errors import ConfigError, ProfileError
from sparda_core.evaluate.transfers import Transfers, summarise
from sparda_core.simulator.profile import Profile

#: Steps behind the choice of the link, and behind a timeline.
PROBE_STEPS, TIMELINE_STEPS = 12, 8


def choose_link(bench: Workbench, contender: Contender) -> dict[str, Any]:
    """The emulated link: as configured, or such that a synchronous step's transfers take a share of a resident step."""
    given = bench.config.link_gb_s
    if given is not None:
        return {"bytes_per_s": given * 1e9, "chosen": "configured", "moved_bytes_per_step": None, "resident_s": None}
    pair = {name: combine(bench.decoder, contender, name, bench.config) for name in ("resident", "offload-sync")}
    start, feed = bench.timed_from(PROBE_STEPS)
    samples = measure_in_turns(
        pair, start, feed, warmup=bench.config.warmup, rounds=2,
        progress=lambda done, total: bench.progress("choosing the link, steps", done, total),
    )  # fmt: skip
    moved = transfers(pair["offload-sync"], samples["offload-sync"]).moved_bytes_per_step
    if not moved:
        raise ConfigError(
            f"nothing was moved in {PROBE_STEPS} steps, so no link speed can be derived; "
            "lower slots or budget, read a longer text, or give link_gb_s"
        )
    resident_s = samples["resident"].median_s
    return {
        "bytes_per_s": two_digits(moved / (bench.config.link_share * resident_s)), "chosen": "measured",
        "moved_bytes_per_step": moved, "resident_s": resident_s,
    }  # fmt: skip


def two_digits(value: float) -> float:
    """Rounded to two significant digits: a speed that was chosen should look chosen."""
    return round(value, 1 - math.floor(math.log10(value)))


def transfers(combination: Combination, samples: Samples) -> Transfers:
    """Hits and misses of measured steps."""
    shape, spec = combination.shape, combination.spec
    return summarise(
        samples.facts, spec=spec, block_bytes=2 * spec.block * shape.head_dim * _value_bytes(combination),
        resident_layers=combination.plan().resident_layers,
    )  # fmt: skip


def _value_bytes(combination: Combination) -> int:
    return int(combination.model.dtype.itemsize)


def time_contender(
    bench: Workbench, contender: Contender, runtimes: Sequence[str], *, steps: int, rounds: int,
    link_bytes_per_s: float | None, profile: Profile | None, options: Mapping[str, Any],
) -> list[dict[str, Any]]:  # fmt: skip
    """Measured (and, with a profile of this machine, predicted) step times under each runtime, in turns.

    returns  one flat row a runtime; the row of offload-prefetch carries the hidden share
    """
    made = {
        name: combine(bench.decoder, contender, name, bench.config, link_bytes_per_s=link_bytes_per_s, **options)
        for name in runtimes
    }
    start, feed = bench.timed_from(steps)
    link = "unlimited" if link_bytes_per_s is None else "emulated"
    samples = measure_in_turns(
        made, start, feed, warmup=bench.config.warmup, rounds=rounds,
        progress=lambda done, total: bench.progress(f"timing {contender.label}, {link} link, steps", done, total),
    )  # fmt: skip
    rows = [
        timing_row(contender, made[name], samples[name], link_bytes_per_s=link_bytes_per_s, profile=profile)
        | {"batch": bench.config.batch}
        for name in runtimes
    ]
    if all(name in samples for name in RUNTIME_NAMES):
        found = hiding(*(samples[name] for name in RUNTIME_NAMES))
        rows[-1] |= {"hidden_share": found.share, "hidden_share_rounds": found.rounds}
    return rows


def timing_row(
    contender: Contender, combination: Combination, samples: Samples, *, link_bytes_per_s: float | None,
    profile: Profile | None,
) -> dict[str, Any]:  # fmt: skip
    """Figures of one measured combination. Seconds, bytes; shares are None where nothing is offloaded.

    Rows of one label with the same `paired_with` were measured in turns.
    """
    runtime = combination.runtime
    link = "unlimited" if link_bytes_per_s is None else "emulated"
    moved = transfers(combination, samples)
    low, high = samples.spread_s
    row: dict[str, Any] = {
        "label": contender.label, "selector": contender.selector, "runtime": runtime.name,
        "link": link if runtime.offloads else None, "link_bytes_per_s": link_bytes_per_s if runtime.offloads else None,
        "paired_with": link, "steps": len(samples.step_s), "step_s": samples.median_s, "step_low_s": low,
        "step_high_s": high, "steps_s": samples.step_s,
        "hit_rate": moved.hit_rate_all, "hit_rate_free": moved.hit_rate_free,
        "moved_bytes_per_step": moved.moved_bytes_per_step, **attrs.asdict(moved),
    }  # fmt: skip
    if profile is not None:
        row |= _predicted(combination, samples, profile, link_bytes_per_s)
    return row


def _predicted(
    combination: Combination, samples: Samples, profile: Profile, link_bytes_per_s: float | None
) -> dict[str, Any]:
    try:
        prediction = predict_measured(combination, samples.facts, profile, link_bytes_per_s=link_bytes_per_s)
    except ProfileError as wrong:  # an operation that calibration never met: the row says so in place of a time
        return {"predicted_step_s": None, "predicted_error": None, "predicted_problem": str(wrong)}
    told = figures(prediction)
    error = None if told.step_s is None else told.step_s / samples.median_s - 1
    return {f"predicted_{name}": value for name, value in attrs.asdict(told).items()} | {"predicted_error": error}


def record_timelines(
    bench: Workbench, contender: Contender, *, link_bytes_per_s: float, profile: Profile | None
) -> dict[str, Any]:
    """Spans of a synchronous and a prefetching run on the same tokens, and what they say of exposed and hidden time.

    The step times of these runs are not quoted: recording costs a little.
    """
    made = {
        name: combine(bench.decoder, contender, name, bench.config, link_bytes_per_s=link_bytes_per_s)
        for name in ("offload-sync", "offload-prefetch")
    }
    start, feed = bench.timed_from(TIMELINE_STEPS)
    samples = measure_in_turns(
        made, start, feed, warmup=bench.config.warmup, rounds=2, timeline=True,
        progress=lambda done, total: bench.progress("timeline, steps", done, total),
    )  # fmt: skip
    joined = {name: join_steps(f"measured {name}", samples[name].timelines) for name in made}
    result: dict[str, Any] = {
        "label": contender.label,
        "compute_slowdown": compute_slowdown(joined["offload-prefetch"], joined["offload-sync"]),
        "runs": {},
    }
    for name, combination in made.items():
        run: dict[str, Any] = {
            "exposed_s": exposed_s(joined[name], combination.plan()),
            "recorded_step_s": samples[name].median_s,
            "measured": timeline_to_plain(joined[name]),
        }
        if profile is not None:
            told = predict_measured(combination, samples[name].facts, profile, link_bytes_per_s=link_bytes_per_s)
            run["predicted_exposed_s"] = told.exposed_s
            run["predicted"] = timeline_to_plain(attrs.evolve(told.timeline, label=f"predicted {name}"))
        result["runs"][name] = run
    return result

"""`sparda capacity`: what decoding on a GPU would take of device and host memory, and what fits. Loads no torch."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import attrs

from sparda_core.cli.gpu_options import DTYPES, GIB, add_gpu_memory, gpu_options
from sparda_core.cli.options import (
    POSITIVE,
    add_combination,
    add_json,
    add_spec,
    runtime_options,
    selector_options,
    spec_of,
)
from sparda_core.cli.parser import number
from sparda_core.cli.screen import show_json
from sparda_core.errors import CapacityError
from sparda_core.runtimes.gpu.capacity import CapacityPlan
from sparda_core.runtimes.gpu.fits import (
    MOST_ROWS,
    MOST_TOKENS,
    Room,
    Way,
    most_rows,
    most_slots,
    most_tokens,
    ways_out,
)
from sparda_core.runtimes.gpu.options import GpuOptions
from sparda_core.shapes import SHAPES, BlockSpec, named_shape

if TYPE_CHECKING:
    from sparda_core.compose import Combination

_MEMORY = number(float, least=1e-3, most=1 << 20)


@attrs.frozen(kw_only=True)
class Verdict:
    """What was asked, what it takes, and what of it a machine has room for.

    fits      None where no memory was named
    problem   the sentence that a session would refuse with; None where there is none
    rows, tokens, slots   most that fit, all else being equal; None where nothing bounds them
    """

    pair: Combination
    plan: CapacityPlan
    room: Room
    fits: bool | None
    problem: str | None
    rows: int | None
    tokens: int | None
    slots: int | None
    ways: list[Way]
    copy: dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sparda capacity`."""
    parser.add_argument(
        "shape", nargs="?", default="minicpm4.1-8b", metavar="SHAPE", help=f"model sizes: {', '.join(SHAPES)}"
    )
    load = parser.add_argument_group("load")
    load.add_argument("--batch", type=POSITIVE, default=1, metavar="ROWS", help="rows that it holds at once")
    load.add_argument(
        "--context", type=POSITIVE, metavar="TOKENS", help="most tokens of a row (default: the shape's own context)"
    )
    load.add_argument("--dtype", choices=tuple(DTYPES), default="bfloat16", help="of weights, keys and values")
    memory = parser.add_argument_group("memory")
    memory.add_argument(
        "--profile", metavar="NAME|FILE", help="a GPU whose device and host memory it must fit (`sparda profile list`)"
    )
    memory.add_argument(
        "--host-memory-gib", type=_MEMORY, metavar="GIB", help="host memory that may be pinned (default: the profile's)"
    )
    add_gpu_memory(memory)
    add_combination(parser, selector="forecast", runtime="offload-prefetch")
    add_spec(parser, BlockSpec(sink=1, local=32, budget=96))
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Plan, judge, print. What does not fit is an answer, not bad input."""
    told = judge(args)
    if args.json:
        show_json(document(told))
    else:
        from sparda_core.cli.capacity_tables import show_verdict

        show_verdict(told)
    return 0


def judge(args: argparse.Namespace) -> Verdict:
    """The plan of parsed options, held against the memory that they name."""
    pair, room = _pair(args, args.runtime), _room(args)
    options = {"places": args.batch, "tokens": args.context, **gpu_options(args)}
    width = DTYPES[args.dtype]
    plan = pair.capacity(value_bytes=width, check=False, **options)
    known = room.device_bytes is not None or room.host_bytes is not None
    holds = room.holds(plan)
    offloading = "offload-sync" if pair.selector.lead == 0 else "offload-prefetch"

    def offloaded() -> CapacityPlan:
        return _pair(args, offloading).capacity(value_bytes=width, check=False, **options)

    rows, tokens = most_rows(plan, room), most_tokens(plan, room)
    return Verdict(
        pair=pair, plan=plan, room=room, fits=holds if known or not holds else None, problem=_problem(plan, room),
        rows=rows if rows < MOST_ROWS else None, tokens=tokens if tokens < MOST_TOKENS else None,
        slots=most_slots(plan, room) if plan.offloaded_layers and room.device_bytes is not None else None,
        ways=ways_out(plan, room, offloaded=None if plan.offloaded_layers else (offloading, offloaded)),
        copy=_copy(args, plan.places),
    )  # fmt: skip


def _pair(args: argparse.Namespace, runtime: str) -> Combination:
    from sparda_core.compose import compose

    return compose(
        named_shape(args.shape), args.selector, runtime, spec=spec_of(args),
        selector_options=selector_options(args.selector_option), runtime_options=runtime_options(args),
    )  # fmt: skip


def _room(args: argparse.Namespace) -> Room:
    device, host = (
        None if value is None else int(value * GIB) for value in (args.gpu_memory_gib, args.host_memory_gib)
    )
    if args.profile is not None:
        from sparda_core.simulator.profile_file import load_profile

        profile = load_profile(args.profile)
        device = min(device or int(profile.device_bytes), int(profile.device_bytes))
        if host is None and profile.host_bytes is not None:
            host = int(profile.host_bytes)
    return Room(device_bytes=device, host_bytes=host)


def _problem(plan: CapacityPlan, room: Room) -> str | None:
    try:
        attrs.evolve(plan, gpu_memory_bytes=room.device_bytes).check()
        if room.host_bytes is not None:
            plan.check_host(room.host_bytes)
    except CapacityError as wrong:
        return str(wrong)
    return None


def _copy(args: argparse.Namespace, batch: int) -> dict[str, Any]:
    """Size of the copy kernel that such a session would take."""
    if args.profile is None:
        return attrs.asdict(GpuOptions().copy_size(batch))
    from sparda_core.errors import ProfileError
    from sparda_core.simulator.copy_default import copy_of

    try:
        found = copy_of(args.profile)
    except ProfileError:  # of a CPU, or a GPU whose gathers nobody knows: the session's own default
        return attrs.asdict(GpuOptions().copy_size(batch))
    return {"ctas": found.ctas, "in_flight_bytes": found.in_flight_bytes, "source": found.source}


def document(told: Verdict) -> dict[str, Any]:
    """As one JSON document; bytes and counts."""
    return {
        "selector": told.pair.selector.name, "runtime": told.pair.runtime.name, "policy": told.pair.runtime.policy,
        "plan": told.plan.as_json(), "room": told.room, "fits": told.fits, "problem": told.problem,
        "short_bytes": told.room.short(told.plan), "rows_that_fit": told.rows, "tokens_that_fit": told.tokens,
        "slots_that_fit": told.slots,
        "ways_out": [
            {"change": way.change, "device_bytes": way.plan.device_bytes, "host_bytes": way.plan.host_bytes}
            for way in told.ways
        ],
        "copy": told.copy,
    }  # fmt: skip

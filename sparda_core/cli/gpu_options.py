"""Options of a GPU session on the command line: the same for every command that opens or plans one. Torch-free."""

from __future__ import annotations

import argparse
from typing import Any

from sparda_core.cli.options import POSITIVE
from sparda_core.cli.parser import number
from sparda_core.errors import ConfigError, UnknownNameError
from sparda_core.runtimes.gpu.options import COPY_LAUNCHES, COPY_RULES, HOST_DTYPES, GpuOptions
from sparda_core.simulator.gpu import GpuProfile

GIB = 1 << 30
KIB = 1 << 10
EARLY = (0, 1, 2)
#: Types of weights, keys and values on a GPU, by torch's name: bytes of a value.
DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}
OF_A_CPU = "--threads and --link-gb-s are of a CPU; leave them out with --device cuda"
#: Option -> (field of GpuOptions, what one unit of it is there).
FIELDS = {
    "places": ("places", 1), "row_tokens": ("tokens", 1), "page_blocks": ("page_blocks", 1),
    "gpu_memory_gib": ("gpu_memory_bytes", GIB), "host_limit_gib": ("host_limit_bytes", GIB),
    "host_dtype": ("host_dtype", None), "copy_rule": ("copy_rule", None), "copy_ctas": ("copy_ctas", 1),
    "copy_in_flight_kib": ("copy_in_flight_bytes", KIB), "copy_launch": ("copy_launch", None), "early": ("early", 1),
    "pinning": ("pinning", None),
}  # fmt: skip
_MEMORY = number(float, least=1e-3, most=1 << 20)


def add_gpu_memory(group: argparse._ActionsContainer) -> None:
    """What a session's memory follows from, besides the load."""
    group.add_argument(
        "--gpu-memory-gib", type=_MEMORY, metavar="GIB",
        help="device memory that it may use, weights included, 1024**3 bytes: slots become as many as fit "
        "(default: no cap, and the slots of --slots)",
    )  # fmt: skip
    group.add_argument(
        "--host-limit-gib", type=_MEMORY, metavar="GIB",
        help="most pinned host memory, 1024**3 bytes (default: what the rows can need)",
    )  # fmt: skip
    group.add_argument(
        "--host-dtype", choices=HOST_DTYPES, help="values of the host copy: the device's, or fp8, one byte each"
    )
    group.add_argument("--page-blocks", type=POSITIVE, metavar="BLOCKS", help="blocks in a page of the stores")


def add_gpu(parser: argparse.ArgumentParser) -> None:
    """All options of a session with --device cuda."""
    group = parser.add_argument_group("on a GPU (--device cuda)")
    group.add_argument(
        "--dtype", choices=tuple(DTYPES),
        help="of weights, keys and values there (default: float32, in which greedy text is that of a CPU)",
    )  # fmt: skip
    group.add_argument("--places", type=POSITIVE, metavar="ROWS", help="rows that memory is taken for (default: 1)")
    group.add_argument(
        "--row-tokens", type=POSITIVE, metavar="TOKENS", help="most tokens of a row (default: what this run needs)"
    )
    add_gpu_memory(group)
    group.add_argument(
        "--engine", dest="gpu_engine", metavar="NAME",
        help=f"how blocks move: {', '.join(GpuProfile.engines)} (default: {GpuProfile.engines[0]})",
    )  # fmt: skip
    group.add_argument(
        "--copy-rule", choices=COPY_RULES,
        help="size of the copy kernel: ours, by the GPU's measured profile, or the paper's (default: ours)",
    )  # fmt: skip
    group.add_argument("--copy-ctas", type=POSITIVE, metavar="CTAS", help="thread blocks of the copy kernel")
    group.add_argument(
        "--copy-in-flight-kib", type=POSITIVE, metavar="KIB", help="KiB that each of them keeps in flight"
    )
    group.add_argument(
        "--copy-launch", choices=COPY_LAUNCHES, help="a copy kernel for each layer, or one for the whole step"
    )
    group.add_argument("--early", type=int, choices=EARLY, help="how early small kernels start (default: as they can)")
    group.add_argument("--no-graph", action="store_true", help="issue every operation from the host: no CUDA graph")
    group.add_argument("--pinning", metavar="NAME", help="how host memory is pinned (default: the fastest measured)")


def gpu_options(args: argparse.Namespace) -> dict[str, Any]:
    """Keywords of GpuOptions that were given, in its units; those not given keep their defaults."""
    given = {name: getattr(args, name, None) for name in FIELDS}
    options: dict[str, Any] = {
        FIELDS[name][0]: value if unit is None else int(value * unit)
        for name, value in given.items()
        if value is not None
        for unit in (FIELDS[name][1],)
    }
    if getattr(args, "no_graph", False):
        options["graph"] = False
    GpuOptions.of(**options)  # raises here what could not be opened
    return options


def check_cpu(args: argparse.Namespace) -> None:
    """Raise ConfigError where an option of a GPU session was given without one."""
    words = {**{name: getattr(args, name, None) for name in FIELDS}, "engine": getattr(args, "gpu_engine", None)}
    words |= {"no_graph": getattr(args, "no_graph", False) or None, "dtype": getattr(args, "dtype", None)}
    given = [f"--{name.replace('_', '-')}" for name, value in words.items() if value is not None]
    if given:
        raise ConfigError(f"{', '.join(given)}: of a GPU session; add --device cuda, or leave out")


def check_names(args: argparse.Namespace) -> None:
    """Raise ConfigError, or UnknownNameError, for an option of a GPU session that no GPU could take."""
    if args.gpu_engine not in (None, *GpuProfile.engines):
        raise UnknownNameError(what="engine", name=args.gpu_engine, known=GpuProfile.engines)
    gpu_options(args)


def check_gpu(args: argparse.Namespace) -> None:
    """Raise ConfigError where an option of a CPU session was given, and as `check_names` does."""
    if any(getattr(args, name, None) is not None for name in ("threads", "link_gb_s")):
        raise ConfigError(OF_A_CPU)
    check_names(args)

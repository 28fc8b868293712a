"""A file to start a profile of one's own from: the numbers that must be stated, and how each is measured."""

from __future__ import annotations

import json
import textwrap

import attrs

from sparda_core.errors import ProfileError
from sparda_core.simulator.derive import REFERENCE
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.profile import Profile
from sparda_core.simulator.quantity import Quantity

#: Section and number -> how to find it out.
HOW = {
    ("memory", "hbm_bytes"): "`nvidia-smi --query-gpu=memory.total --format=csv`: MiB x 1048576",
    ("memory", "hbm_bytes_per_s"): "copy 4 GiB from the device to the device with events around: bytes read + written",
    ("memory", "host_bytes"): "memory that pinned pages may take: /proc/meminfo, MemAvailable x 1024",
    ("compute", "sms"): "`torch.cuda.get_device_properties(0).multi_processor_count`",
    ("compute", "flop_per_s"): "an 8192 x 8192 x 8192 bf16 product of random values, dense: 2 x 8192^3 / seconds",
    ("launch", "graph_s"): "a CUDA graph of 32 one-block kernels: its time / 32",
    ("launch", "eager_s"): "host time of 1,000 launches of an empty kernel / 1,000",
    ("link", "generation"): "`nvidia-smi --query-gpu=pcie.link.gen.max,pcie.link.width.max --format=csv`",
    ("link", "lanes"): "the same",
    ("link", "h2d_bytes_per_s"): "copy 1 GiB of pinned memory to the device; `nvbandwidth -t host_to_device_memcpy_ce`",
    ("link", "d2h_bytes_per_s"): "the same back; `nvbandwidth -t device_to_host_memcpy_ce`",
    ("link", "both_ways_bytes_per_s"): (
        "each way with both busy; `nvbandwidth -t host_to_device_bidirectional_memcpy_ce`"
    ),
}
_SOURCE = "copied from {name}: replace value, source and basis"


def template(name: str, like: Profile) -> str:
    """TOML text of a profile called `name` with the numbers of `like`, marked priors, each under how to measure it.

    The text is a profile that loads as it stands. Raises ProfileError where `like` is no GPU.
    """
    if not isinstance(like, GpuProfile):
        raise ProfileError(f"profile {like.name!r} is of a {like.device}; `sparda calibrate` makes a profile of a CPU")
    lines = [
        *_comment(
            "The numbers that must be stated. Each is { value, unit, source, basis }; basis is measured, datasheet, "
            f"derived or prior. What is missing is carried over from the {REFERENCE}: `sparda profile show FILE` lists "
            "every number with what it rests on, and any of them can be stated here, in its section. "
            "`sparda profile lint FILE` holds them against physics."
        ),
        'device = "gpu"',
        f"name = {json.dumps(name, ensure_ascii=False)}",
        f"title = {json.dumps(f'{name}, started from {like.name}', ensure_ascii=False)}",
        f"date = {json.dumps(like.date)}",
    ]
    for section in ("memory", "compute", "launch", "link"):
        lines += ["", f"[{section}]"]
        if section == "link" and like.link.kind != "pcie":
            lines.append(f'kind = "{like.link.kind}"')
        lines += _section(section, like)
    return "\n".join(lines) + "\n"


def _section(section: str, like: GpuProfile) -> list[str]:
    lines = []
    for (part, name), how in HOW.items():
        quantity = getattr(getattr(like, section), name) if part == section else None
        if quantity is not None:
            lines += [f"# {how}", f"{name} = {_inline(quantity, like.name)}"]
    return lines


def _inline(quantity: Quantity, name: str) -> str:
    prior = attrs.asdict(quantity) | {"source": _SOURCE.format(name=name), "basis": "prior"}
    return "{ " + ", ".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in prior.items()) + " }"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 110, initial_indent="# ", subsequent_indent="# ")

"""From samples of a calibration to a profile. Pure: no GPU, no clock, the same samples give the same profile."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from sparda_core.errors import ProfileError
from sparda_core.simulator.copy_default import profile_of
from sparda_core.simulator.derive import FOLDER
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.gpu_fit import gather, host_lists, in_turn, kernels, links, reading, searches
from sparda_core.simulator.gpu_fit.contention import fit_contention
from sparda_core.simulator.gpu_fit.grids import grid_table
from sparda_core.simulator.gpu_fit.quantities import Table
from sparda_core.simulator.gpu_fit.samples import FITTED, VERSION, Samples, digest
from sparda_core.simulator.gpu_parts import LANES, PCIE_PAYLOAD_BYTES_PER_S, Calibration
from sparda_core.simulator.profile_file import gpu_profile_of

#: Called with (what, done, total).
Report = Callable[[str, int, int], None]
_STEPS = 3


def fit_gpu_profile(samples: Samples, *, name: str, report: Report | None = None) -> GpuProfile:
    """A profile called `name`.

    What no section measures is taken from the shipped profile of the same GPU, if there is one, as it stands there;
    else it is carried over as for any other profile (`derive.py`).
    Raises ProfileError naming the sections or rows that are missing, or the number that breaks physics.
    """
    samples.require(*FITTED)
    say = functools.partial(report or (lambda what, done, total: None), "calibration: fitting")
    say(0, _STEPS)
    table = _merged(base_of(str(samples.identity["name"])), _parts(samples))
    table |= {"name": name, "title": _title(samples), "date": str(samples.provenance["date"])[:10]}
    profile = gpu_profile_of(_with_operations(table, samples, name), name)
    say(1, _STEPS)
    profile = host_lists.fit_beside(fit_contention(profile, samples), samples)
    say(2, _STEPS)
    profile = attrs.evolve(profile, calibration=calibration_of(samples))
    say(_STEPS, _STEPS)
    return profile


def _with_operations(table: Table, samples: Samples, name: str) -> Table:
    """What operations take by rows and by candidates, given what bytes, FLOPs and gaps take."""
    so_far = attrs.evolve(gpu_profile_of(table, name), kernels=None)
    own = {
        **searches.search_table(samples, so_far), **reading.reading_table(samples, so_far),
        **in_turn.in_turn_table(samples, so_far),
    }  # fmt: skip
    full = _merged(table, {"kernels": own})
    rates = [value for key, value in own.items() if key.endswith("_bytes_per_s") and not key.startswith("sm")]
    # What one kernel reads, the memory gives.
    full["memory"]["hbm_bytes_per_s"] = max([full["memory"]["hbm_bytes_per_s"], *rates], key=lambda told: told["value"])
    # A number by rows stands for the one of a launch.
    full["kernels"] = {key: value for key, value in full["kernels"].items() if f"{key[:-2]}_rows" not in own}
    return full


def _parts(samples: Samples) -> Table:
    """Everything that is read off rows without the simulator."""
    parts = _merged(kernels.machine_table(samples), {"launch": kernels.launch_table(samples)})
    parts = _merged(parts, links.link_table(samples))
    parts = _merged(parts, host_lists.list_table(
        samples, parts["link"]["h2d_bytes_per_s"]["value"], parts["launch"]["graph_s"]["value"],
        parts["copy_engine"]["pieces"],
    ))  # fmt: skip
    parts["link"] |= _generation(samples, parts["link"]["h2d_bytes_per_s"]["value"])
    parts["uva"] = gather.gather_table(samples)
    parts = _merged(parts, kernels.step_table(samples, parts["compute"]["flop_per_s"]["value"]))
    return _merged(parts, {"compute": grid_table(samples)})


def _generation(samples: Samples, h2d: float) -> Table:
    """As the device says; where it says nothing (a virtual machine), the slowest x16 link that carries as much."""
    row = samples.one("machine")
    generation, lanes = row.get("pcie_generation") or 0, row.get("pcie_lanes") or 0
    words, basis = "nvidia-smi", "measured"
    known = generation in PCIE_PAYLOAD_BYTES_PER_S and lanes in LANES
    if not known or PCIE_PAYLOAD_BYTES_PER_S[generation] * lanes / 16 < h2d:
        fits = [g for g, payload in sorted(PCIE_PAYLOAD_BYTES_PER_S.items()) if payload >= h2d]
        if not fits:
            raise ProfileError(
                f"samples: copies up at {h2d:g} B/s exceed every PCIe x16 link known: a link of kind c2c is not "
                "measured by this command; write its profile by hand (`sparda profile new`)"
            )
        generation, lanes, basis = fits[0], 16, "derived"
        words = f"the slowest that carries {h2d:g} B/s; not told by the device"
    return {
        "generation": {"value": generation, "unit": "1", "source": words, "basis": basis},
        "lanes": {"value": lanes, "unit": "1", "source": words, "basis": basis},
    }  # fmt: skip


@functools.cache
def _shipped(name: str) -> Table:
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def base_of(gpu: str) -> Table:
    """The shipped profile of a GPU by the name that its driver gives it; empty where there is none."""
    name = profile_of(gpu)
    if name is None:
        return {}
    return {key: value for key, value in _shipped(name).items() if key not in ("device", "calibration")}


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> Table:
    """Both, sections and their numbers; the other's where both have one."""
    out = {key: dict(value) if isinstance(value, dict) else value for key, value in one.items()}
    for key, value in other.items():
        out[key] = {**out.get(key, {}), **value} if isinstance(value, dict) else value
    return out


def _title(samples: Samples) -> str:
    return f"{samples.identity['name']}, measured by `sparda calibrate`"


def calibration_of(samples: Samples) -> Calibration:
    """Where a profile comes from."""
    who, how = samples.identity, samples.provenance
    return Calibration(
        version=VERSION, gpu=str(who["name"]), date=str(how["date"]), command=str(how["command"]),
        commit=str(how.get("commit")), samples=digest(samples),
        **{key: str(who.get(key)) for key in ("driver", "cuda", "torch", "triton")},
    )  # fmt: skip

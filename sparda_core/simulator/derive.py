"""What a GPU profile need not state: carried over from the H200, the one GPU that was measured.

A ratio is carried over where physics makes one (a share of the link, of device memory, of the SMs), else
the number itself. Either way the number is marked `derived` (`prior`, where it was only assumed there), with what
it was derived from as its source.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

#: The profile that everything is carried over from; complete by itself.
REFERENCE = "h200"
FOLDER = Path(__file__).parent / "profiles"

#: What a file must state: twelve numbers, ten with NVLink-C2C, whose link has no generation and no lanes.
REQUIRED = {
    "memory": ("hbm_bytes", "hbm_bytes_per_s", "host_bytes"),
    "compute": ("sms", "flop_per_s"),
    "launch": ("graph_s", "eager_s"),
    "link": ("h2d_bytes_per_s", "d2h_bytes_per_s", "both_ways_bytes_per_s"),
    "link of kind pcie": ("generation", "lanes"),
}
#: Number -> the number of the same profile that it is a share of.
SHARES = {
    ("memory", "kernel_bytes_per_s"): ("memory", "hbm_bytes_per_s"),
    ("kernels", "score_bytes_per_s"): ("memory", "hbm_bytes_per_s"),
    ("kernels", "attend_bytes_per_s"): ("memory", "hbm_bytes_per_s"),
    ("uva", "ceiling_bytes_per_s"): ("link", "h2d_bytes_per_s"),
    ("copy_engine", "whole_bytes_per_s"): ("link", "h2d_bytes_per_s"),
}
#: Numbers that are the same on every GPU until someone measures them.
CARRIED = {
    "memory": ("reserved_bytes", "link_hbm_weight"),
    "compute": ("product_cluster", "wave_share", "ridge_bend"),
    "launch": ("step_s", "list_s", "cut_s", "segment_s"),
    "kernels": (
        "score_s", "select_s", "diff_s", "attend_s", "product_s", "project_s", "output_s", "mlp_s", "head_s",
        "embed_s", "turn_s", "attend_round_s", "select_searched", "diff_searched", "score_passed", "score_ramp_s",
        "attend_ramp_s", "attend_rows", "select_rows", "diff_rows", "project_rows", "output_rows", "mlp_rows",
        "head_rows", "proxy_rows",
    ),
    "uva": (
        "in_flight_bytes", "round_trip_s", "repeated_round_trip_s", "cta_bytes_per_s", "beside_bytes_per_s",
        "beside_bend", "late_bytes_per_s", "late_bend", "drag_per_byte", "drag_most_bytes", "sm_in_flight_bytes",
        "pairs", "crowded_bytes_per_s",
    ),
    "copy_engine": ("call_s", "start_s", "submit_s", "beside_s"),
    "cpu_gather": ("call_s", "gather_bytes_per_s", "scatter_s"),
}  # fmt: skip

Table = dict[str, Any]
#: Nothing is derived from a number beyond it: the reader refuses it anyway.
_ABSURD = 1e30


def completed(table: Mapping[str, Any]) -> Table:
    """The table of a GPU profile with everything added that it may leave out.

    What is malformed stays as it is, for the reader to refuse; nothing that the table states is changed.
    """
    full = {name: dict(part) if isinstance(part, Mapping) else part for name, part in table.items()}
    for section, names in CARRIED.items():
        for name in names:
            if name in reference()[section] and not _told(table, section):
                _add(full, section, name, functools.partial(_carried, section, name))
    for (section, name), (of_section, of) in SHARES.items():
        if name in reference()[section] and not _told(table, section):
            _add(full, section, name, functools.partial(_share, full, section, name, of_section, of))
    _add(full, "memory", "host_bytes_per_s", functools.partial(_host, full))
    _add(full, "compute", "product_ctas", functools.partial(_product_ctas, full))
    _add(full, "copy_engine", "pieces", functools.partial(_pieces, full))
    return full


def _told(table: Mapping[str, Any], section: str) -> bool:
    """Whether a file tells all of a section where it tells anything: its kernels' numbers belong together."""
    return section == "kernels" and bool(table.get(section))


@functools.cache
def reference() -> Table:
    """The H200's profile as a table."""
    return tomllib.loads((FOLDER / f"{REFERENCE}.toml").read_text(encoding="utf-8"))


def _add(full: Table, section: str, name: str, make: Callable[[], Table | None]) -> None:
    part = full.setdefault(section, {})
    if isinstance(part, dict) and name not in part:
        made = make()
        if made is not None:
            part[name] = made


def _carried(section: str, name: str) -> Table:
    here: Table = reference()[section][name]
    return {**here, "source": f"as on the {REFERENCE} ({here['source']})", "basis": _basis(here)}


def _basis(there: Table) -> str:
    """What was assumed there is assumed here."""
    return "derived" if there["basis"] == "measured" else "prior"


def _share(full: Table, section: str, name: str, of_section: str, of: str) -> Table | None:
    base = _value(full, of_section, of)
    if base is None:
        return None
    here = reference()[section][name]
    share = here["value"] / reference()[of_section][of]["value"]
    return {
        "value": share * base, "unit": here["unit"], "basis": "derived",
        "source": f"{share:.3f} of {of_section}.{of}, as on the {REFERENCE}",
    }  # fmt: skip


def _host(full: Table) -> Table:
    """A server's memory; more where the link alone takes as much (Grace's memory reads 1.3 times what GH200 moves)."""
    there, h2d = _carried("memory", "host_bytes_per_s"), _value(full, "link", "h2d_bytes_per_s") or 0.0
    if there["value"] >= 1.3 * h2d:
        return there
    source = "1.3 of link.h2d_bytes_per_s, as a GH200's memory by STREAM"
    return {"value": 1.3 * h2d, "unit": "B/s", "source": source, "basis": "prior"}


def _product_ctas(full: Table) -> Table | None:
    """As large a share of the SMs as on the H200, in whole TPCs."""
    sms = _value(full, "compute", "sms")
    if sms is None:
        return None
    there = reference()["compute"]
    ctas = 2 * int(sms * there["product_ctas"]["value"] / there["sms"]["value"] / 2)
    source = f"{there['product_ctas']['value']} of {there['sms']['value']} SMs on the {REFERENCE}, in whole pairs"
    return {"value": max(1, ctas), "unit": "1", "source": source, "basis": "derived"}


def _pieces(full: Table) -> Table | None:
    """The H200's cost per piece, on top of this link's own speed."""
    whole = _value(full, "copy_engine", "whole_bytes_per_s")
    there = reference()["copy_engine"]
    if not whole:
        return dict(there["pieces"])
    sizes, rates = there["pieces"]["piece_bytes"], there["pieces"]["bytes_per_s"]
    # From rate to seconds beyond the bytes at full rate there, and back to a rate here.
    extra = [size / rate - size / there["whole_bytes_per_s"]["value"] for size, rate in zip(sizes, rates, strict=True)]
    here = [size / (more + size / whole) for size, more in zip(sizes, extra, strict=True)]
    source = f"the {REFERENCE}'s cost per piece ({there['pieces']['source']}) on this link"
    return {"piece_bytes": sizes, "bytes_per_s": here, "source": source, "basis": "derived"}


def _value(full: Table, section: str, name: str) -> float | None:
    """A number of the table; None where it is missing or no number, which the reader says."""
    part = full.get(section)
    quantity = part.get(name) if isinstance(part, dict) else None
    value = quantity.get("value") if isinstance(quantity, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _ABSURD:
        return None
    return float(value)

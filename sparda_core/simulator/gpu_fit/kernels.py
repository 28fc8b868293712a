"""From kernels with nothing beside them to memory's share, the ridge, and what small kernels take by themselves."""

from __future__ import annotations

import attrs

from sparda_core.errors import ProfileError
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.gpu_fit.beside import SIZES
from sparda_core.simulator.gpu_fit.quantities import MICRO, Table, measured, middle, root
from sparda_core.simulator.gpu_fit.samples import Row, Samples
from sparda_core.simulator.gpu_price import alone_s
from sparda_core.work import Work

#: Kind of operation -> the kernels whose time says what one of its launches takes by itself.
OWN = {
    "score": ("score forecast",), "select": ("choose",), "diff": ("diff last-selection",), "attend": ("attend",),
}  # fmt: skip
#: Rows up to which a kernel is small.
_FEW = 16


def launch_table(samples: Samples) -> Table:
    """The section `launch`."""
    us = {row["what"]: middle(row["us"], row["what"]) for row in samples.rows("launches")}
    for what in ("graph", "eager", "graph to graph"):
        if what not in us:
            samples.rows("launches", what=what)
    return {
        "graph_s": measured(us["graph"] * MICRO, "s", "a kernel of one warp in a graph of 64"),
        "eager_s": measured(us["eager"] * MICRO, "s", "host time of a launch of ours, 400 in a row"),
        "step_s": measured(
            max(0.1, us["graph to graph"]) * MICRO, "s", "graphs of 64 kernels in a row, less the kernels"
        ),
    }  # fmt: skip


def machine_table(samples: Samples) -> Table:
    """What the machine reports, and the ceilings of memory, products and the host."""
    row = samples.one("machine")
    told: Table = {
        "memory": {
            "hbm_bytes_per_s": measured(
                middle(row["device_copy_bytes_per_s"], "device copies"), "B/s", "device copy, bytes read + written"
            ),
            "host_bytes_per_s": measured(
                middle(row["host_copy_bytes_per_s"], "host copies"), "B/s", "copies by 16 host threads, read + written"
            ),
        },
        "compute": {
            "sms": measured(float(row["sms"]), "1", "reported by the device"),
            "flop_per_s": measured(
                middle(row["product_flop_per_s"], "large products"), "FLOP/s", "bf16 product, 8192 cubed, random data"
            ),
        },
    }
    for name, key in (("hbm_bytes", "memory_mib"), ("host_bytes", "host_mib")):
        if row.get(key):
            told["memory"][name] = {**measured(0, "B", "reported by the system"), "value": row[key] * 2**20}
    return told


def products_table(samples: Samples, graph_s: float, peak: float) -> Table:
    """memory.kernel_bytes_per_s from products of one row, compute.ridge_bend from those of the most rows."""
    us = {row["rows"]: middle(row["us_per_layer"], "products") for row in samples.rows("products")}
    few, most = min(us), max(us)
    nbytes, gaps_s = 2 * sum(SIZES), len(SIZES) * graph_s
    rate = nbytes / (us[few] * MICRO - gaps_s)
    told = {"kernel_bytes_per_s": measured(
        rate, "B/s", f"a layer's products at {few} row: {nbytes / 1e6:.0f} MB in {us[few]:.1f} us, less launches"
    )}  # fmt: skip
    bend = {}
    flops_s, took_s = 2 * sum(SIZES) * most / peak, us[most] * MICRO - gaps_s
    if most >= 128 and took_s > max(flops_s, nbytes / rate):
        value = ridge_bend(flops_s, nbytes / rate, took_s)
        bend = {"ridge_bend": measured(value, "1", f"a layer's products at {most} rows: {us[most]:.1f} us")}
    return {"memory": told, "compute": bend}


def ridge_bend(flops_s: float, hbm_s: float, took_s: float) -> float:
    """p of (a^p + b^p)^(1/p) = took, from 1 to 100."""
    return root(lambda p: took_s - (flops_s**p + hbm_s**p) ** (1 / p), 1.0, 100.0, within=1e-10)


def kernels_table(samples: Samples, profile: GpuProfile) -> Table:
    """The section `kernels`: what a launch takes beyond its bytes, FLOPs and gap, the median over few rows."""
    bare = attrs.evolve(profile, kernels=None)
    told: Table = {}
    for kind, names in OWN.items():
        rows = [row for name in names for row in samples.rows("kernels", kernel=name) if row["rows"] <= _FEW]
        if not rows:
            raise ProfileError(f"samples: section 'kernels' has no {names[0]!r} of {_FEW} rows or fewer; measure again")
        own = [beyond_s(row, bare) for row in rows]
        words = ", ".join(f"{middle(row['us'], 'kernels'):.2f}" for row in rows)
        sizes = ", ".join(str(row["rows"]) for row in rows)
        told[f"{kind}_s"] = measured(
            max(0.0, middle(own, names[0])), "s", f"{', '.join(names)}: {words} us at {sizes} rows, less bytes and gaps"
        )
    return told


def beyond_s(row: Row, bare: GpuProfile) -> float:
    """Seconds of one launch beyond what a profile without numbers for small kernels says."""
    work = Work(**row["work"])
    took_s = middle(row["us"], str(row["kernel"])) * MICRO
    return (took_s - alone_s(bare, work)) / max(1, work.launches)

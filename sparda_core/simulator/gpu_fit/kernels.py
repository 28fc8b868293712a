"""From kernels with nothing beside them to memory's share, the ridge, and what small kernels take by themselves."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

import attrs

from sparda_core.errors import ProfileError
from sparda_core.simulator.gpu_fit import in_turn, reading
from sparda_core.simulator.gpu_fit.beside import PRODUCT, SIZES
from sparda_core.simulator.gpu_fit.quantities import MICRO, Table, ladder, measured, middle
from sparda_core.simulator.gpu_fit.samples import Row, Samples
from sparda_core.work import Work

#: Kind of operation -> the kernels whose time says what one of its launches takes by itself.
OWN = {
    "score": ("score forecast",), "select": ("choose",), "diff": ("diff last-selection",), "attend": ("attend",),
    "project": ("norm", "qkv", "rotate append"), "output": ("output",), "mlp": ("norm", "gate up", "gate", "down"),
    "head": ("norm", "head"),
}  # fmt: skip
#: Kernels of a layer, selection and attention left out.
LAYER = ("norm", "qkv", "rotate append", "output", "norm", "gate up", "gate", "down")
#: Operations that those belong to.
IN_TURN = ("project", "output", "mlp")
_LEAST_S = 1e-7
#: Share of the largest work of an operation below which another one is small.
_SHADOW = 0.1
#: Rows up to which a kernel is small.
_FEW = 16


def launch_table(samples: Samples) -> Table:
    """The section `launch`."""
    us = {row["what"]: middle(row["us"], row["what"]) for row in samples.rows("launches")}
    for what in ("graph", "eager", "graph to graph"):
        if what not in us:
            samples.rows("launches", what=what)
    step_us, words = us["graph to graph"], "graphs of 64 kernels in a row, less the kernels"
    for row in in_turn.parts(samples, "step to step"):
        step_us, words = middle(row["us"], "step to step"), "graphs of a step's kernels in a row, less one graph of all"
    return {
        "graph_s": measured(us["graph"] * MICRO, "s", "a kernel of one warp in a graph of 64"),
        "eager_s": measured(us["eager"] * MICRO, "s", "host time of a launch of ours, 400 in a row"),
        "step_s": measured(max(0.1, step_us) * MICRO, "s", words),
    }  # fmt: skip


def turn_us(samples: Samples) -> float:
    """Microseconds of a launch of LAYER behind another one beyond those of one behind itself: the median, >= 0.

    Code and addresses of another kernel are not at hand; kernels that start early, as shipped, take some of it back.
    """
    found = []
    timed = {row["rows"] for row in samples.rows("kernels", kernel=LAYER[0])}
    for row in samples.rows("sequence"):
        if row.get("what", "layer") != "layer" or row["rows"] not in timed:
            continue
        alone = sum(middle(samples.one("kernels", kernel=name, rows=row["rows"])["us"], name) for name in LAYER)
        found.append((middle(row.get("us_per_layer") or row["us"], "layers in turn") - alone) / row["launches"])
    return float(max(0.0, statistics.median(found)))


def machine_table(samples: Samples) -> Table:
    """What the machine reports, and the ceilings of memory, products and the host."""
    row = samples.one("machine")
    told: Table = {
        "memory": {"host_bytes_per_s": _host_memory(samples)},
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


def _host_memory(samples: Samples) -> Table:
    """The most that was seen to cross host memory in a second: its bound only if something was slowed by it."""
    copied = middle(samples.one("machine")["host_copy_bytes_per_s"], "host copies")
    one = max(samples.rows("copy-engine", way="both", pieces=1), key=lambda row: float(row["bytes"]))
    every = [row for row in samples.sections["machine"] if row.get("what") == "all gpus"]
    value, source = max([
        (copied, "copies by host threads, read + written"),
        (_both_ways(one, 1), "copy engine of one GPU, both ways at once, both counted"),
        *((_both_ways(row, row["gpus"]), f"copy engines of {row['gpus']} GPUs, both ways at once, all counted")
          for row in every),
    ])  # fmt: skip
    return measured(value, "B/s", source)


def _both_ways(row: Row, gpus: int) -> float:
    return 2 * gpus * float(row["bytes"]) / (middle(row["us"], "copies both ways") * MICRO)


def step_table(samples: Samples, peak: float) -> Table:
    """Memory's rates, compute.ridge_bend and the section `kernels`, so that all kernels of a step are said best.

    Raises ProfileError where a kind of operation has no kernels.
    """
    ceiling, words = _ceiling(samples)
    groups = groups_of(samples, peak)
    by_rows = reading.tells(samples)
    large = min(ceiling, _large_products(samples)) if by_rows else None
    gap_s = middle(samples.one("launches", what="graph")["us"], "graph") * MICRO
    rate, bend, own = fit_step(groups, gap_s, ceiling, large)
    own = {PRODUCT: own[PRODUCT]} if by_rows else own
    told_by = "from the second largest product of few rows to the largest: the median" if by_rows else (
        f"what {len(groups)} times of a step's kernels fit best"
    )
    told: Table = {
        "memory": {
            "hbm_bytes_per_s": measured(ceiling, "B/s", words),
            "kernel_bytes_per_s": measured(rate, "B/s", told_by),
        },
        "compute": {"ridge_bend": measured(bend, "1", "the same, products of up to 256 rows included")},
        "kernels": {},
    }  # fmt: skip
    for kind, seconds in own.items():
        seen = [group for group in groups if group.kind == kind]
        times = ", ".join(f"{group.took_s / MICRO:.2f} at {group.rows}" for group in seen)
        source = f"{seen[0].name}: {times} rows, microseconds, less bytes, FLOPs and gaps: the median"
        turn = turn_us(samples) if kind in IN_TURN else 0.0
        source += f", and {turn:.2f} in turn with others" if turn else ""
        # Less than a clock tells is nothing.
        own_s = seconds + turn * MICRO
        told["kernels"][f"{kind}_s"] = measured(own_s if own_s >= _LEAST_S else 0.0, "s", source)
    return told


def _large_products(samples: Samples) -> float:
    """Bytes a second between the two largest products of few rows: their beginnings and ends are alike."""
    rates = []
    for low in samples.rows("kernels", kernel="gate up"):
        for high in samples.rows("kernels", kernel="head", rows=low["rows"]) if low["rows"] <= _FEW else ():
            more = high["work"]["hbm_bytes"] - low["work"]["hbm_bytes"]
            rates.append(more / (_s(high) - _s(low)))
    return float(statistics.median(rates))


def _ceiling(samples: Samples) -> tuple[float, str]:
    """What device memory gives: to a copy, or to the kernel that reads fastest."""
    read, name = max(
        (row["work"]["hbm_bytes"] / _s(row), f"{row['kernel']}, {row['rows']} rows") for row in samples.rows("kernels")
    )
    copy = middle(samples.one("machine")["device_copy_bytes_per_s"], "device copies")
    return (copy, "device copy, bytes read + written") if copy >= read else (read, f"the fastest kernel: {name}")


@attrs.frozen(kw_only=True)
class Group:
    """Kernels of one operation at one number of rows: what they took, and what they ask for."""

    kind: str
    name: str
    rows: int
    took_s: float
    launches: int
    flops_s: float
    nbytes: float

    def flows_s(self, rate: float, bend: float) -> float:
        """FLOPs and bytes side by side."""
        low, high = sorted((self.flops_s, self.nbytes / rate))
        return high * (1 + (low / high) ** bend) ** (1 / bend) if high else 0.0


def groups_of(samples: Samples, peak: float) -> list[Group]:
    """Operations of a step by their kernels, and a layer's products, of which those of many rows are warm.

    Where these are told by rows, products alone, each a kind of its own.
    """
    sms = float(samples.one("machine")["sms"])
    if reading.tells(samples):
        rows = samples.rows("kernels", kind="product")
        groups = [_group(row["kernel"], row["rows"], [row], peak, sms) for row in rows]
    else:
        groups = [group for kind in OWN for group in _of_kind(samples, kind, peak, sms)]
    groups += [
        _layer(row["rows"], row["alone_us_per_layer"], peak)
        for row in samples.rows("beside products", co="engine", first=False)
    ]
    few = [row for row in samples.rows("products") if row["rows"] <= _FEW]
    return groups + [_layer(row["rows"], middle(row["us_per_layer"], "products"), peak) for row in few]


def _of_kind(samples: Samples, kind: str, peak: float, sms: float) -> list[Group]:
    """At every number of rows at which all kernels of this kind of operation were timed."""
    table = {name: _usual(samples, name) for name in OWN[kind]}
    rows = sorted(set.intersection(*map(set, table.values())))
    return [_group(kind, count, [table[name][count] for name in OWN[kind]], peak, sms) for count in rows]


def _usual(samples: Samples, name: str) -> dict[int, Row]:
    """A kernel at the usual context, by rows; older samples know no other."""
    first = samples.one("kernels", kernel=name)
    rows = samples.rows("kernels", kernel=name, context=first.get("context"), slots=first.get("slots"))
    return {row["rows"]: row for row in rows}


def _layer(rows: int, us: float, peak: float) -> Group:
    values = sum(SIZES)
    return Group(
        kind="product", name="a layer's products", rows=rows, took_s=us * MICRO, launches=len(SIZES),
        flops_s=2 * values * rows / peak, nbytes=2.0 * values,
    )  # fmt: skip


def _group(kind: str, rows: int, kernels: Sequence[Row], peak: float, sms: float) -> Group:
    works = [Work(**row["work"]) for row in kernels]
    # What is small beside a product moves its bytes in the product's shadow: the operation's work leaves it out.
    heavy = [work for work in works if work.hbm_bytes > _SHADOW * max(w.hbm_bytes for w in works)]
    return Group(
        kind=kind, name=" + ".join(row["kernel"] for row in kernels), rows=rows, took_s=sum(map(_s, kernels)),
        launches=sum(work.launches for work in works), nbytes=sum(work.hbm_bytes for work in heavy),
        flops_s=sum(work.flops / peak / (min(1.0, work.ctas / sms) if work.ctas else 1.0) for work in heavy),
    )  # fmt: skip


def fit_step(
    groups: Sequence[Group], graph_s: float, ceiling: float, known: float | None = None
) -> tuple[float, float, dict[str, float]]:
    """(bytes/s of a kernel, bend of the ridge, seconds a launch by kind) with the least sum of relative misfits.

    known  the first of them, where something else tells it
    """
    if not groups:
        raise ProfileError("samples: section 'kernels' has no kernels of a decode step; measure it again")

    def own_s(rate: float, bend: float) -> dict[str, float]:
        left: dict[str, list[float]] = {}
        for group in groups:
            rest = group.took_s - group.flows_s(rate, bend) - group.launches * graph_s
            left.setdefault(group.kind, []).append(rest / group.launches)
        return {kind: max(0.0, statistics.median(values)) for kind, values in left.items()}

    def misfit(rate: float, bend: float) -> float:
        own = own_s(rate, bend)
        return sum(
            abs(group.launches * (graph_s + own[group.kind]) + group.flows_s(rate, bend) - group.took_s) / group.took_s
            for group in groups
        )

    rates = [known] if known is not None else ladder(0.75 * ceiling, ceiling, 59)
    choices = itertools.product(rates, ladder(1.0, 8.0, 64))
    rate, bend = min(choices, key=lambda choice: misfit(*choice))
    return rate, bend, own_s(rate, bend)


def _s(row: Row) -> float:
    return middle(row["us"], str(row["kernel"])) * MICRO

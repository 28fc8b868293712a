"""From the profiler's kernels to the grid of a decode product: thread blocks, and how many start together."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import Any

from sparda_core.simulator.gpu_fit.quantities import Table, measured
from sparda_core.simulator.gpu_fit.samples import Row, Samples

#: cuBLAS names its kernels so: tile, depth and stages, cluster.
_NVJET = re.compile(r"nvjet\w*?_(\d+)x(\d+)_(\d+)x(\d+)_(\d+)x(\d+)_")
#: Rows whose products decide: more are other kernels.
_FEW = 64


def cluster_of(name: str) -> int:
    """Thread blocks that a library's kernel starts together, by its name; 1 where the name does not say."""
    found = _NVJET.search(name)
    return int(found[5]) * int(found[6]) if found else 1


def ctas_of(row: Row) -> int:
    """Thread blocks of a kernel's grid."""
    return math.prod(int(side) for side in row.get("grid") or (0,))


def grid_table(samples: Samples) -> Table:
    """compute.product_ctas and product_cluster: of one wave, the grid on which few-row products spend most time.

    Empty where the profiler told no grids.
    """
    samples.require("grids")
    spent: dict[tuple[int, int], float] = defaultdict(float)
    sms = int(samples.one("machine")["sms"])
    for row in samples.sections["grids"]:
        if row["rows"] <= _FEW and ctas_of(row):
            spent[min(sms, ctas_of(row)), cluster_of(row["name"])] += row["us"]
    if not spent:
        return {}
    (ctas, cluster), us = max(spent.items(), key=lambda item: item[1])
    share = us / sum(spent.values())
    source = f"by torch.profiler: {share:.0%} of the time of products of {_FEW} rows and fewer"
    told: dict[str, Any] = {"product_ctas": measured(ctas, "1", source)}
    if cluster == 1 or cluster % 2 == 0:
        told["product_cluster"] = measured(cluster, "1", f"{source}, by the kernels' names")
    return told

from __future__ import annotations

import itertools

from sparda_core.bench.predicted import GPU_BATCHES, GPU_CHURNS, GPU_METHODS, GPU_PROFILES, predict_gpus


def test_the_grid_is_complete_and_prefetching_never_loses_to_waiting() -> None:
    rows = list(predict_gpus())
    points = list(itertools.product(GPU_PROFILES, GPU_BATCHES, GPU_CHURNS))
    assert len(rows) == len(points) * len(GPU_METHODS)
    found = {
        (r["profile"], r["batch"], r["churn"], r["selector"], r["runtime"], r["engine"]): r for r in rows
    }  # fmt: skip
    for point in points:
        sync = found[(*point, "forecast", "offload-sync", "uva")]
        early = found[(*point, "forecast", "offload-prefetch", "uva")]
        assert early["step_s"] < sync["step_s"]
        assert early["exposed_s"] < sync["exposed_s"]
    full = found["h100-sxm", 16, 0.1, "query", "resident", "uva"]
    assert full["step_s"] is None
    assert "out of memory" in full["problem"]

"""When does knowing the blocks a layer early pay? Predicted for an 8B model on an H200; needs no GPU and no torch."""

from sparda_core.compose import compose
from sparda_core.shapes import BlockSpec, named_shape

shape = named_shape("minicpm4.1-8b")
spec = BlockSpec(sink=1, local=32, budget=96)
on_gpu = {"engine": "uva"}

print("batch  churn   query, sync   forecast, prefetch   faster by")
for batch in (8, 16):
    for churn in (0.03, 0.10):
        load = {"batch": batch, "context": 131072, "churn": churn}
        query = compose(shape, "query", "offload-sync", spec=spec, runtime_options=on_gpu).predict("h200", **load)
        pair = compose(shape, "forecast", "offload-prefetch", spec=spec, runtime_options=on_gpu)
        early = pair.predict("h200", **load)
        ratio = query.step_s / early.step_s
        times = f"{query.step_s * 1e3:8.2f} ms   {early.step_s * 1e3:15.2f} ms"
        print(f"{batch:5}   {churn:5.0%}   {times}   {ratio:8.2f}x")

"""Matrix products of a decode step: a layer's as one graph, and each class of them for itself."""

from __future__ import annotations

import attrs
import torch

from sparda_core.bench.gpu_calibration.beside import Subject
from sparda_core.bench.gpu_calibration.pool import device_of
from sparda_core.bench.gpu_calibration.sizes import Sizes
from sparda_core.bench.gpu_clock import Launch
from sparda_core.kernels.linear.work import product_work
from sparda_core.simulator.gpu_fit.beside import PRODUCTS
from sparda_core.work import WorkContext


def layers_of(sizes: Sizes, rows: int, *, shrink: int = 1, span_us: float = 0.0) -> Subject:
    """A graph of some layers of an 8B model's decode products, weights of their own in each layer.

    shrink   how many times smaller every side is, to try the code
    span_us  how long the graph takes at least: it goes through the layers again and again
    """
    device, dtype = device_of(), getattr(torch, sizes.dtype)
    shapes = [(inputs // shrink, outputs // shrink) for inputs, outputs in PRODUCTS]
    x = {width: torch.randn(rows, width, device=device).to(dtype) for width, _ in shapes}
    out = {width: torch.empty(rows, width, device=device, dtype=dtype) for _, width in shapes}
    launches = [
        _product(x[inputs], torch.randn(outputs, inputs, device=device, dtype=dtype), out[outputs])
        for _ in range(sizes.layers)
        for inputs, outputs in shapes
    ]
    return Subject.of("products", rows, launches, span_us)


def _product(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> Launch:
    return lambda: torch.mm(x, weight.T, out=out)


def classes(sizes: Sizes) -> dict[str, tuple[int, int, bool]]:
    """Products of a layer by name: inputs, outputs, and whether they are added to the residual stream."""
    shape = sizes.shape
    heads = (shape.q_heads + 3 * shape.kv_heads) * shape.head_dim
    return {
        "qkv": (shape.hidden, heads, False), "output": (shape.q_heads * shape.head_dim, shape.hidden, True),
        "gate up": (shape.hidden, 2 * shape.ffn, False), "down": (shape.ffn, shape.hidden, True),
        "head": (shape.hidden, shape.vocab, False),
    }  # fmt: skip


def _turns(sizes: Sizes, name: str) -> int:
    """Weights of so many layers; a model has one head, whose weights outgrow the second-level cache by themselves."""
    return 1 if name == "head" else sizes.layers


class Weights:
    """Weights of every class, `layers` times, made once for all numbers of rows."""

    NAMES = ("qkv", "output", "gate up", "down", "head")

    def __init__(self, sizes: Sizes) -> None:
        device, dtype = device_of(), getattr(torch, sizes.dtype)
        self.sizes, self.dtype, self.device = sizes, dtype, device
        self.of = {
            name: [torch.randn(outputs, inputs, device=device, dtype=dtype) for _ in range(_turns(sizes, name))]
            for name, (inputs, outputs, _) in classes(sizes).items()
        }

    def launches(self, name: str, rows: int) -> list[Launch]:
        """One product a layer, as a decoder issues it."""
        inputs, outputs, adds = classes(self.sizes)[name]
        x = torch.randn(rows, inputs, device=self.device).to(self.dtype)
        out = torch.zeros(rows, outputs, device=self.device, dtype=self.dtype)

        def launch(weight: torch.Tensor) -> Launch:
            if adds:
                return lambda: out.addmm_(x, weight.t(), alpha=1e-3)
            return lambda: torch.mm(x, weight.t(), out=out)

        return [launch(weight) for weight in self.of[name]]

    def work(self, name: str, rows: int) -> dict[str, float]:
        """What a prediction prices one of them by."""
        inputs, outputs, _ = classes(self.sizes)[name]
        context = WorkContext(shape=self.sizes.shape, spec=self.sizes.spec)
        return attrs.asdict(product_work(rows, inputs, outputs, context))

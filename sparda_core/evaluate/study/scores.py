"""Block scores [G, Q, N] of every method, a few queries at a time so that no table of Q x T grows with the text.

Axes: H query heads, G KV heads, Q query positions, T tokens, C entries, N blocks, D head dimension. A score says
something about free blocks only; those that hold no visible key have -inf or 0. Held to brute force in float64 by
tests/evaluate/test_study_scores.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import attrs
import torch
from torch.nn import functional as F  # noqa: N812

from sparda_core.distill.scores import bias_block_scores, pool_blocks, visible_entries
from sparda_core.errors import ConfigError
from sparda_core.evaluate.study.methods import BIASED, LABELLED, ON_TOKENS, Method
from sparda_core.evaluate.study.order import Order
from sparda_core.evaluate.study.ranks import Bounds, rank_free
from sparda_core.evaluate.study.scene import Scene
from sparda_core.models.forecast_weights import ForecastWeights

#: Logits held at once, in values: 2 GiB in float32 on a GPU, 128 MiB elsewhere, a few times over.
MOST_LOGITS = {"cuda": 2**29, "cpu": 2**25}

Part = Callable[[slice], torch.Tensor]


@attrs.frozen(kw_only=True, eq=False)
class Scorer:
    """Scores a scene by any method.

    forecasts  trained weights by label
    seed       of `random`: a score depends on it, the layer, the first position and the device
    select_blocks  of `nosa` and `nosa-forecast`, see Order
    """

    forecasts: Mapping[str, ForecastWeights] = attrs.field(factory=dict)
    seed: int = 0
    select_blocks: int = 0

    def lead(self, method: Method) -> int:
        """How many layers early the method knows its choice."""
        if method.kind in LABELLED:
            return self.forecasts[method.label].lead
        return 1 if method.kind.startswith("infinigen") else 0

    def source(self, method: Method, layer: int) -> int:
        """The layer whose input is looked at to choose for `layer`: itself where no layer is early enough."""
        lead = self.lead(method)
        return layer - lead if layer >= lead else layer

    def order(self, method: Method, scene: Scene, bounds: Bounds) -> Order:
        """In which order the method takes the scene's blocks."""
        return Order(
            score=rank_free(self(method, scene), bounds.free), bounds=bounds, select_blocks=self.select_blocks,
            bias=bias_scores(scene, _grid(method)) if method.kind in BIASED else None,
        )  # fmt: skip

    def __call__(self, method: Method, scene: Scene) -> torch.Tensor:
        """Block scores [G, Q, N], of NOSA's methods those of the first stage.

        Layers that no layer is early enough before are scored as a session would.
        A Forecast has projections of its own for them, InfiniGen takes the layer's own query.
        """
        if method.kind == "random":
            return self._noise(scene)
        if method.kind == "window":
            ids_N = torch.arange(scene.blocks, device=scene.k.device, dtype=scene.k.dtype)
            return ids_N.expand(scene.k.shape[0], len(scene.positions), -1)
        part = self._part(method, scene)
        return torch.cat([part(rows) for rows in _rows(scene)], dim=1)

    def _part(self, method: Method, scene: Scene) -> Part:
        if method.kind == "oracle":
            return lambda rows: attention_mass(scene, rows)
        if method.kind in LABELLED:
            weight = self.forecasts[method.label].by_target[scene.layer]
            student = scene.heads(weight, self.source(method, scene.layer))
            return lambda rows: _raw_entries(scene, _grid(method), student[:, rows], rows)
        early = method.kind.startswith("infinigen") and scene.layer >= 1
        # InfiniGen's first layer chooses as query-driven selection does.
        if not early and method.kind not in ("query", "nosa"):
            grid = method.grid or (scene.spec.window, scene.spec.stride)
            return lambda rows: _softmax_entries(scene, grid, scene.q[:, rows], rows)
        query = scene.proxy() if early else scene.q
        if method.kind in ("query", "nosa", "infinigen-softmax"):
            return lambda rows: _softmax_entries(scene, _grid(method), query[:, rows], rows)
        summed = query.reshape(scene.k.shape[0], -1, *query.shape[1:]).sum(1)
        if method.kind not in ON_TOKENS:
            return lambda rows: _raw_entries(scene, _grid(method), summed[:, rows], rows)
        keys = scene.k
        if method.channels:
            skew = _skew(method, scene)
            keys, summed = keys @ skew, summed @ skew
        return lambda rows: _raw_tokens(scene, keys, summed[:, rows], rows)

    def _noise(self, scene: Scene) -> torch.Tensor:
        first, size = int(scene.positions[0]), (len(scene.positions), scene.k.shape[0], scene.blocks)
        source = torch.Generator(scene.k.device).manual_seed((self.seed * 1009 + scene.layer) * 65537 + first)
        return torch.rand(size, generator=source, device=scene.k.device).transpose(0, 1)


def attention_mass(scene: Scene, rows: slice) -> torch.Tensor:
    """Share of attention that each block truly gets, mean over the group: [G, q, N]; those of a query sum to 1."""
    block, groups = scene.spec.block, scene.k.shape[0]
    upto = int(scene.positions[rows][-1]) + 1
    future = torch.arange(upto, device=scene.k.device)[None] > scene.positions[rows][:, None]
    query = scene.q[:, rows].reshape(groups, -1, *scene.q[:, rows].shape[1:])
    out = []
    for g, (k_TD, q_hQD) in enumerate(zip(scene.k, query, strict=True)):  # one group at a time, for memory
        logit: torch.Tensor = q_hQD @ k_TD[:upto].t() / k_TD.shape[-1] ** 0.5
        if scene.bias is not None:
            logit += scene.bias[g, :upto]
        share_QT = logit.masked_fill_(future, -math.inf).softmax(-1).mean(0)
        padded = F.pad(share_QT, (0, scene.blocks * block - upto))
        out.append(padded.view(padded.shape[0], scene.blocks, block).sum(-1))
    return torch.stack(out)


def _softmax_entries(scene: Scene, grid: tuple[int, int], q_HQD: torch.Tensor, rows: slice) -> torch.Tensor:
    entries, seen = scene.entries(grid), _seen(scene, grid, rows)
    groups = entries.shape[0]
    out = []
    for c_CD, q_hQD in zip(entries, q_HQD.reshape(groups, -1, *q_HQD.shape[1:]), strict=True):
        logit: torch.Tensor = q_hQD @ c_CD.t() / q_hQD.shape[-1] ** 0.5
        # A query that sees no entry has 0/0: it scores nothing.
        out.append(logit.masked_fill_(~seen, -math.inf).softmax(-1).nan_to_num_(0.0).sum(0))
    return pool_blocks(torch.stack(out), scene.blocks, scene.on(grid))


def _raw_entries(scene: Scene, grid: tuple[int, int], f_GQD: torch.Tensor, rows: slice) -> torch.Tensor:
    score: torch.Tensor = f_GQD @ scene.entries(grid).transpose(-1, -2)
    score.masked_fill_(~_seen(scene, grid, rows), -math.inf)
    return pool_blocks(score, scene.blocks, scene.on(grid))


def bias_scores(scene: Scene, grid: tuple[int, int]) -> torch.Tensor:
    """Block scores of the tokens' bias [G, Q, N]; raises ConfigError without one."""
    if scene.bias is None:
        raise ConfigError(f"layer {scene.layer} has no token bias to choose by; take a NOSA model, or another method")
    return bias_block_scores(scene.bias, scene.positions, scene.blocks, scene.on(grid))


def _skew(method: Method, scene: Scene) -> torch.Tensor:
    if scene.skew is None:
        raise ConfigError(f"method={method.name!r} needs the skew of its text; run_dense(channels=...) makes it")
    return scene.skew


def _raw_tokens(scene: Scene, k_GTD: torch.Tensor, summed_GQD: torch.Tensor, rows: slice) -> torch.Tensor:
    """Largest summed logit among a block's tokens and the one before it, as InfiniGen's release pools them."""
    score: torch.Tensor = summed_GQD @ k_GTD.transpose(-1, -2)
    future = torch.arange(score.shape[-1], device=score.device)[None] > scene.positions[rows][:, None]
    block = scene.spec.block
    right = block * scene.blocks - score.shape[-1]
    padded = F.pad(score.masked_fill_(future, -math.inf), (1, right), value=-math.inf)
    return padded.unfold(-1, block + 1, block).amax(-1)


def _seen(scene: Scene, grid: tuple[int, int], rows: slice) -> torch.Tensor:
    return visible_entries(scene.positions[rows], scene.entries(grid).shape[1], scene.on(grid))


def _grid(method: Method) -> tuple[int, int]:
    if method.grid is None:
        raise ConfigError(f"method={method.name!r} has no grid of entries to score")
    return method.grid


def _rows(scene: Scene) -> Iterator[slice]:
    """Slices of the queries, each of which holds no more logits at once than there is room for."""
    each = scene.q.shape[0] // scene.k.shape[0] * scene.k.shape[1]
    step = max(1, MOST_LOGITS["cuda" if scene.k.is_cuda else "cpu"] // each)
    return (slice(at, at + step) for at in range(0, len(scene.positions), step))

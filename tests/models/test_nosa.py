"""A random NOSA checkpoint in the released format against a re-computation of its own: selection, bias, attention.

As the release has it: a query's weights over its blocks, each times e^bias, over their sum.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F  # noqa: N812

from sparda_core.compose import compose
from sparda_core.errors import WeightsError
from sparda_core.models.load import load_model
from sparda_core.models.tiny import random_weights
from sparda_core.models.token_bias import bias_keys
from sparda_core.shapes import BlockSpec, ModelShape

SHAPE = ModelShape(
    name="nosa", layers=2, hidden=36, ffn=56, q_heads=6, kv_heads=2, head_dim=8, vocab=61, context=512,
    token_bias=True,
)  # fmt: skip
#: Blocks of 8 tokens, entries of 4 every 2: local 2, sink 1, 7 in all, of which 1 + 2 + 3 by the query.
SPARSE = {
    "kernel_size": 4, "kernel_stride": 2, "init_blocks": 1, "block_size": 8, "window_size": 16, "topk": 5,
    "select_blocks": 3,
}  # fmt: skip
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 36, "intermediate_size": 56,
    "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 61,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 500.0, "attention_bias": False,
    "sparse_config": SPARSE,
}  # fmt: skip
TOKENS = torch.randint(61, (150,), generator=torch.Generator().manual_seed(4)).tolist()


def write(path: Path, weights: dict[str, torch.Tensor], **changes: Any) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG | changes))
    save_file(weights, path / "model.safetensors")
    return path


def weights_of(seed: int = 0, dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    weights = random_weights(SHAPE, seed=seed, dtype=dtype)
    for layer in range(SHAPE.layers):
        scale, delta = bias_keys(layer)
        weights[scale] = torch.tensor([1.5, -0.8 + layer], dtype=dtype)
        weights[delta] = 3 * weights[delta]
    return weights


class Theirs:
    """The model by its definition. Everything at once, nothing kept."""

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        self.w = weights

    def logits(self, ids: list[int], *, sparse: bool) -> torch.Tensor:
        """[T, vocab], every query attending to its own selection, or to all."""
        x = self.w["model.embed_tokens.weight"][ids]
        for layer in range(SHAPE.layers):
            x = x + self._attention(layer, _rms(x, self._of(layer, "input_layernorm")), sparse)
            h = _rms(x, self._of(layer, "post_attention_layernorm"))
            up = F.silu(h @ self._of(layer, "mlp.gate_proj").T) * (h @ self._of(layer, "mlp.up_proj").T)
            x = x + up @ self._of(layer, "mlp.down_proj").T
        return _rms(x, self.w["model.norm.weight"]) @ self.w["lm_head.weight"].T

    def _of(self, layer: int, part: str) -> torch.Tensor:
        return self.w[f"model.layers.{layer}.{part}.weight"]

    def _attention(self, layer: int, h: torch.Tensor, sparse: bool) -> torch.Tensor:  # noqa: FBT001
        q, k, v = (
            (h @ self._of(layer, f"self_attn.{name}_proj").T).view(len(h), -1, SHAPE.head_dim) for name in "qkv"
        )
        q, k = _rope(q), _rope(k)
        bias = F.softplus(v.flatten(1) @ self._of(layer, "self_attn.delta").T) * self.w[bias_keys(layer)[0]]
        out = torch.zeros_like(q)
        for at in range(len(h)):
            for head in range(SHAPE.kv_heads):
                group = slice(3 * head, 3 * head + 3)
                tokens = torch.arange(at + 1)
                if sparse:
                    chosen = _select(q[at, group], k[: at + 1, head], bias[: at + 1, head])
                    tokens = tokens[torch.isin(tokens // 8, torch.tensor(sorted(chosen)))]
                weight = torch.softmax(q[at, group] @ k[tokens, head].T / 8**0.5, -1)
                worth = bias[tokens, head].exp()
                out[at, group] = (weight @ (worth[:, None] * v[tokens, head])) / (weight @ worth)[:, None]
        return out.flatten(1) @ self._of(layer, "self_attn.o_proj").T


def _select(q: torch.Tensor, k: torch.Tensor, bias: torch.Tensor) -> set[int]:
    """Blocks of one query and KV head: 6 by the query, one by the bias."""
    current = (len(k) - 1) // 8
    starts = range(0, len(k) - 3, 2)
    kept = torch.stack([k[s : s + 4].mean(0) for s in starts]) if starts else k.new_zeros(0, 8)
    share = torch.softmax(q @ kept.T / 8**0.5, -1).sum(0).tolist()
    means = [float(bias[s : s + 4].mean()) for s in starts]
    forced = {b for b in range(current + 1) if b < 1 or b >= current - 2}
    first = _best(_pooled(share, current), forced, 6)
    return _best(_pooled(means, current), first, 7)


def _pooled(entries: list[float], current: int) -> list[float]:
    return [max(entries[max(0, 4 * b - 1) : 4 * b + 4], default=float("-inf")) for b in range(current + 1)]


def _best(scores: list[float], forced: set[int], count: int) -> set[int]:
    order = sorted(set(range(len(scores))) - forced, key=lambda b: (-scores[b], b))
    return forced | set(order[: max(0, count - len(forced))])


def _rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def _rope(x: torch.Tensor) -> torch.Tensor:
    """Positions 0 .. T - 1; pairs are a head's halves."""
    angle = torch.arange(len(x))[:, None] * 500.0 ** -(torch.arange(0, 8, 2) / 8).double()
    low, high = x[..., :4], x[..., 4:]
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


def test_a_checkpoint_gives_the_logits_of_its_definition_dense_and_sparse(tmp_path: Path) -> None:
    weights = weights_of()
    model = load_model(write(tmp_path / "nosa", weights), dtype=torch.float64)
    assert model.shape.token_bias
    spec = model.config.block_spec
    assert spec == BlockSpec(block=8, window=4, stride=2, sink=1, local=2, budget=7)
    theirs = Theirs(weights)
    torch.testing.assert_close(
        model.decoder.dense_forward(torch.tensor([TOKENS]))[0], theirs.logits(TOKENS, sparse=False)
    )
    want = theirs.logits(TOKENS, sparse=True)
    assert float((want - theirs.logits(TOKENS, sparse=False)).abs().max()) > 1e-2
    options = {"select_blocks": 3}
    with compose(model, "nosa", "offload-sync", spec=spec, selector_options=options, page_blocks=2).open() as session:
        row = session.add()
        got = session.prefill(row, TOKENS[:130], mode="selector", chunk=50)
        torch.testing.assert_close(got, want[129])
        for at in range(130, 150):
            torch.testing.assert_close(session.decode({row: TOKENS[at]}).logits[0], want[at])


def test_a_scale_of_nought_is_a_plain_llama_of_the_transformers_package(tmp_path: Path) -> None:
    from tests.models.theirs import tiny, whole

    llama = tiny("llama", num_hidden_layers=2, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    weights = {name: tensor.contiguous() for name, tensor in llama.state_dict().items()}
    for layer in range(2):
        scale, delta = bias_keys(layer)
        weights[scale], weights[delta] = torch.zeros(2), torch.randn(2, 16)
    model = load_model(write(tmp_path / "nosa", weights))
    ids = torch.tensor([TOKENS[:60]])
    torch.testing.assert_close(model.decoder.dense_forward(ids), whole(llama, ids), rtol=1e-3, atol=1e-3)


def test_a_checkpoint_that_lacks_a_part_of_its_bias_or_has_another_one_is_refused(tmp_path: Path) -> None:
    weights = weights_of()
    gone = {name: tensor for name, tensor in weights.items() if name != bias_keys(1)[1]}
    with pytest.raises(WeightsError, match=r"model\.layers\.1\.self_attn\.delta\.weight"):
        load_model(write(tmp_path / "gone", gone))
    offset = {**weights, "model.layers.0.self_attn.delta.bias": torch.zeros(2, dtype=torch.float64)}
    with pytest.raises(WeightsError, match=r"no part of this family .*delta\.bias"):
        load_model(write(tmp_path / "offset", offset))
    with pytest.raises(WeightsError, match="only of a Llama is a token bias"):
        load_model(write(tmp_path / "qwen", weights, model_type="qwen3"))
    with pytest.raises(WeightsError, match="force_dense_inference=True is not supported"):
        load_model(write(tmp_path / "dense", weights, sparse_config={**SPARSE, "force_dense_inference": True}))

"""Random checkpoints written by the transformers package itself, and its own forward on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

transformers: Any = pytest.importorskip("transformers", reason="the transformers package is not installed")

#: Sizes of every tiny model: 6 query heads on 2 KV heads of 8 values, a context of 64 tokens.
SIZES: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 36, "intermediate_size": 56, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    "initializer_range": 0.3, "eos_token_id": 7,
}  # fmt: skip
CLASSES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
}


def tiny(family: str, **changes: Any) -> Any:
    """A random model of a family: norms away from 1 and biases away from 0, which would hide that they are left out."""
    torch.manual_seed(11)
    config_class, model_class = (getattr(transformers, name) for name in CLASSES[family])
    model = getattr(transformers, model_class.__name__)(config_class(**(SIZES | changes))).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            low, high = (-0.5, 0.5) if name.endswith("bias") else (0.5, 1.5)
            parameter.data.uniform_(low, high)
    return model


def save(model: Any, path: Path, **options: Any) -> Path:
    """`model` as its own package writes it."""
    model.save_pretrained(path, **options)
    return path


def whole(model: Any, ids_BT: torch.Tensor) -> torch.Tensor:
    """Logits of one forward without a cache."""
    with torch.no_grad():
        logits: torch.Tensor = model(ids_BT, use_cache=False).logits
    return logits


def in_chunks(model: Any, ids_BT: torch.Tensor, chunks: list[int]) -> torch.Tensor:
    """Logits of the same tokens fed in chunks, over the package's own cache."""
    found, start = [], 0
    cache = transformers.DynamicCache()
    with torch.no_grad():
        for size in chunks:
            part = ids_BT[:, start : start + size]
            found.append(model(part, past_key_values=cache, use_cache=True).logits)
            start += size
    return torch.cat(found, 1)

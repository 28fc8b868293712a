"""DenseRow: the model that judges every runtime. Plain lists of keys and values, attention by definition."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

#: One layer's selection for one row: logical ids [Hk, T, budget], -1 padded; None attends to everything.
Chosen = torch.Tensor | None


class DenseRow:
    """One row: its keys and values, whole. Nothing is shared, paged, cached or moved."""

    def __init__(self, model: Any, block: int) -> None:
        self.model, self.block, self.tokens = model, block, 0
        heads, size = model.shape.kv_heads, model.shape.head_dim
        empty = torch.empty(heads, 0, size, dtype=model.dtype)
        self.keys = [empty] * model.shape.layers
        self.values = [empty] * model.shape.layers
        self.biases = [_bias(model, layer, empty) for layer in range(model.shape.layers)]

    def fork(self) -> DenseRow:
        """An independent copy."""
        other = copy.copy(self)
        other.keys, other.values, other.biases = list(self.keys), list(self.values), list(self.biases)
        return other

    def crop(self, tokens: int) -> None:
        """Keep the first `tokens` tokens."""
        self.tokens = tokens
        self.keys = [key[:, :tokens] for key in self.keys]
        self.values = [value[:, :tokens] for value in self.values]
        self.biases = [bias[:, :tokens] for bias in self.biases]

    def append(self, tokens: Sequence[int], chosen: Sequence[Chosen]) -> torch.Tensor:
        """Logits [vocab] after T `tokens`, each of which attends in layer l to the blocks that chosen[l] has for it."""
        positions = torch.arange(self.tokens, self.tokens + len(tokens))[None]
        x = self.model.embed(torch.tensor([list(tokens)]))
        for layer in range(self.model.shape.layers):
            made = self.model.project(layer, x, positions)
            self.keys[layer] = torch.cat((self.keys[layer], made.k[0]), dim=1)
            self.values[layer] = torch.cat((self.values[layer], made.v[0]), dim=1)
            self.biases[layer] = torch.cat((self.biases[layer], _bias(self.model, layer, made.v[0])), dim=1)
            x = self.model.output(layer, x, self._attend(layer, made.q[0], positions[0], chosen[layer])[None])
            x = self.model.mlp(layer, x)
        self.tokens += len(tokens)
        logits: torch.Tensor = self.model.head(x[:, -1])[0]
        return logits

    def _attend(self, layer: int, query: torch.Tensor, positions: torch.Tensor, chosen: Chosen) -> torch.Tensor:
        group = self.model.shape.group
        key, value = (part[layer].repeat_interleave(group, dim=0) for part in (self.keys, self.values))
        logits = query @ key.mT / query.shape[-1] ** 0.5 + self.biases[layer].repeat_interleave(group, dim=0)[:, None]
        at = torch.arange(key.shape[1])
        hidden = (at[None, :] > positions[:, None])[None].expand_as(logits)
        if chosen is not None:
            seen = (chosen[:, :, None, :] == (at // self.block)[:, None]).any(-1)  # [Hk, T, tokens]
            hidden = hidden | ~seen.repeat_interleave(group, dim=0)
        return torch.softmax(logits.masked_fill(hidden, float("-inf")), dim=-1) @ value


def _bias(model: Any, layer: int, value: torch.Tensor) -> torch.Tensor:
    """Token biases of values [Hk, T, D], head by head, token by token: [Hk, T]; zeros where the model has none."""
    bias = torch.zeros(value.shape[:2], dtype=value.dtype)
    weights = model.layer_weights(layer).token_bias
    if weights is not None:
        for token in range(value.shape[1]):
            for head in range(value.shape[0]):
                x = sum(weights.delta[head, i] * part for i, part in enumerate(value[:, token].flatten()))
                bias[head, token] = weights.scale[head] * torch.log(1 + torch.exp(x))
    return bias

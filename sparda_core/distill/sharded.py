"""A frozen model too large for one device: every process holds a part of each layer, and all parts of one at a time.

The layers' matrices are sharded by torch's FSDP (`fully_shard`), one unit a layer. A layer is gathered before it is
used, the next one while it runs, and given up after. Nothing is learnt in them, so there is no backward pass.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from sparda_core.distill.backbone import HeldDecoder
from sparda_core.distill.parallel import World
from sparda_core.errors import ConfigError
from sparda_core.models.decoder import Decoder, LayerWeights


class _Layer(nn.Module):
    """A layer's tensors as parameters that are not trained; what is no tensor stays as it was.

    A token bias is a few rows: it lies whole on `device`.
    """

    def __init__(self, weights: LayerWeights, device: torch.device) -> None:
        super().__init__()
        bias = weights.token_bias
        self._like = weights if bias is None else attrs.evolve(weights, token_bias=bias.to(device))
        known = {f.name: getattr(weights, f.name) for f in attrs.fields(type(weights))}
        self._names = [name for name, value in known.items() if isinstance(value, torch.Tensor)]
        for name in self._names:
            self.register_parameter(name, nn.Parameter(getattr(weights, name), requires_grad=False))

    def weights(self) -> LayerWeights:
        """The tensors as they are now: whole while gathered."""
        found: dict[str, Any] = {name: getattr(self, name) for name in self._names}
        return attrs.evolve(self._like, **found)

    def release(self) -> LayerWeights:
        """Keep no tensor of the layer as it came; returns what is left of it."""
        nothing: dict[str, Any] = dict.fromkeys(self._names, torch.empty(0))
        self._like = attrs.evolve(self._like, **nothing)
        return self._like


class _Gathered(Sequence[LayerWeights]):
    """Stands where a decoder keeps its layers; gives the one that is gathered."""

    def __init__(self, modules: Sequence[Any]) -> None:
        self.modules = modules
        self.held: int | None = None

    def __len__(self) -> int:
        return len(self.modules)

    def __getitem__(self, layer: Any) -> Any:
        if layer != self.held:
            raise ConfigError(f"layer={layer} is shared out among processes; hold it first (held layer: {self.held})")
        return self.modules[layer].weights()


class ShardedDecoder(HeldDecoder):
    """The same model with its layers shared out; embeddings stay whole on every device."""

    @classmethod
    def of(cls, decoder: Decoder, world: World, device: str) -> ShardedDecoder:
        """Share out a decoder that lies on the CPU, layer by layer, onto `device`.

        Each layer's tensors are let go as they are shared out, so `decoder` is of no use afterwards.
        raises  ConfigError for a single process, or a decoder that lies elsewhere
        """
        if world.size < 2:
            raise ConfigError("--shard-model needs several processes; start them with torchrun")
        if decoder.device.type != "cpu":
            raise ConfigError(f"a decoder on {decoder.device} must be loaded on the CPU to be shared out")
        kind = torch.device(device).type
        mesh = init_device_mesh(kind, (world.size,))
        modules = []
        for layer in range(decoder.shape.layers):
            module = _Layer(decoder.layer_weights(layer), torch.device(device))
            fully_shard(module, mesh=mesh)
            decoder._layers[layer] = module.release()  # noqa: SLF001  the whole layer may go
            modules.append(module)
        other = cls.__new__(cls)
        other.__dict__.update(copy.copy(decoder).__dict__)
        other._layers = _Gathered(modules)  # type: ignore[assignment]  # noqa: SLF001
        if kind != "cpu":
            other.device = torch.device(device)
            other._embed = decoder._embed.to(device)  # noqa: SLF001
            other.rotary = copy.copy(decoder.rotary)
            other.rotary.device = other.device
            other.rotary._build(other.shape.context)  # noqa: SLF001
        return other

    @contextmanager
    def held(self, layer: int) -> Iterator[None]:
        """Gather `layer`, start gathering the next, and give this one up at the end; all processes together."""
        gathered: Any = self._layers
        modules: Sequence[FSDPModule] = gathered.modules
        modules[layer].unshard()
        if layer + 1 < len(modules):
            modules[layer + 1].unshard(async_op=True)
        gathered.held = layer
        try:
            yield
        finally:
            gathered.held = None
            modules[layer].reshard()

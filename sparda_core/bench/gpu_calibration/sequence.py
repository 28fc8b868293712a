"""Kernels in turn, as a decode step has them: a decoder's layers without selection and attention.

A kernel that follows another one takes longer than one that follows itself, whose code and addresses are still at
hand; kernels that start early, as a step is shipped, take some of that back. What is left is the launch's.
"""

from __future__ import annotations

import functools
from typing import Any

import attrs
import torch

from sparda_core.bench.gpu_calibration.beside import Subject
from sparda_core.bench.gpu_calibration.pool import device_of
from sparda_core.bench.gpu_calibration.scenes import Scene
from sparda_core.bench.gpu_calibration.sizes import Sizes
from sparda_core.bench.gpu_calibration.small_kernels import entries_of, store_of
from sparda_core.kernels.append.store import Store
from sparda_core.kernels.early import early_of
from sparda_core.models.device_decoder import DeviceDecoder, DeviceParts
from sparda_core.models.synthetic import synthetic_model

Row = dict[str, Any]
#: Launches of a layer: norm, product, rotary, output, norm, product, gate, product.
LAUNCHES = 8
#: Words of the decoder's vocabulary, which no kernel here reads.
_VOCABULARY = 1024


def measure(sizes: Sizes) -> list[Row]:
    """Rows of (rows, launches of a layer, microseconds of a layer)."""
    device = device_of()
    vocabulary = min(_VOCABULARY, sizes.shape.vocab)
    shape = attrs.evolve(sizes.shape, layers=sizes.layers, vocab=vocabulary, tied_embeddings=True)
    model = synthetic_model(shape, device=device, dtype=getattr(torch, sizes.dtype), seed=0)
    decoder = DeviceDecoder(model.decoder, max(sizes.batches), tokens=sizes.context, early=early_of(device, None))
    rows: list[Row] = []
    for batch in sizes.batches:
        scene = Scene(sizes, batch)
        step = functools.partial(_layers, decoder.parts(scene.position), sizes, entries_of(scene), store_of(scene))
        subject = Subject.of("layers in turn", batch, [step], sizes.beside_us / 2)
        us = [one / sizes.layers for one in subject.alone_us(sizes.repeats)]
        rows.append({"rows": batch, "launches": LAUNCHES, "us_per_layer": us})
    return rows


def _layers(parts: DeviceParts, sizes: Sizes, entries: dict[str, torch.Tensor], store: Store) -> None:
    """All layers in turn, without selection and attention."""
    for layer in range(sizes.layers):
        parts.project(layer)
        parts.rotate_append(layer, **entries, spec=sizes.spec, store=store)
        parts.output(layer, parts.query)
        parts.mlp(layer)

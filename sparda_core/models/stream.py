"""Writing safetensors a tensor at a time: the header is known from shapes alone, so no more than one is in memory.

The format (a length, a JSON header, the bytes) is that of https://huggingface.co/docs/safetensors; its own library
writes only what is in memory whole.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from sparda_core.files import whole_file

_NAMES = {torch.float32: "F32", torch.float64: "F64", torch.bfloat16: "BF16", torch.float16: "F16"}
#: What a header spells, as a dtype.
DTYPES = {name: dtype for dtype, name in _NAMES.items()}

#: Called as (name, tensors written, tensors in all).
OnTensor = Callable[[str, int, int], None]


def stream_tensors(
    path: Path,
    sizes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, torch.dtype],
    read: Callable[[str], torch.Tensor],
    *,
    metadata: Mapping[str, str],
    on_tensor: OnTensor | None = None,
) -> None:
    """Write `path` in one step; its folder must be there.

    sizes, dtypes  of every tensor; they are written in this order
    read           a tensor by name, of that size and dtype; asked for once each, and let go before the next
    raises         OSError when it cannot be written, ValueError for a tensor of another size or dtype; nothing is left
    """
    described: dict[str, object] = {"__metadata__": dict(metadata)}
    place = 0
    for name, size in sizes.items():
        end = place + math.prod(size) * dtypes[name].itemsize
        described[name] = {"dtype": _NAMES[dtypes[name]], "shape": list(size), "data_offsets": [place, end]}
        place = end
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with whole_file(path) as part, part.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for done, (name, size) in enumerate(sizes.items(), 1):
            tensor = read(name)
            if tuple(tensor.shape) != tuple(size) or tensor.dtype != dtypes[name]:
                raise ValueError(f"{name} is {tuple(tensor.shape)} of {tensor.dtype}, was announced otherwise")
            file.write(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
            if on_tensor is not None:
                on_tensor(name, done, len(sizes))

"""A base model into a directory of safetensors, in any dtype that holds it: from such a directory, or from a GGUF."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import torch

from sparda_core.errors import ConfigError, WeightsError
from sparda_core.files import parse_json, read_document, whole_folder
from sparda_core.models.config import DecoderConfig
from sparda_core.models.files import stays_inside
from sparda_core.models.gguf import read_gguf
from sparda_core.models.safetensors_dir import read_directory
from sparda_core.models.stream import OnTensor, stream_tensors
from sparda_core.models.tokenizer import tokenizer_from_gguf
from sparda_core.models.weights import check_narrowed, some

#: Bytes of one file of weights; a larger model is written as several with an index.
SHARD_BYTES = 4 * 10**9
#: What is copied as it is: tokenizer, chat template, generation settings, the family's own code. Never weights.
_COPIED = frozenset({".json", ".txt", ".model", ".jinja", ".py"})
_NOT_COPIED = frozenset({"config.json", "model.safetensors.index.json", "pytorch_model.bin.index.json"})


@attrs.frozen(kw_only=True)
class ConvertedModel:
    """The folder that was written, its weight files, and how many tensors and bytes of them."""

    path: Path
    files: tuple[str, ...]
    tensors: int
    weight_bytes: int
    dtype: str


def convert_model(
    source: Path,
    target: Path,
    *,
    dtype: torch.dtype | None = None,
    instead: Mapping[str, torch.Tensor] | None = None,
    notes: Mapping[str, str] | None = None,
    shard_bytes: int = SHARD_BYTES,
    on_tensor: OnTensor | None = None,
) -> ConvertedModel:
    """Write `source` into the new folder `target`; whole, or nothing of it is left.

    dtype    None: as stored (float32 from a GGUF)
    instead  tensors by name that take the place of the source's, of the same shapes
    notes    further files of the folder, by name: what they say
    A tensor is read, converted and written before the next; only a GGUF, whose numbers are packed, is read whole.
    raises  ConfigError where `target` is there already, WeightsError for what load_model refuses, OSError when it
            cannot be written
    """
    if target.exists():
        raise ConfigError(f"out={str(target)!r} exists; name a folder that does not")
    settings, weights, dtypes, more = _read(source, dtype)
    if instead is not None:
        weights = _Instead(weights, instead, dtypes, f"weights={str(source)!r}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(target) as part:
        (part / "config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
        for name, content in more:
            (part / name).write_bytes(content)
        for name, text in (notes or {}).items():
            (part / name).write_text(text, encoding="utf-8")
        files = _write_weights(part, weights, dtypes, shard_bytes, on_tensor)
    sizes = {name: weights.sizes[name] for name in dtypes}
    return ConvertedModel(
        path=target, files=files, tensors=len(dtypes), dtype=settings["dtype"],
        weight_bytes=sum(_bytes(sizes[name], kind) for name, kind in dtypes.items()),
    )  # fmt: skip


class _Converted(Mapping[str, torch.Tensor]):
    """Tensors in memory, converted as they are asked for."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype, source: str) -> None:
        self._tensors, self._dtype, self._source = tensors, dtype, source
        self.sizes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}

    def __getitem__(self, name: str) -> torch.Tensor:
        converted = self._tensors[name].to(self._dtype)
        check_narrowed(name, self._tensors[name], converted, source=self._source)
        return converted

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class _Instead(_Converted):
    """Some of a source's tensors, and others in the place of the rest."""

    def __init__(
        self, source: Any, instead: Mapping[str, torch.Tensor], dtypes: Mapping[str, torch.dtype], said: str
    ) -> None:
        wrong = [name for name, w in instead.items() if source.sizes.get(name) != tuple(w.shape)]
        if wrong:
            raise WeightsError(f"{said}: {some(wrong)} cannot be replaced: it has no such tensors of these shapes")
        self._other, self._new, self._dtypes, self._source = source, instead, dtypes, said
        self.sizes = source.sizes

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._new:
            return self._other[name]  # type: ignore[no-any-return]
        converted = self._new[name].to("cpu", self._dtypes[name])
        check_narrowed(name, self._new[name], converted, source=self._source)
        return converted

    def __iter__(self) -> Iterator[str]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)


def _read(source: Path, dtype: torch.dtype | None) -> tuple[dict[str, Any], Any, dict[str, torch.dtype], Any]:
    """Settings, tensors by name with `sizes`, their dtypes, and files to write beside: (name, content)."""
    if not source.is_dir():
        read = read_gguf(source)
        kind, said = dtype or torch.float32, f"weights={str(source)!r}"
        weights = _Converted(read.tensors, kind, said)
        tokenizer = tokenizer_from_gguf(read.fields, source=said).to_json().encode()
        return _settings_of(read.config, kind), weights, dict.fromkeys(weights, kind), [("tokenizer.json", tokenizer)]
    _, stored = read_directory(source, dtype=dtype)
    dtypes: dict[str, torch.dtype] = {}
    for name, kept in stored.dtypes.items():
        if kept is None:
            raise WeightsError(f"weights={str(source)!r}: {name} holds no floating-point numbers of at least 16 bits")
        dtypes[name] = dtype or kept
    settings = parse_json(read_document(source / "config.json"))
    for key in ("torch_dtype", "dtype"):
        settings[key] = str(max(dtypes.values(), key=lambda k: k.itemsize)).removeprefix("torch.")
    beside = sorted(p for p in source.iterdir() if p.suffix in _COPIED and p.name not in _NOT_COPIED and p.is_file())
    linked = [path.name for path in beside if not stays_inside(source, path.name)]
    if linked:
        raise WeightsError(
            f"weights={str(source)!r}: {some(linked)} are links to files outside it, which are not copied; "
            "put the files themselves there, or remove the links"
        )
    return settings, stored, dtypes, ((path.name, path.read_bytes()) for path in beside)


def _write_weights(
    folder: Path, weights: Any, dtypes: Mapping[str, torch.dtype], shard_bytes: int, on_tensor: OnTensor | None
) -> tuple[str, ...]:
    shards = _shards(weights.sizes, dtypes, shard_bytes)
    place: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = "model.safetensors" if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        before = len(place)

        def told(name: str, done: int, _: int, before: int = before) -> None:
            if on_tensor is not None:
                on_tensor(name, before + done, len(dtypes))

        stream_tensors(
            folder / file, {name: weights.sizes[name] for name in names}, dtypes, weights.__getitem__,
            metadata={"format": "pt"}, on_tensor=told,
        )  # fmt: skip
        place |= dict.fromkeys(names, file)
    if len(shards) > 1:
        total = sum(_bytes(weights.sizes[name], kind) for name, kind in dtypes.items())
        index = {"metadata": {"total_size": total}, "weight_map": place}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")
    return tuple(dict.fromkeys(place.values()))


def _shards(
    sizes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, torch.dtype], most: int
) -> list[list[str]]:
    shards: list[list[str]] = []
    room = 0
    for name, kind in dtypes.items():
        need = _bytes(sizes[name], kind)
        if need > room or not shards:
            shards.append([])
            room = most
        shards[-1].append(name)
        room -= need
    return shards


def _bytes(size: tuple[int, ...], kind: torch.dtype) -> int:
    values = 1
    for side in size:
        values *= side
    return values * kind.itemsize


def _settings_of(config: DecoderConfig, kind: torch.dtype) -> dict[str, Any]:
    """The config.json of a plain Llama."""
    shape, dtype = config.shape, str(kind).removeprefix("torch.")
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "torch_dtype": dtype,
        "dtype": dtype, "num_hidden_layers": shape.layers, "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn, "num_attention_heads": shape.q_heads, "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim, "vocab_size": shape.vocab, "max_position_embeddings": shape.context,
        "tie_word_embeddings": shape.tied_embeddings, "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta, "bos_token_id": config.bos_id, "eos_token_id": config.eos_id,
        "pad_token_id": config.pad_id,
    }  # fmt: skip

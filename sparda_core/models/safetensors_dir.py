"""Read a directory as Hugging Face tools write it: config.json and one or more safetensors files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from safetensors import SafetensorError, safe_open

from sparda_core.errors import ConfigError, WeightsError
from sparda_core.files import parse_json, read_document
from sparda_core.models.config import DecoderConfig
from sparda_core.models.families.nosa import is_nosa, nosa
from sparda_core.models.families.registry import read_config
from sparda_core.models.families.settings import Settings
from sparda_core.models.files import stays_inside
from sparda_core.models.stream import DTYPES
from sparda_core.models.weights import (
    EMBED,
    HEAD,
    check_layers,
    check_narrowed,
    check_shapes,
    check_values,
    expected_tensors,
    some,
)

_HINT = "use a complete checkpoint"
#: Buffers of old checkpoints that our decoder makes itself, and projections that are no part of the base model.
_BESIDE = (".rotary_emb.inv_freq", ".q_future_proj.weight", ".q_curr_proj.weight")


class DirectoryWeights(Mapping[str, torch.Tensor]):
    """Tensors of a checkpoint by name; each is read, checked and converted when it is asked for, and not kept.

    sizes, dtypes  shape of every tensor and the dtype it is stored in (None: no floats of 16 bits or more)
    Whoever takes it tensor by tensor never holds a second copy of the model.
    """

    def __init__(
        self, files: Sequence[Path], *, source: str, dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
    ) -> None:  # fmt: skip
        """dtype None: as stored. Raises WeightsError for a file that cannot be read, or a name in two of them."""
        self._source, self._dtype, self._device = source, dtype, torch.device(device)
        self.sizes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, torch.dtype | None] = {}
        self._files: dict[str, Any] = {}
        for path in files:
            for name, size, kind, file in _headers(path):
                if name in self._files:
                    raise WeightsError(f"{source}: tensor {name} is in two files, {path.name} the second; {_HINT}")
                self.sizes[name], self.dtypes[name], self._files[name] = size, kind, file

    def __getitem__(self, name: str) -> torch.Tensor:
        """Read one tensor; raises WeightsError unless it holds finite numbers of at least 16 bits."""
        try:
            stored: torch.Tensor = self._files[name].get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise WeightsError(f"{self._source}: tensor {name} cannot be read ({error}); restore the file") from error
        check_values({name: stored}, source=self._source, hint="restore the file")
        placed = stored.to(self._device, self._dtype or stored.dtype)
        check_narrowed(name, stored, placed, source=self._source)
        return placed

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def on(self, device: torch.device | str) -> DirectoryWeights:
        """The same, to be placed on another device."""
        return self._but(list(self), torch.device(device))

    def only(self, names: Sequence[str]) -> DirectoryWeights:
        """The same with fewer names."""
        return self._but(names, self._device)

    def _but(self, names: Sequence[str], device: torch.device) -> DirectoryWeights:
        fewer = DirectoryWeights([], source=self._source, dtype=self._dtype, device=device)
        fewer.sizes = {name: self.sizes[name] for name in names}
        fewer.dtypes = {name: self.dtypes[name] for name in names}
        fewer._files = {name: self._files[name] for name in names}
        return fewer


def _headers(path: Path) -> Iterator[tuple[str, tuple[int, ...], torch.dtype | None, Any]]:
    """Name, shape, dtype and open file of every tensor."""
    try:
        file: Any = safe_open(path, framework="pt")
        for name in file.keys():  # noqa: SIM118
            part = file.get_slice(name)
            yield name, tuple(part.get_shape()), DTYPES.get(part.get_dtype()), file
    except (OSError, SafetensorError, ValueError) as error:  # ValueError: a name that no file can have
        raise WeightsError(f"weights={str(path)!r} cannot be read ({error}); restore the file") from error


def read_constants(path: Path) -> DecoderConfig:
    """Only what config.json and generation_config.json say; raises WeightsError as `read_directory` does."""
    return _config(path, f"weights={str(path)!r}")


def read_directory(
    path: Path, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
) -> tuple[DecoderConfig, DirectoryWeights]:
    """Constants, and tensors by checkpoint name, read as they are asked for.

    dtype   of the tensors; None: as they are stored
    raises  WeightsError if a file is absent or unreadable, the family or something in it is not supported, or tensors
            are missing, have another shape, or are there and belong to no part of the decoder; names are listed.
    """
    source = f"weights={str(path)!r}"
    config = _config(path, source)
    found = DirectoryWeights(_files(path), source=source, dtype=dtype, device=device)
    if is_nosa(found):
        config = nosa(config, Settings(_json(path / "config.json"), source, path.name))
    check_layers(config.shape, len(found), source=source, hint=_HINT)
    expected = expected_tensors(config)
    check_shapes(found, expected, source=source, hint=_HINT)
    beside = [name for name in found if name not in expected and not name.endswith(_BESIDE)]
    if config.shape.tied_embeddings and HEAD in beside:
        beside.remove(HEAD)
        if not torch.equal(found[HEAD], found[EMBED]):
            raise WeightsError(f"{source}: tie_word_embeddings is true, but {HEAD} differs from {EMBED}; set it false")
    if beside:
        raise WeightsError(f"{source}: {len(beside)} tensors are no part of this family ({some(beside)}); {_HINT}")
    return config, found.only(list(expected))


def _config(path: Path, source: str) -> DecoderConfig:
    config = read_config(Settings(_json(path / "config.json"), source, path.name))
    beside = path / "generation_config.json"
    if not beside.exists():
        return config
    more = Settings(_json(beside), f"weights={str(beside)!r}", path.name).ids("eos_token_id")
    ends = tuple(dict.fromkeys((*config.end_ids, *more)))
    try:
        return attrs.evolve(config, end_ids=ends, eos_id=ends[0] if ends else None)
    except ConfigError as error:
        raise WeightsError(f"weights={str(beside)!r}: {error}") from error


def _json(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(read_document(path))
    except (OSError, ValueError) as error:
        raise WeightsError(f"{str(path)!r} cannot be read ({error}); {_HINT}") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{str(path)!r} holds {type(content).__name__}, must be an object; {_HINT}")
    return content


def _files(path: Path) -> list[Path]:
    whole, index = path / "model.safetensors", path / "model.safetensors.index.json"
    if whole.exists():
        return [whole]
    if not index.exists():
        raise WeightsError(f"{str(path)!r} has neither {whole.name} nor {index.name}; {_HINT}")
    parts = _json(index).get("weight_map")
    if not isinstance(parts, dict) or not all(isinstance(name, str) and name for name in parts.values()):
        raise WeightsError(f"{str(index)!r} has no weight_map from tensors to files; {_HINT}")
    names = sorted(set(parts.values()))
    outside = [name for name in names if Path(name).name != name]
    if outside:
        raise WeightsError(f"{str(index)!r} names files outside its directory: {some(outside)}; {_HINT}")
    try:
        linked = [name for name in names if not stays_inside(path, name)]
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a name that no file can have
        raise WeightsError(f"{str(index)!r} names files that cannot be found ({error}); {_HINT}") from error
    if linked:
        raise WeightsError(
            f"{str(index)!r}: {some(linked)} are links to files outside its directory; "
            "name the directory where the files are, or copy them"
        )
    return [path / name for name in names]

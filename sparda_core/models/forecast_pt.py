"""The published release's Forecast checkpoint: a .pt file, read without ever running what a pickle asks for.

`torch.save` of a dictionary: `model_state_dict` holds one projection a layer (the last one forecasts nothing and is
never read) and layer 0's own; beside it the step, the sparse_config, the base model's path, and the states of
optimiser, schedule and random streams, which only a resumed training wants.
"""

from __future__ import annotations

import io
import json
import pickle
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch

from sparda_core.errors import WeightsError
from sparda_core.files import parse_json, write_whole
from sparda_core.models.families.minicpm import read_block_spec
from sparda_core.models.families.settings import Settings
from sparda_core.models.forecast_names import find_forecast, following_key
from sparda_core.models.weights import some
from sparda_core.shapes import BlockSpec

_HINT = "use a checkpoint as the release's training writes it"
#: What a checkpoint says beside its tensors, as far as it is plain.
_SAID = (
    "step", "micro_batches_seen", "gradient_accumulation_steps", "world_size", "accuracy", "base_model_path",
    "sparse_config",
)  # fmt: skip


def is_pt(path: Path) -> bool:
    """Whether a file is what torch.save writes: a zip archive, or the pickle of versions before 1.6.

    Safetensors begin with the length of a header, which may be any number, and then the header's brace.
    """
    with path.open("rb") as file:
        begin = file.read(9)
    return begin[8:] != b"{" and (begin[:4] == b"PK\x03\x04" or begin[:1] == b"\x80")


def read_pt(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Forecast tensors by their one name, mapped from disk, and what the checkpoint says of its training.

    raises  WeightsError for a damaged file, one of another format, or one that holds any object but tensors, numbers,
            texts, lists and dictionaries (arrays of numpy, as in the states of random streams, are plain too)
    """
    source = f"forecast={str(path)!r}"
    _check_archive(path, source)
    try:
        with torch.serialization.safe_globals(_plain_arrays()), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected pickle protocol")
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"{source} holds objects that only running its code could build ({_strange(path)}): not read; {_HINT}"
        ) from error
    except Exception as error:  # torch's reader meets a malformed pickle with whatever comes up
        raise WeightsError(f"{source} is no complete checkpoint ({type(error).__name__}: {error}); {_HINT}") from error
    if not isinstance(content, Mapping):
        raise WeightsError(f"{source} holds {type(content).__name__}, must be a dictionary; {_HINT}")
    tensors = find_forecast(content, source=source)
    strange = [name for name, tensor in tensors.items() if not _is_plain_tensor(tensor)]
    if strange:
        raise WeightsError(f"{source}: {some(strange)} are no plain tensors; {_HINT}")
    return tensors, _metadata(content, source)


def write_pt(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, Any]) -> None:
    """Write `path` in one step as the release's consumers read it; raises OSError when it cannot be written."""
    release, ours = metadata.get("release"), {key: value for key, value in metadata.items() if key != "release"}
    said = {key: value for key, value in release.items() if key in _SAID} if isinstance(release, Mapping) else {}
    try:
        if "sparse_config" not in said and "block_spec" in ours:
            said["sparse_config"] = _sparse_config(BlockSpec(**ours["block_spec"]))
        said.setdefault("step", int(ours.get("steps", 0)))
    except (ArithmeticError, TypeError, ValueError) as error:
        raise WeightsError(f"metadata of {str(path)!r}: block_spec or steps are none ({error}); {_HINT}") from error
    said.setdefault("base_model_path", str(ours.get("base_model", "")))
    said["sparda"] = json.dumps(ours, sort_keys=True)
    # A clone: torch writes the whole of what a view lies in.
    content = {**said, "model_state_dict": {name: tensor.clone() for name, tensor in tensors.items()}}
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not into the file: of a full disk torch tells "iostream error", and not which file.
    made = io.BytesIO()
    torch.save(content, made)
    write_whole(path, made.getvalue())


def blank_last(tensors: Mapping[str, torch.Tensor], layers: int) -> dict[str, torch.Tensor]:
    """The same with zeros for the last of `layers` layers, whose projection forecasts nothing."""
    like = next(iter(tensors.values()))
    return {**tensors, following_key(layers - 1): torch.zeros_like(like)}


def _check_archive(path: Path, source: str) -> None:
    """Refuse, before anything is read, an archive whose parts are larger than itself: nothing in it is compressed."""
    try:
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise WeightsError(
            f"{source} is no archive as torch.save of PyTorch 1.6 and later writes it ({error}); {_HINT}"
        ) from error
    packed = [part.filename for part in parts if part.compress_type != zipfile.ZIP_STORED]
    if packed or sum(part.file_size for part in parts) > path.stat().st_size:
        raise WeightsError(f"{source} claims to hold more than its {path.stat().st_size} bytes; {_HINT}")


def _plain_arrays() -> list[Any]:
    """What numpy's arrays of numbers are rebuilt with: the states of its random streams are such arrays."""
    kinds = {type(np.dtype(kind)) for kind in ("u1", "u4", "u8", "i4", "i8", "f4", "f8", "b1")}
    rebuild = np.empty(0).__reduce__()[0]
    old = [(rebuild, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    return [*old, np.ndarray, np.dtype, *kinds]


def _strange(path: Path) -> str:
    """Names of what a pickle asks for, beyond what is plain."""
    try:
        asked = torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
    except Exception:  # noqa: BLE001 - as above
        return "its pickle is malformed"
    return ", ".join(sorted(name for name in asked if not name.startswith("numpy."))[:8]) or "its pickle is malformed"


def _metadata(content: Mapping[Any, Any], source: str) -> dict[str, Any]:
    release = {key: content[key] for key in _SAID if key in content and _is_plain(content[key])}
    known: dict[str, Any] = {"release": release}
    if isinstance(content.get("sparda"), str):  # written by us: everything that our own format says
        try:
            return {**parse_json(content["sparda"]), **known}
        except (TypeError, ValueError) as error:
            raise WeightsError(f"{source}: its metadata is no JSON object ({error}); {_HINT}") from error
    if isinstance(release.get("base_model_path"), str):
        known["base_model"] = release["base_model_path"].rstrip("/").rsplit("/", 1)[-1]
    if isinstance(release.get("step"), int):
        known["steps"] = release["step"]
    sparse = release.get("sparse_config")
    if isinstance(sparse, dict) and {"window_size", "topk"} <= set(sparse):
        spec = read_block_spec(Settings(release, "forecast", ""), default_window=0, default_topk=0)
        if spec is not None:
            known["block_spec"] = attrs.asdict(spec)
    return known


def _is_plain_tensor(tensor: torch.Tensor) -> bool:
    """Whether every value lies in the file: a tensor may also repeat one value for as long as it says."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        return False
    return tensor.numel() * tensor.itemsize <= tensor.untyped_storage().nbytes()


def _is_plain(value: object, depth: int = 4) -> bool:
    if isinstance(value, dict):
        return depth > 0 and all(isinstance(k, str) and _is_plain(v, depth - 1) for k, v in value.items())
    if isinstance(value, list | tuple):
        return depth > 0 and all(_is_plain(v, depth - 1) for v in value)
    return value is None or isinstance(value, bool | int | float | str)


def _sparse_config(spec: BlockSpec) -> dict[str, int]:
    """The release's names: its topk leaves the local window out."""
    return {
        "kernel_size": spec.window, "kernel_stride": spec.stride, "init_blocks": spec.sink, "block_size": spec.block,
        "window_size": spec.local * spec.block, "topk": spec.budget - spec.local,
    }  # fmt: skip

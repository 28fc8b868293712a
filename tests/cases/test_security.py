"""Files made to do harm: code in a pickle, sizes and bombs, paths that leave their folder. Refused, nothing done."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from sparda_core.distill.corpus import archives, rdata
from sparda_core.distill.corpus.archives import read_members
from sparda_core.distill.corpus.folder import read_split
from sparda_core.distill.corpus.rdata import read_texts
from sparda_core.errors import ConfigError, ProfileError, RecordingError, SpardaError, WeightsError
from sparda_core.files import read_document
from sparda_core.models.convert_model import convert_model
from sparda_core.models.forecast_weights import load_forecast
from sparda_core.models.load import load_model
from sparda_core.models.tiny import random_forecast, random_weights
from sparda_core.selectors.recording import load
from sparda_core.simulator.profile_file import load_profile
from tests.cases.readers import DOCUMENTS, SPEC, Reader
from tests.models.gguf_files import SMALL, write_directory, write_gguf


def reader(name: str) -> Reader:
    return next(one for one in DOCUMENTS if one.name == name)


# Code -------------------------------------------------------------------------------------------------


class Hostile:
    """Unpickled, it makes a file."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.proof),)


@pytest.mark.parametrize("where", ["the whole", "beside", "for a tensor"])
def test_a_pickle_with_code_in_it_is_refused_and_nothing_runs(where: str, tmp_path: Path) -> None:
    proof, path = tmp_path / "it-ran", tmp_path / "f.pt"
    made = random_forecast(SMALL, seed=0, dtype=torch.float32).named()
    content: Any = {"model_state_dict": made, "step": 3}
    if where == "the whole":
        content = Hostile(proof)
    elif where == "beside":
        content["optimizer"] = Hostile(proof)
    else:
        content["model_state_dict"] = {**made, next(iter(made)): Hostile(proof)}
    torch.save(content, path)
    with pytest.raises(WeightsError, match=r"only running its code could build.*mkdir"):
        load_forecast(path, SMALL)
    assert not proof.exists()
    pickle.loads(pickle.dumps(Hostile(proof)))  # noqa: S301 - to see that it would have run
    assert proof.exists()


@pytest.mark.parametrize("name", ["recording", "weights", "profile"])
def test_a_pickle_under_another_files_name_is_refused_and_nothing_runs(name: str, tmp_path: Path) -> None:
    proof, raw = tmp_path / "it-ran", pickle.dumps(Hostile(tmp_path / "it-ran"))
    write_directory(tmp_path / "m", random_weights(SMALL, seed=0, dtype=torch.float32))
    path = {
        "recording": tmp_path / "r.npz", "weights": tmp_path / "m" / "model.safetensors",
        "profile": tmp_path / "p.toml",
    }[name]  # fmt: skip
    path.write_bytes(raw)
    reads: dict[str, Callable[[], object]] = {
        "recording": lambda: load(path), "weights": lambda: load_model(path.parent),
        "profile": lambda: load_profile(path),
    }  # fmt: skip
    with pytest.raises(SpardaError):
        reads[name]()
    assert not proof.exists()


def test_an_array_of_objects_in_a_recording_is_refused_and_nothing_runs(tmp_path: Path) -> None:
    path = reader("recording").made(tmp_path)
    with np.load(path) as arrays:
        held = dict(arrays)
    held["meta"] = np.array([Hostile(tmp_path / "it-ran")], dtype=object)
    with path.open("wb") as file:
        np.savez(file, **held)  # numpy pickles what it holds
    with pytest.raises(RecordingError, match=r"meta\.npy is object"):
        load(path)
    assert not (tmp_path / "it-ran").exists()


# Paths ------------------------------------------------------------------------------------------------


def sharded(folder: Path) -> Path:
    write_directory(folder, random_weights(SMALL, seed=0, dtype=torch.float32), shards=2)
    return folder / "model.safetensors.index.json"


@pytest.mark.parametrize(
    "name", ["../part-0.safetensors", "/part-0.safetensors", "a/../../part-0.safetensors", "..", "."]
)
def test_an_index_that_leaves_its_folder_is_refused(name: str, tmp_path: Path) -> None:
    index = sharded(tmp_path / "m")
    (tmp_path / "part-0.safetensors").write_bytes((tmp_path / "m" / "part-0.safetensors").read_bytes())
    content = json.loads(index.read_text())
    place = f"{tmp_path}{name}" if name.startswith("/") else name
    content["weight_map"] = dict.fromkeys(content["weight_map"], place)
    index.write_text(json.dumps(content))
    with pytest.raises(WeightsError):
        load_model(tmp_path / "m")


def test_an_index_whose_file_is_a_link_out_of_its_folder_is_refused_and_within_it_is_not(tmp_path: Path) -> None:
    sharded(tmp_path / "m")
    part, outside = tmp_path / "m" / "part-0.safetensors", tmp_path / "secret.safetensors"
    part.rename(outside)
    part.symlink_to(outside)
    with pytest.raises(WeightsError, match=r"part-0\.safetensors are links to files outside its directory"):
        load_model(tmp_path / "m")
    part.unlink()
    outside.rename(tmp_path / "m" / "elsewhere")
    part.symlink_to("elsewhere")
    assert load_model(tmp_path / "m").decoder.shape.layers == SMALL.layers
    part.unlink()
    part.symlink_to(part.name)
    with pytest.raises(WeightsError):
        load_model(tmp_path / "m")


def test_the_cache_of_the_hub_with_its_links_to_blobs_loads(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "rev", tmp_path / "models--a--b" / "blobs"
    blobs.mkdir(parents=True)
    snapshot.parent.mkdir()
    sharded(snapshot)
    for number, file in enumerate(sorted(snapshot.iterdir())):
        file.rename(blobs / str(number))
        file.symlink_to(Path("..") / ".." / "blobs" / str(number))
    assert load_model(snapshot).decoder.shape.layers == SMALL.layers
    assert convert_model(snapshot, tmp_path / "out").tensors > 0


def test_a_conversion_copies_no_file_from_elsewhere(tmp_path: Path) -> None:
    """A link in a model that somebody sent would put a file of this machine into the model that is sent on."""
    write_directory(tmp_path / "m", random_weights(SMALL, seed=0, dtype=torch.float32))
    (tmp_path / "key").write_text("secret")
    (tmp_path / "m" / "special_tokens_map.json").symlink_to(tmp_path / "key")
    with pytest.raises(WeightsError, match=r"special_tokens_map\.json are links"):
        convert_model(tmp_path / "m", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", ["../secret.txt", "/etc/hostname", "held-out/../../secret.txt"])
def test_a_manifest_leads_to_its_own_folders_alone(place: str, tmp_path: Path) -> None:
    manifest = reader("texts").made(tmp_path / "texts")
    (tmp_path / "secret.txt").write_text("s")
    content = json.loads(manifest.read_text())
    digest = hashlib.sha256(b"s").hexdigest()
    for known in content["documents"].values():
        known |= {"path": place, "sha256": digest}
    manifest.write_text(json.dumps(content))
    with pytest.raises(RecordingError, match="is damaged"):
        read_split(tmp_path / "texts", "train")


def test_an_archives_members_are_read_and_never_written(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for name, kind, data in (("../../up.txt", tarfile.REGTYPE, b"up"), ("link.txt", tarfile.SYMTYPE, b"")):
            info = tarfile.TarInfo(name)
            info.size, info.type, info.linkname = len(data), kind, "/etc/hostname"
            tar.addfile(info, io.BytesIO(data))
    assert read_members(path, ["*"]) == {"../../up.txt": b"up"}
    assert {file.name for file in tmp_path.iterdir()} == {"a.tar"}


# Sizes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [2**63, 2**62, 2**40, 10**9])
def test_a_header_longer_than_its_file_is_refused(length: int, tmp_path: Path) -> None:
    write_directory(tmp_path / "m", random_weights(SMALL, seed=0, dtype=torch.float32))
    path = tmp_path / "m" / "model.safetensors"
    path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])
    with pytest.raises(WeightsError, match="cannot be read"):
        load_model(tmp_path / "m")


@pytest.mark.parametrize("change", ["overlap", "huge", "negative", "nested"])
def test_a_header_that_claims_what_the_file_has_not_is_refused(change: str, tmp_path: Path) -> None:
    write_directory(tmp_path / "m", random_weights(SMALL, seed=0, dtype=torch.float32))
    path = tmp_path / "m" / "model.safetensors"
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    name = next(iter(key for key in header if key != "__metadata__"))
    if change == "overlap":
        header = {key: header[name] | {"data_offsets": header[name]["data_offsets"]} for key in header}
    elif change == "huge":
        header[name]["shape"] = [2**40, 2**40]
    elif change == "negative":
        header[name]["data_offsets"] = [8, 0]
    text = json.dumps(header) if change != "nested" else '{"a":' * 100_000
    path.write_bytes(struct.pack("<Q", len(text)) + text.encode() + raw[8 + size :])
    with pytest.raises(WeightsError):
        load_model(tmp_path / "m")


def test_tensors_of_a_gguf_that_all_lie_in_one_place_are_refused_before_they_are_expanded(tmp_path: Path) -> None:
    """Named a thousand times, a gigabyte of a file would become a thousand of memory."""
    path = tmp_path / "small.gguf"
    write_gguf(path)
    raw = bytearray(path.read_bytes())
    name = b"blk.0.attn_norm.weight"
    at = raw.index(name) + len(name)
    # As long as the embedding and at its place: two axes' worth of values on one axis.
    assert struct.unpack_from("<I", raw, at) == (1,)
    raw[at + 4 : at + 12] = struct.pack("<Q", SMALL.vocab * SMALL.hidden)
    raw[at + 16 : at + 24] = struct.pack("<Q", 0)
    other = b"blk.0.ffn_norm.weight"
    at = raw.index(other) + len(other)
    raw[at + 4 : at + 12] = struct.pack("<Q", SMALL.vocab * SMALL.hidden)
    raw[at + 16 : at + 24] = struct.pack("<Q", 0)
    path.write_bytes(raw)
    with pytest.raises(WeightsError, match="they overlap"):
        load_model(path)


@pytest.mark.parametrize("table", ["tokens", "merges", "token_type"])
def test_a_gguf_whose_tokenizer_is_of_other_kinds_is_refused(table: str) -> None:
    from sparda_core.models.tokenizer import tokenizer_from_gguf

    fields: dict[str, Any] = {
        "tokenizer.ggml.tokens": ["a", "b", "ab"], "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.token_type": [1, 1, 1], "tokenizer.ggml.pre": "smollm",
    }  # fmt: skip
    assert tokenizer_from_gguf(fields, source="s").vocab == 3
    for wrong in (5, [5], ["a"], [["a"]], None, "abc"):
        if table != "merges" or wrong != "abc":
            with pytest.raises(WeightsError, match=r"tables are damaged|is no list of"):
                tokenizer_from_gguf(fields | {f"tokenizer.ggml.{table}": wrong}, source="s")


def spoiled_recording(path: Path, **arrays: Any) -> None:
    with np.load(path) as file:
        held = dict(file)
    with path.open("wb") as out:
        np.savez_compressed(out, **(held | arrays))


def test_positions_that_lie_ages_apart_take_no_table_of_all_between(tmp_path: Path) -> None:
    path = reader("recording").made(tmp_path)
    with np.load(path) as file:
        selections, positions = file["selections"].copy(), file["positions"].copy()
    far = 2**33 // SPEC.block * SPEC.block
    positions[1] = far
    last = far // SPEC.block
    selections[1] = [0, 1, 2, last - 1, last]
    spoiled_recording(path, selections=selections, positions=positions)
    load(path)  # lawful: rows are where they say
    with pytest.raises(RecordingError, match=r"span \d+ tokens"):
        load(path).steps_by_position()


def test_a_band_of_millions_is_checked_at_once(tmp_path: Path) -> None:
    """As long as the file is: every block of the band is there, and none is looked for one by one."""
    path, budget = reader("recording").made(tmp_path), 400_000
    spec = attrs.evolve(SPEC, budget=budget, sink=0, local=budget - 1)
    ids = np.broadcast_to(np.arange(budget, dtype=np.int32), (1, 1, 1, 1, budget))
    meta = {"format": 1, "model": "m", "layers": 1, "kv_heads": 1, "selector": "s", "spec": attrs.asdict(spec)}
    where = np.array([[budget * SPEC.block - 1]], np.int64)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        said = np.frombuffer(json.dumps(meta).encode(), np.uint8)
        held: dict[str, Any] = {"meta": said, "selections": ids, "positions": where}
        for name, array in held.items():
            out = io.BytesIO()
            np.save(out, array)
            archive.writestr(f"{name}.npy", out.getvalue())
    assert load(path).spec.local == budget - 1


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2, zipfile.ZIP_DEFLATED])
def test_a_recording_packed_in_any_way_and_damaged_is_refused(method: int, tmp_path: Path) -> None:
    path = reader("recording").made(tmp_path)
    with zipfile.ZipFile(path) as archive:
        held = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in held.items():
            archive.writestr(name, content)
    assert load(path).steps == 2
    raw = bytearray(path.read_bytes())
    for at in range(60, 400, 17):
        damaged = raw.copy()
        damaged[at : at + 9] = bytes(9)
        path.write_bytes(damaged)
        try:
            load(path)
        except RecordingError:
            continue
        assert load(path).steps == 2, "what was damaged is not what is read"


def test_a_recording_that_says_it_is_encrypted_is_refused(tmp_path: Path) -> None:
    path = reader("recording").made(tmp_path)
    raw = bytearray(path.read_bytes())
    at = -1
    while (at := raw.find(b"PK\x01\x02", at + 1)) >= 0:
        raw[at + 8] |= 1
    at = -1
    while (at := raw.find(b"PK\x03\x04", at + 1)) >= 0:
        raw[at + 6] |= 1
    path.write_bytes(raw)
    with pytest.raises(RecordingError, match="not a sound recording"):
        load(path)


def test_archives_and_texts_that_unpack_without_end_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (archives, rdata):
        monkeypatch.setattr(module, "MOST_BYTES", 1 << 20)
    bomb = bytes(8 << 20)
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        info = tarfile.TarInfo("x.txt")
        info.size = len(bomb)
        tar.addfile(info, io.BytesIO(bomb))
    assert (tmp_path / "a.tar.gz").stat().st_size < 1 << 17
    with pytest.raises(RecordingError, match="unpacks to more than"):
        read_members(tmp_path / "a.tar.gz", ["*"])
    assert read_members(tmp_path / "a.tar.gz", ["other"]) == {}
    with pytest.raises(RecordingError, match="unpacks to more than"):
        read_texts(zlib.compress(bomb), b"")
    with pytest.raises(RecordingError):
        read_texts(zlib.compress(b"X\n" + struct.pack(">iii", 2, 0, 0) + struct.pack(">ii", 19, 1) * 50_000), b"")
    from sparda_core.distill.corpus import extract

    monkeypatch.setattr(extract, "MOST_BYTES", 1 << 20)
    with pytest.raises(OSError, match="unpacks to more than"):
        extract._text("a.gz", gzip.compress(bomb))


def test_a_document_is_an_ordinary_file_of_bounded_size(tmp_path: Path) -> None:
    pipe = tmp_path / "p.toml"
    os.mkfifo(pipe)
    with pytest.raises(ProfileError, match="is not an ordinary file"):  # nobody will ever write into it
        load_profile(pipe)
    large = tmp_path / "large.toml"
    with large.open("wb") as file:
        file.truncate(1 << 40)  # takes no space on a disk
    with pytest.raises(ProfileError, match="holds more than"):
        load_profile(large)
    (tmp_path / "ok").write_text("x" * 10)
    assert read_document(tmp_path / "ok", most_bytes=10) == "x" * 10
    with pytest.raises(OSError, match="holds more than 9 bytes"):
        read_document(tmp_path / "ok", most_bytes=9)


def test_a_damaged_disk_dataset_is_refused_in_our_words(tmp_path: Path) -> None:
    from sparda_core.distill.sources import HuggingFace

    pytest.importorskip("datasets")
    for name, text in (("state.json", "{"), ("dataset_info.json", "[]")):
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match="cannot be read"):
        HuggingFace(tmp_path)

"""The published release's Forecast checkpoint: read whatever wraps it, never run, written back bit by bit."""

from __future__ import annotations

import collections
import os
import random
import zipfile
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from sparda_core.errors import ConfigError, WeightsError
from sparda_core.models.convert import convert_forecast
from sparda_core.models.forecast_names import OWN_KEY, following_key, known_name, own_key
from sparda_core.models.forecast_pt import is_pt, read_pt
from sparda_core.models.forecast_weights import load_forecast, save_forecast
from sparda_core.models.tiny import TINY_SHAPE, random_forecast

SIZE = (TINY_SHAPE.kv_heads * TINY_SHAPE.head_dim, TINY_SHAPE.hidden)
LAYERS = TINY_SHAPE.layers
SPARSE = {
    "kernel_size": 32, "kernel_stride": 16, "init_blocks": 1, "block_size": 64, "window_size": 2048, "topk": 64,
    "training_kernel_size": 2, "use_q_future_for_topk": True,
}  # fmt: skip


def projections(*, layers: int = LAYERS, dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    """One a layer, the last one too, and layer 0's own: 33 for 32 layers."""
    source = torch.Generator().manual_seed(3)
    names = [*(following_key(layer) for layer in range(layers)), OWN_KEY]
    return {name: torch.randn(SIZE, generator=source).to(dtype) for name in names}


def checkpoint(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """All that the release's training saves: states of optimiser, schedule and random streams too."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], betas=(0.9, 0.95))
    weight.grad = torch.ones(3)
    optimizer.step()
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    streams = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}  # noqa: NPY002
    return {
        "step": 2000, "micro_batches_seen": 8000, "gradient_accumulation_steps": 4, "world_size": 8,
        "model_state_dict": tensors, "optimizer_state_dict": optimizer.state_dict(),
        "indexer_optimizer_state_dict": optimizer.state_dict(), "scheduler_state_dict": schedule.state_dict(),
        "sparse_config": SPARSE, "base_model_path": "/models/openbmb/MiniCPM4.1-8B", "rng_state": streams,
        "rng_state_by_rank": [streams, {**streams, "cuda": [torch.zeros(16, dtype=torch.uint8)]}],
    }  # fmt: skip


def write(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


def test_a_whole_checkpoint_of_the_release_is_read_with_its_blocks_and_its_step(tmp_path: Path) -> None:
    tensors = projections()
    path = write(tmp_path / "ckpt-2000.pt", checkpoint(tensors))
    forecast = load_forecast(path, TINY_SHAPE)
    assert torch.equal(forecast.own, tensors[OWN_KEY])
    assert [torch.equal(w, tensors[following_key(i)]) for i, w in enumerate(forecast.following)] == [True, True]
    assert forecast.metadata["base_model"] == "MiniCPM4.1-8B"
    assert forecast.metadata["steps"] == 2000
    assert forecast.metadata["block_spec"] == {
        "block": 64, "window": 32, "stride": 16, "sink": 1, "local": 32, "budget": 96,
    }  # fmt: skip


def test_the_published_names_are_thirty_three_for_thirty_two_layers() -> None:
    names = list(projections(layers=32))
    assert len(names) == 33
    assert names[31] == "model.layers.31.self_attn.q_future_proj.weight"
    assert names[32] == "model.layers.0.self_attn.q_curr_proj.weight"
    assert [known_name(name) for name in names] == names


@pytest.mark.parametrize(
    "said",
    [
        "module.{}", "_orig_mod.{}", "module._orig_mod.{}", "base.{}", "_fsdp_wrapped_module.{}",
    ],
)  # fmt: skip
def test_prefixes_of_wrappers_are_seen_through(tmp_path: Path, said: str) -> None:
    tensors = projections()
    path = write(tmp_path / "f.pt", {"state_dict": {said.format(name): w for name, w in tensors.items()}})
    got, _ = read_pt(path)
    assert {name: torch.equal(got[name], w) for name, w in tensors.items()} == dict.fromkeys(tensors, True)


@pytest.mark.parametrize(
    "nest",
    [
        lambda t: t,
        lambda t: {"module": {"model": t}},
        collections.OrderedDict,
        lambda t: {"a": {"b": {"c": {"d": t}}}},
        lambda t: {k.removeprefix("model."): w for k, w in t.items()},
        lambda t: {k.replace(".self_attn.", "._orig_mod.self_attn."): w for k, w in t.items()},
        lambda t: {k.replace(".weight", "._orig_mod.weight"): w for k, w in t.items()},
        lambda t: {"model_state_dict": t, "ema_state_dict": t},
        lambda t: t | {"model.layers.0.self_attn.q_proj.weight": torch.ones(2)},
    ],
)
def test_nested_dictionaries_and_inner_wrappers_are_seen_through(tmp_path: Path, nest: Any) -> None:
    tensors = projections()
    got, _ = read_pt(write(tmp_path / "f.pt", nest(tensors)))
    assert set(got) == set(tensors)
    assert all(torch.equal(got[name], w) for name, w in tensors.items())


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch pwned",)


class Quiet:
    """An object of a class of ours: harmless here, and still something that only code could build."""


@pytest.mark.parametrize("thing", [Hostile(), Quiet(), [Hostile()], {1: {"x": Quiet()}}, Path("a")])
def test_a_pickle_that_asks_for_code_is_refused_and_not_run(
    tmp_path: Path, thing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "f.pt", checkpoint(projections()) | {"more": thing})
    with pytest.raises(WeightsError, match=r"holds objects that only running its code could build \(.+\): not read"):
        load_forecast(path, TINY_SHAPE)
    assert not (tmp_path / "pwned").exists()


def test_the_error_names_what_the_pickle_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "f.pt", {"x": Hostile()})
    with pytest.raises(WeightsError, match=r"\((posix|nt)\.system\)"):
        load_forecast(path, TINY_SHAPE)


@pytest.mark.parametrize("leave_out", [OWN_KEY, following_key(0), following_key(1)])
def test_a_missing_projection_is_named_whatever_the_format(tmp_path: Path, leave_out: str) -> None:
    tensors = {name: w for name, w in projections().items() if name != leave_out}
    path = write(tmp_path / "f.pt", {"model_state_dict": tensors})
    with pytest.raises(WeightsError, match=rf"1 tensors are missing \({leave_out}\)"):
        load_forecast(path, TINY_SHAPE)
    with pytest.raises(WeightsError, match=rf"1 tensors are missing \({leave_out}\)"):
        convert_forecast(path, tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({OWN_KEY: torch.zeros(3, 4)}, r"q_curr_proj\.weight is \(3, 4\), must be \(16, 32\)"),
        ({following_key(1): torch.zeros(SIZE[1], SIZE[0])}, r"layers\.1.*is \(32, 16\), must be \(16, 32\)"),
        ({following_key(0): torch.zeros(SIZE).fill_(float("nan"))}, r"hold NaN or infinity \(model\.layers\.0"),
        ({following_key(0): torch.zeros(SIZE, dtype=torch.int8)}, "hold no floating-point numbers"),
        ({following_key(0): torch.zeros(SIZE).to_sparse()}, "are no plain tensors"),
        ({following_key(9): torch.zeros(SIZE)}, "of a model with more layers than 3"),
        ({"model.layers.0.self_attn.q_future_proj.bias": torch.zeros(16)}, "looks like a Forecast projection"),
        ({"model.layers.2.self_attn.q_curr_proj.weight": torch.zeros(SIZE)}, "written for another lead"),
        ({"layers.0.q_future_proj.lora_A.weight": torch.zeros(SIZE)}, "looks like a Forecast projection"),
        ({"module." + OWN_KEY: torch.zeros(SIZE)}, "both are .*q_curr_proj.weight, and differ; keep one"),
    ],
)
def test_a_wrong_projection_is_an_error_that_names_it(
    tmp_path: Path, change: dict[str, torch.Tensor], said: str
) -> None:
    path = write(tmp_path / "f.pt", {"model_state_dict": projections() | change})
    with pytest.raises(WeightsError, match=said):
        load_forecast(path, TINY_SHAPE)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"PK\x03\x04" + b"x" * 99, b"\x80\x02}q\x00."])
def test_damaged_files_and_old_formats_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "f.pt"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"f\.pt"):
        load_forecast(path, TINY_SHAPE)
    write(path, {"model_state_dict": projections()})
    for cut in (3, 200, path.stat().st_size // 2):
        (tmp_path / "cut.pt").write_bytes(path.read_bytes()[:-cut])
        with pytest.raises(WeightsError, match=r"cut\.pt"):
            load_forecast(tmp_path / "cut.pt", TINY_SHAPE)


def test_an_archive_that_would_unpack_to_more_than_itself_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "f.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("f/data.pkl", b"\x80\x02}q\x00.")
        archive.writestr("f/data/0", bytes(10**7))
    with pytest.raises(WeightsError, match="claims to hold more than its"):
        load_forecast(path, TINY_SHAPE)


def test_a_tensor_that_repeats_a_value_without_end_is_refused_before_it_is_unrolled(tmp_path: Path) -> None:
    endless = {name: torch.zeros(1, 1).expand(10**6, 10**6) for name in projections()}
    with pytest.raises(WeightsError, match="are no plain tensors"):
        convert_forecast(write(tmp_path / "f.pt", endless), tmp_path / "out.safetensors")


def test_a_pickle_with_any_few_bytes_changed_is_read_or_refused(tmp_path: Path) -> None:
    path, stream = write(tmp_path / "f.pt", {"model_state_dict": projections(), "step": 3}), np.random.default_rng(0)
    with zipfile.ZipFile(path) as archive:
        parts = {part.filename: archive.read(part) for part in archive.infolist()}
    refused = 0
    for _ in range(150):
        pickled = bytearray(parts["f/data.pkl"])
        for _ in range(stream.integers(1, 4)):
            pickled[stream.integers(len(pickled))] = stream.integers(256)
        with zipfile.ZipFile(tmp_path / "g.pt", "w") as archive:
            for name, content in parts.items():
                archive.writestr(name, bytes(pickled) if name == "f/data.pkl" else content)
        try:
            load_forecast(tmp_path / "g.pt", TINY_SHAPE)
        except WeightsError:
            refused += 1
    assert refused > 100, "the check must be able to fail"


def test_what_is_no_dictionary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="holds Tensor, must be a dictionary"):
        load_forecast(write(tmp_path / "f.pt", torch.ones(3)), TINY_SHAPE)


def test_from_the_release_into_ours_and_back_nothing_changes_by_a_bit(tmp_path: Path) -> None:
    tensors = projections()
    source = write(tmp_path / "ckpt.pt", checkpoint(tensors))
    made = convert_forecast(source, tmp_path / "a" / "f.safetensors")
    assert (made.tensors, made.layers, made.zeros_added, made.dtypes) == (4, 3, False, ("bfloat16",))
    ours = load_file(tmp_path / "a" / "f.safetensors")
    assert all(torch.equal(ours[name], w) for name, w in tensors.items())
    convert_forecast(tmp_path / "a" / "f.safetensors", tmp_path / "back.pt")
    back = torch.load(tmp_path / "back.pt", weights_only=True)
    assert back["step"] == 2000
    assert back["sparse_config"] == SPARSE
    assert back["base_model_path"] == "/models/openbmb/MiniCPM4.1-8B"
    assert set(back["model_state_dict"]) == set(tensors)
    assert all(torch.equal(back["model_state_dict"][name], w) for name, w in tensors.items())


def test_ours_becomes_a_checkpoint_with_a_projection_for_every_layer(tmp_path: Path) -> None:
    path = tmp_path / "f.safetensors"
    forecast = random_forecast(TINY_SHAPE, seed=4, dtype=torch.float32)
    save_forecast(path, forecast, dtype=torch.float32)
    with pytest.raises(ConfigError, match=r"does not say whether its model has 2 or 3 layers.*--shape"):
        convert_forecast(path, tmp_path / "f.pt")
    assert not (tmp_path / "f.pt").exists()
    made = convert_forecast(path, tmp_path / "f.pt", shape=TINY_SHAPE)
    assert (made.zeros_added, made.tensors) == (True, 4)
    content = torch.load(tmp_path / "f.pt", weights_only=True)["model_state_dict"]
    assert not content[following_key(2)].any()
    again = load_forecast(tmp_path / "f.pt", TINY_SHAPE)
    assert torch.equal(again.own, forecast.own)
    assert {key: again.metadata[key] for key in forecast.metadata} == forecast.metadata
    wrong = attrs.evolve(TINY_SHAPE, layers=7)
    with pytest.raises(ConfigError, match="must have 7 or 1 less"):
        convert_forecast(path, tmp_path / "g.pt", shape=wrong)


def test_a_dtype_that_cannot_hold_the_numbers_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    tensors = projections()
    tensors[following_key(1)][0, 0] = 1e30
    source = write(tmp_path / "ckpt.pt", {"model_state_dict": tensors})
    for name in ("f.safetensors", "f.pt"):
        with pytest.raises(WeightsError, match=r"layers\.1.*too large for torch\.float16"):
            convert_forecast(source, tmp_path / name, dtype=torch.float16)
    made = convert_forecast(source, tmp_path / "f.safetensors", dtype=torch.float32)
    assert made.dtypes == ("float32",)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ckpt.pt", "f.safetensors"]
    assert torch.equal(load_file(tmp_path / "f.safetensors")[following_key(1)], tensors[following_key(1)].float())


def test_safetensors_whose_header_has_the_length_of_a_pickles_first_byte_are_no_pickle(tmp_path: Path) -> None:
    path, first = tmp_path / "f.safetensors", set()
    for pad in range(0, 256, 8):
        save_file(projections(), path, metadata={"sparda": "{}" + " " * pad})
        first.add(path.read_bytes()[0])
        assert not is_pt(path)
    assert 0x80 in first, "the case must have come up"


def test_another_ending_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "ckpt.pt", {"model_state_dict": projections()})
    with pytest.raises(ConfigError, match=r"must end in \.safetensors or \.pt"):
        convert_forecast(source, tmp_path / "f.bin")


def test_a_longer_lead_stays_in_our_format(tmp_path: Path) -> None:
    own = {own_key(layer): torch.full(SIZE, float(layer)) for layer in range(2)}
    tensors = own | {following_key(0): torch.ones(SIZE)}
    save_file(tensors, tmp_path / "f.safetensors", metadata={"sparda": '{"lead": 2}'})
    with pytest.raises(ConfigError, match=r"lead=2; the release's format knows lead 1 alone"):
        convert_forecast(tmp_path / "f.safetensors", tmp_path / "f.pt", shape=TINY_SHAPE)
    convert_forecast(tmp_path / "f.safetensors", tmp_path / "g.safetensors", dtype=torch.float16, shape=TINY_SHAPE)
    forecast = load_forecast(tmp_path / "g.safetensors", TINY_SHAPE)
    assert (forecast.lead, len(forecast.following)) == (2, 1)
    save_file(tensors, tmp_path / "f.safetensors")
    with pytest.raises(WeightsError, match=r"lead=1 has no use for model\.layers\.1\.self_attn\.q_curr_proj"):
        convert_forecast(tmp_path / "f.safetensors", tmp_path / "h.safetensors")

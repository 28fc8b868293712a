"""Options that would do nothing, or that no machine could take, are refused and not passed over."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparda_core.cli.main import main
from sparda_core.errors import UnknownNameError
from sparda_core.registry import RUNTIMES
from sparda_core.runtimes.gpu.engines import ENGINES
from sparda_core.runtimes.gpu.options import GpuOptions
from sparda_core.runtimes.gpu.pinning import METHODS
from sparda_core.runtimes.planner import ENGINE_NAMES
from sparda_core.simulator.cpu import CpuProfile
from sparda_core.simulator.gpu import GpuProfile
from tests.cli.conftest import Refusal
from tests.cli.files import Files

POOLED = (("--slots", "400"), ("--resident-layers", "2"), ("--policy", "lru"))


@pytest.mark.parametrize("option", POOLED, ids=lambda option: option[0])
def test_a_pool_is_refused_where_nothing_is_offloaded(
    option: tuple[str, str], tiny: Files, tmp_path: Path, refusal: Refusal
) -> None:
    resident = ("--runtime", "resident", *option)
    told = f"{option[0]}={option[1]}: runtime='resident' keeps every block on the device"
    assert told in refusal("generate", "hello", *tiny.options, *resident)
    assert told in refusal("record", *tiny.options, *resident, "--out", tmp_path / "a.npz")
    assert told in refusal("capacity", *resident)
    assert told in refusal("predict", *resident)
    assert told in refusal("timeline", "--predicted", *resident, "--out", tmp_path)


def test_a_slot_factor_is_of_the_pool_too(refusal: Refusal) -> None:
    assert "--slot-factor=2.0: runtime='resident'" in refusal("predict", "--runtime", "resident", "--slot-factor", "2")


def test_a_resident_runtime_without_a_word_on_pools_is_fine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--runtime", "resident", "--json"]) == 0
    assert main(["capacity", "--runtime", "resident", "--json"]) == 0
    assert capsys.readouterr().err == ""


def test_names_of_engines_and_of_pinning_are_checked_without_a_gpu(tiny: Files, refusal: Refusal) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'copy-engine'"):
        RUNTIMES.make("offload-sync", engine="copy-engin")
    with pytest.raises(UnknownNameError, match="did you mean 'register-4k'"):
        GpuOptions(pinning="register-4")
    words = ("generate", "hello", *tiny.options[:4], "--device", "cuda")
    assert "did you mean 'register-huge'" in refusal(*words, "--pinning", "register-hug")
    assert "did you mean 'uva'" in refusal(*words, "--engine", "uv")


def test_every_engine_and_way_of_pinning_has_its_name_in_the_list() -> None:
    assert set(ENGINE_NAMES) == {"thread", *ENGINES}
    assert set(ENGINE_NAMES) == {*GpuProfile.engines, *CpuProfile.engines}
    for name in METHODS:
        assert GpuOptions(pinning=name).pinning == name


def test_a_missing_folder_is_named_with_the_way_out(tmp_path: Path, refusal: Refusal) -> None:
    none = tmp_path / "none"
    told = f"its folder {str(none)!r} does not exist; make it first"
    assert told in refusal("train", "--out", none / "forecast.safetensors")
    assert told in refusal("predict", "--csv", none / "a.csv")
    assert not none.exists()


def test_a_host_limit_that_is_too_small_is_told_by_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capacity", "--batch", "4", "--profile", "h200", "--host-limit-gib", "0.001"]) == 0
    assert "raise host_limit_bytes (--host-limit-gib)" in " ".join(capsys.readouterr().out.split())


def test_nosa_on_a_model_without_a_bias_is_told_that_first_and_its_early_form_where_there_is_one(
    tiny: Files, refusal: Refusal
) -> None:
    assert "needs a model with a token bias" in refusal("generate", "hello", *tiny.options, "--selector", "nosa")
    told = refusal("capacity", "nosa-8b", "--selector", "nosa", "--local", "16")
    assert "'nosa' with runtime 'offload-sync', or selector 'nosa-forecast' with 'offload-prefetch'" in told

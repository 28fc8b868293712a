"""Profiles: read strictly, refused with the field's name, held against physics; and the shipped ones' sanity."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from sparda_core.errors import ProfileError, UnknownNameError
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.lint import lint
from sparda_core.simulator.profile_file import (
    FOLDER,
    load_profile,
    parse_profile,
    profile_names,
    profile_toml,
    save_profile,
)
from sparda_core.simulator.quantity import Basis
from tests.simulator.scenes import gpu, slowdown

H200 = (FOLDER / "h200.toml").read_text(encoding="utf-8")


def h200() -> GpuProfile:
    profile = load_profile("h200")
    assert isinstance(profile, GpuProfile)
    return profile


def test_the_shipped_profiles_are_these() -> None:
    assert profile_names() == ("h100-sxm", "h200")


@pytest.mark.parametrize("name", profile_names())
def test_a_shipped_profile_loads_and_survives_writing(name: str, tmp_path: Path) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert lint(profile) == ()
    assert load_profile(save_profile(profile, tmp_path / "copy.toml")) == profile
    assert [path.name for path in tmp_path.iterdir()] == ["copy.toml"]


def test_every_number_of_the_h200_names_what_it_rests_on() -> None:
    bases = h200().bases()
    assert len(bases) >= 20
    assert bases["link.h2d_bytes_per_s"] == Basis.MEASURED
    assert {name for name, basis in bases.items() if basis == Basis.PRIOR} == {
        "memory.reserved_bytes", "memory.host_bytes", "memory.host_bytes_per_s", "launch.eager_s", "launch.step_s",
        "cpu_gather.call_s", "cpu_gather.gather_bytes_per_s",
    }  # fmt: skip


def test_the_h100_was_never_measured_by_us() -> None:
    assert Basis.MEASURED not in load_profile("h100-sxm").bases().values()


def test_the_digest_changes_with_any_number() -> None:
    assert h200().digest == h200().digest
    assert h200().digest != parse_profile(H200.replace("55.3e9", "55.2e9")).digest


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('device = "gpu"', 'device = "tpu"', "device='tpu' must be one of: gpu, cpu"),
        ("hbm_bytes_per_s = { value = 4.23e12", "hbm_byte_per_s = { value = 4.23e12", "did you mean 'hbm_bytes_per_s'"),
        ('sms = { value = 132, unit = "1", source = "reported by the device", basis = "measured" }', "", "missing sms"),
        ('value = 761e12, unit = "FLOP/s"', 'value = 761, unit = "TFLOP/s"', "unit='TFLOP/s' must be 'FLOP/s'"),
        ("value = 761e12,", "", "compute: flop_per_s: missing value"),
        ("value = 761e12", "value = -1", "compute: flop_per_s: value=-1"),
        ("value = 761e12", "value = nan", "value=nan"),
        ("value = 761e12", 'value = "761e12"', "flop_per_s: '761e12' must be a number"),
        ("value = 761e12", "value = true", "flop_per_s: True must be a number"),
        ("value = 761e12", f"value = {10**400}", "malformed"),
        ('device = "gpu"', "device = []", r"device=\[\] must be one of"),
        ('device = "gpu"', f"deep = {'[' * 5000}", "not TOML"),
        ("ctas = [1, 2, 3, 4, 16, 32]", 'ctas = "123456"', "'1' must be a number"),
        ("value = 761e12", 'value = "much"', "flop_per_s: 'much' must be a number"),
        ('source = "reported by the device"', 'source = ""', "source='' must be a text"),
        ('source = "reported by the device"', "source = 7", "source=7 must be a text"),
        ('basis = "measured"', 'basis = "guessed"', "basis='guessed' is unknown; known: measured, datasheet, prior"),
        ("ctas = [1, 2, 3, 4, 16, 32]", "ctas = [1, 2, 4, 3, 16, 32]", "ctas.*ascending"),
        ("ctas = [1, 2, 3, 4, 16, 32]", "ctas = [1, 2, 3, 4, 16]", "must have 5 rows"),
        ("[1.02, 1.01, 1.01]", "[0.9, 1.01, 1.01]", "every slowdown must be finite and >= 1"),
        ("[launch]", "[launch", "not TOML"),
        ("[cpu_gather]", "[cpu-gather]", "'cpu-gather' is unknown; did you mean 'cpu_gather'"),
    ],
)
def test_a_damaged_profile_is_refused_with_the_field(old: str, new: str, says: str) -> None:
    assert old in H200
    with pytest.raises(ProfileError, match=says):
        parse_profile(H200.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("value = 761e12", "value = 1979e12", "dense bf16 peak of h200 .*sparsity"),
        ("value = 4.23e12", "value = 4.9e12", "exceeds 4.8e\\+12, the data sheet of h200"),
        ("value = 3.85e12", "value = 4.5e12", "kernel_bytes_per_s must be <= memory.hbm_bytes_per_s"),
        ("value = 55.4e9", "value = 64e9", "exceeds 6.02e\\+10, the payload of PCIe 5 x16"),
        ("value = 5, unit", "value = 4, unit", "payload of PCIe 4 x16"),
        ("value = 5, unit", "value = 9, unit", "generation=9 is unknown"),
        ("value = 16, unit", "value = 12, unit", "lanes=12"),
        ("value = 50.5e9", "value = 60e9", "both_ways"),
        ("value = 51e9", "value = 56e9", "uva.ceiling_bytes_per_s must be <= link"),
        ("value = 150_754_820_096", "value = 141", "given in GB or MiB"),
        ("value = 150_754_820_096", "value = 141e9", "no whole number of MiB"),
        ("value = 2e9", "value = 200e9", "reserved_bytes must be <"),
        ("value = 1.0e-6", "value = 10e-6", "graph_s=1e-05 must be <= launch.eager_s"),
        ("value = 132", "value = 0", "sms=0 must be > 0"),
    ],
)
def test_numbers_against_physics_are_refused(old: str, new: str, says: str) -> None:
    assert old in H200
    with pytest.raises(ProfileError, match=says):
        parse_profile(H200.replace(old, new, 1))


def test_an_unknown_profile_offers_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'h200'"):
        load_profile("h20")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot be read"):
        load_profile(tmp_path / "none.toml")


def test_saving_over_a_profile_leaves_the_old_one_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_profile(h200(), tmp_path / "mine.toml")
    before = path.read_text(encoding="utf-8")

    def full(*_: object, **__: object) -> object:
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="no space"):
        save_profile(load_profile("h100-sxm"), path)
    assert path.read_text(encoding="utf-8") == before
    assert [p.name for p in tmp_path.iterdir()] == ["mine.toml"]


def test_a_profile_that_breaks_physics_is_not_written(tmp_path: Path) -> None:
    broken = attrs.evolve(
        h200(), compute=attrs.evolve(h200().compute, flop_per_s=h200().compute.flop_per_s.with_value(2e15, "test"))
    )
    with pytest.raises(ProfileError, match="dense bf16 peak"):
        save_profile(broken, tmp_path / "broken.toml")
    assert not list(tmp_path.iterdir())


def test_texts_with_quotes_and_letters_of_any_kind_survive_writing(tmp_path: Path) -> None:
    odd = attrs.evolve(gpu(), title='24" of "sölid" \\ state\n')
    assert parse_profile(profile_toml(odd)) == odd


# GB/s measured by CTA count, fresh lists, 128 KiB in flight, 32 KiB blocks.
@pytest.mark.parametrize(("ctas", "measured"), [(1, 38e9), (2, 51e9), (4, 51e9)])
def test_the_gather_law_gives_the_measured_rates(ctas: int, measured: float) -> None:
    uva = h200().uva
    assert uva is not None
    assert uva.bytes_per_s(ctas) == pytest.approx(measured, rel=0.03)


def test_the_gather_law_at_16_kib_in_flight_gives_what_the_older_kernel_reached() -> None:
    uva = h200().uva
    assert uva is not None
    older = attrs.evolve(uva, in_flight_bytes=uva.in_flight_bytes.with_value(16384, "test"))
    assert older.bytes_per_s(8) == pytest.approx(45e9, rel=0.03)
    assert older.bytes_per_s(16) == pytest.approx(51e9, rel=0.03)


@pytest.mark.parametrize(("piece", "rate"), [(16384, 4.4e9), (32768, 28.9e9), (65536, 38.9e9)])
def test_the_copy_engine_falls_off_for_small_pieces_as_measured(piece: int, rate: float) -> None:
    engine = h200().copy_engine
    assert engine is not None
    assert engine.bytes_per_s(piece, 55.4e9) == pytest.approx(rate, rel=1e-9)
    assert engine.bytes_per_s(2**30, 55.4e9) == pytest.approx(55.4e9, rel=0.001)


def test_three_copy_ctas_cost_what_two_do_not() -> None:
    uva = h200().uva
    assert uva is not None
    two, three = (uva.compute_slowdown.at(ctas, 256) for ctas in (2, 3))
    assert (two, three) == (1.02, 1.74)


def test_a_slowdown_is_linear_between_counts_and_constant_beyond_its_tokens() -> None:
    table = slowdown(ctas=(1, 3), factor=(1.0, 2.0))
    assert table.at(2, 1) == table.at(2, 4096) == 1.5
    with pytest.raises(ProfileError, match="ctas=4 is outside the measured 1 to 3"):
        table.at(4, 1)


def test_another_link_scales_what_depends_on_it_and_says_so() -> None:
    faster = h200().with_link(110.8e9)
    assert faster.capacity()["h2d"] == 110.8e9
    assert faster.uva is not None
    assert faster.uva.ceiling_bytes_per_s.value == 102e9
    assert faster.bases()["link.h2d_bytes_per_s"] == Basis.PRIOR
    for wrong in (0.0, -1.0, float("inf")):
        with pytest.raises(ProfileError, match="must be finite and > 0"):
            h200().with_link(wrong)

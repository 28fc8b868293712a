"""Profiles: read strictly, refused with the field's name, held against physics; and the shipped ones' sanity."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.cli.profile import numbers
from sparda_core.errors import ProfileError, UnknownNameError
from sparda_core.simulator.cpu import KindCost
from sparda_core.simulator.derive import REQUIRED, completed
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.lint import lint
from sparda_core.simulator.profile import Profile
from sparda_core.simulator.profile_file import (
    _build,
    _sound,
    findings_of,
    load_profile,
    parse_profile,
    profile_names,
    profile_toml,
    save_profile,
)
from sparda_core.simulator.profile_template import HOW, template
from sparda_core.simulator.quantity import Basis, PieceCurve, Quantity
from sparda_core.whatif.scenario import Scenario
from tests.simulator.beside import BY_HAND
from tests.simulator.beside import h200 as by_hand
from tests.simulator.scenes import cpu

#: A whole file, every number written as people write it.
H200 = BY_HAND.read_text(encoding="utf-8")


def gpu_named(name: str) -> GpuProfile:
    profile = load_profile(name)
    assert isinstance(profile, GpuProfile)
    return profile


def h200() -> GpuProfile:
    return gpu_named("h200")


def test_the_shipped_profiles_are_these() -> None:
    assert profile_names() == (
        "a100-sxm", "b200", "gh200", "h100-pcie", "h100-sxm", "h200", "l40s", "rtx-4090", "rtx-5090",
    )  # fmt: skip


@pytest.mark.parametrize("name", profile_names())
def test_a_shipped_profile_loads_and_survives_writing(name: str, tmp_path: Path) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert lint(profile) == ()
    assert load_profile(save_profile(profile, tmp_path / "copy.toml")) == profile
    assert [path.name for path in tmp_path.iterdir()] == ["copy.toml"]


def test_every_number_of_the_h200_names_what_it_rests_on() -> None:
    bases = h200().bases()
    assert len(bases) >= 30
    assert bases["link.h2d_bytes_per_s"] == Basis.MEASURED
    assert {name for name, basis in bases.items() if basis == Basis.PRIOR} == {
        "memory.reserved_bytes",
    }


@pytest.mark.parametrize("name", sorted(set(profile_names()) - {"h200"}))
def test_no_other_gpu_was_measured_by_us(name: str) -> None:
    assert Basis.MEASURED not in load_profile(name).bases().values()


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
        ("value = 761e12", f"value = {10**400}", "more than 64 bits"),
        ('device = "gpu"', "device = []", r"device=\[\] must be one of"),
        ('device = "gpu"', f"deep = {'[' * 5000}", "not TOML"),
        ("tokens = [16, 64, 256]", 'tokens = "123"', "'1' must be a number"),
        ("value = 761e12", 'value = "much"', "flop_per_s: 'much' must be a number"),
        ('source = "reported by the device"', 'source = ""', "source='' must be a text"),
        ('source = "reported by the device"', "source = 7", "source=7 must be a text"),
        ('basis = "measured"', 'basis = "guessed"', "basis='guessed' is unknown; known: measured, data"),
        ("tokens = [16, 64, 256]", "tokens = [16, 256, 64]", "tokens.*ascending"),
        ("tokens = [16, 64, 256]", "tokens = [0, 64, 256]", "tokens=.*must be >= 1"),
        ("tokens = [16, 64, 256]", "tokens = [16, 64]", "one finite share >= 0 for each of tokens"),
        ("[0.1684, 0.1992, 0.9114]", "[-0.1, 0.1992, 0.9114]", "one finite share >= 0"),
        ("[1.75, 5, 16]", "[0.9, 5, 16]", "one finite number >= 1 for each of tokens"),
        ("[34.6e9, 49.1e9]", "[34.6e9, 0]", "one rate > 0 for each of piece_bytes"),
        ("[link]", '[link]\nkind = "isa"', "link.kind='isa' must be 'pcie' or 'c2c'"),
        ("[link]", '[link]\nkind = "c2c"', "kind 'c2c' has no generation"),
        ("[launch]", "[launch", "not TOML"),
        ("[cpu_gather]", "[cpu-gather]", "'cpu-gather' is unknown; did you mean 'cpu_gather'"),
    ],
)
def test_a_damaged_profile_is_refused_with_the_field(old: str, new: str, says: str) -> None:
    assert old in H200
    with pytest.raises(ProfileError, match=says):
        parse_profile(H200.replace(old, new, 1))


#: The line of host memory, which was assumed.
HOST = next(line for line in H200.splitlines() if line.startswith("host_bytes_per_s"))


def test_an_assumed_host_memory_may_be_less_than_a_link_moves_both_ways() -> None:
    parse_profile(H200.replace(HOST, HOST.replace("200e9", "90e9")))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("value = 761e12", "value = 1979e12", "dense bf16 peak of h200 .*sparsity"),
        ("value = 4.23e12", "value = 4.9e12", "exceeds 4.8e\\+12, the data sheet of h200"),
        ("value = 3.85e12", "value = 4.5e12", "kernel_bytes_per_s must be <= memory.hbm_bytes_per_s"),
        ("value = 55.4e9", "value = 64e9", "exceeds 6.02e\\+10, the payload of PCIe 5 x16"),
        ("value = 5, unit", "value = 4, unit", "payload of PCIe 4 x16"),
        ("value = 5, unit", "value = 9, unit", "generation=9 is unknown"),
        ("value = 16, unit", "value = 12, unit", "link.lanes=12 must be one of: 1, 2, 4, 8, 16"),
        ("value = 50.5e9", "value = 60e9", "both_ways"),
        ("value = 50.7e9", "value = 56e9", "uva.ceiling_bytes_per_s must be <= link"),
        ("value = 150_754_820_096", "value = 141", "hbm_bytes=141 B is beyond any such device .*another unit"),
        ("value = 150_754_820_096", "value = 161_061_273_600", "exceeds the 141 GB of h200"),
        ("value = 761e12", "value = 761", "flop_per_s=761 FLOP/s is beyond any such device"),
        ("value = 55.4e9", "value = 55.4", "h2d_bytes_per_s=55.4 B/s is beyond any such device"),
        ("value = 1.0e-6", "value = 1.0", "graph_s=1 s is beyond any such device"),
        ("value = 200e9", "value = 20e9", "host_bytes_per_s must be >= link.h2d_bytes_per_s"),
        (HOST, HOST.replace("200e9", "90e9").replace("prior", "measured"), "one GPU was seen to move that"),
        ("value = 2.2e-6", "value = 2.9e-6", "repeated_round_trip_s must be <= uva.round_trip_s"),
        ("value = 142e9", "value = 197e9", "beside_bytes_per_s must be <= uva.cta_bytes_per_s"),
        ("value = 64e9", "value = 143e9", "late_bytes_per_s must be <= uva.beside_bytes_per_s"),
        ("value = 128,", "value = 128.5,", "product_ctas=128.5 must be a whole number"),
        ("value = 128,", "value = 133,", "product_ctas=133 must be <= compute.sms"),
        ("value = 2, unit", "value = 3, unit", "product_cluster=3 must be 1 or even"),
        ("value = 132", "value = 133", "sms=133 exceeds 132, the SMs of h200"),
        ("value = 150_754_820_096", "value = 141e9", "no whole number of MiB"),
        ("value = 2e9", "value = 200e9", "reserved_bytes must be <"),
        ("value = 1.0e-6", "value = 10e-6", "graph_s=1e-05 must be <= launch.eager_s"),
        ("value = 132", "value = 0", "compute.sms=0 must be > 0"),
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
    odd = attrs.evolve(h200(), title='24" of "sölid" \\ state\n')
    assert parse_profile(profile_toml(odd)) == odd


@pytest.mark.parametrize(("piece", "rate"), [(16384, 4.4e9), (32768, 28.9e9), (65536, 38.9e9)])
def test_the_copy_engine_falls_off_for_small_pieces_as_measured(piece: int, rate: float) -> None:
    engine = by_hand().copy_engine
    assert engine is not None
    assert engine.bytes_per_s(piece, 55.4e9) == pytest.approx(rate, rel=1e-9)
    assert engine.bytes_per_s(2**30, 55.4e9) == pytest.approx(55.4e9, rel=0.001)


def test_another_link_scales_what_depends_on_it_and_says_so() -> None:
    slower = by_hand().with_link(27.7e9)
    assert slower.capacity()["h2d"] == 27.7e9
    assert slower.uva is not None
    assert slower.uva.ceiling_bytes_per_s.value == 50.7e9 / 2
    assert slower.bases()["link.h2d_bytes_per_s"] == Basis.PRIOR
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ProfileError, match="must be finite and > 0"):
            h200().with_link(wrong)


def test_a_link_faster_than_its_generation_carries_is_refused() -> None:
    with pytest.raises(ProfileError, match=r"link=6.03e\+10 bytes/s exceeds 6.02e\+10, the payload of PCIe 5 x16"):
        h200().with_link(60.3e9)
    with pytest.raises(ProfileError, match="payload of NVLink-C2C"):
        load_profile("gh200").with_link(451e9)


def test_another_generation_is_used_as_well_as_the_measured_one() -> None:
    six = by_hand().with_pcie(6)
    assert six.capacity()["h2d"] == pytest.approx(114e9 * 55.4 / 60.2)
    assert six.uva is not None
    assert six.uva.ceiling_bytes_per_s.value == pytest.approx(114e9 * 50.7 / 60.2)
    assert lint(six) == ()
    assert h200().with_pcie(5) == h200()
    narrow = by_hand().with_pcie(5, lanes=8)
    assert narrow.capacity()["h2d"] == 55.4e9 / 2
    with pytest.raises(ProfileError, match="generation=7 is unknown; known: 3, 4, 5, 6"):
        h200().with_pcie(7)
    with pytest.raises(ProfileError, match="its link is NVLink-C2C"):
        gpu_named("gh200").with_pcie(5)


def test_the_twelve_numbers_a_file_must_state_are_enough() -> None:
    like = h200()
    text = template("mine", like)
    stated = sum(line.startswith(name + " =") for line in text.splitlines() for _, name in HOW)
    assert stated == len(HOW) == sum(map(len, REQUIRED.values())) == 12
    mine = parse_profile(text)
    bases = mine.bases()
    assert {bases[f"{section}.{name}"] for section, name in HOW} == {Basis.PRIOR}
    assert bases["uva.ceiling_bytes_per_s"] == bases["copy_engine.pieces"] == Basis.DERIVED
    # What was only assumed for the H200 stays an assumption.
    assert bases["memory.reserved_bytes"] == Basis.PRIOR
    assert {n: q for n, q in values(mine).items() if q != values(like)[n]} == {}


def values(profile: Profile) -> dict[str, object]:
    """The numbers alone, without what they rest on; shares to nine digits."""
    told: dict[str, object] = {}
    for name, number in numbers(profile):
        rest = attrs.asdict(number, filter=lambda field, _: field.name not in ("source", "basis"))
        told[name] = {key: round(x, -3) if key == "value" and x > 1e6 else x for key, x in rest.items()}
        if isinstance(number, PieceCurve):
            told[name] = [round(rate, -3) for rate in number.bytes_per_s]
    return told


@pytest.mark.parametrize("line", [name for _, name in HOW])
def test_a_file_without_one_of_the_twelve_is_refused_with_its_name(line: str) -> None:
    text = "\n".join(row for row in template("mine", h200()).splitlines() if not row.startswith(f"{line} ="))
    with pytest.raises(ProfileError, match="states generation and lanes" if line in ("generation", "lanes") else line):
        parse_profile(text)


def test_what_is_carried_over_follows_the_numbers_stated() -> None:
    link, uva = h200().link.h2d_bytes_per_s.value, h200().uva
    assert uva is not None
    text = template("mine", h200()).replace("value = 132.0", "value = 66.0").replace(str(link), "52e9")
    half = parse_profile(text)
    assert isinstance(half, GpuProfile)
    assert half.compute.product_ctas.value == 64
    assert half.uva is not None
    share = uva.ceiling_bytes_per_s.value / link
    assert half.uva.ceiling_bytes_per_s.value == pytest.approx(52e9 * share)
    assert f"{share:.3f} of link.h2d_bytes_per_s, as on the h200" in half.uva.ceiling_bytes_per_s.source
    assert half.copy_engine is not None
    engine = h200().copy_engine
    assert engine is not None
    extra_s = engine.pieces.piece_s(16384, engine.whole_bytes_per_s.value)
    assert half.copy_engine.bytes_per_s(16384, 52e9) == pytest.approx(16384 / (extra_s + 16384 / 52e9), rel=0.02)
    own = template("mine", h200()) + "[uva]\nin_flight_bytes = " + (
        '{ value = 65536, unit = "B", source = "ours", basis = "measured" }\n'
    )  # fmt: skip
    assert parse_profile(own).bases()["uva.in_flight_bytes"] == Basis.MEASURED


def test_a_template_of_a_machine_without_a_gpu_is_refused() -> None:
    with pytest.raises(ProfileError, match="`sparda calibrate` makes a profile of a CPU"):
        template("mine", cpu({"decode/mlp": KindCost(fixed_s=1e-6, driver="flops", per_unit_s=1e-9)}))


@pytest.mark.parametrize("name", profile_names())
def test_every_shipped_profile_predicts_the_default_scenario(name: str) -> None:
    got = Scenario(profile=name, context=16384, batch=1).predict()
    assert got.feasible
    assert 1e-3 < got.step_s < 0.1


#: Numbers with a unit: (section, name) of every one that the H200's file holds as a quantity.
QUANTITIES = sorted(name for name, number in numbers(by_hand()) if isinstance(number, Quantity))


@given(
    name=st.sampled_from(QUANTITIES),
    broken=st.sampled_from([-1.0, -1e-9, math.nan, math.inf, 1e25, 1e-25, "much", True, None, [1.0], {}]),
)
def test_a_broken_number_is_refused_whichever_it_is(name: str, broken: object) -> None:
    table = tomllib.loads(H200)
    section, field = name.split(".")
    table[section][field]["value"] = broken
    with pytest.raises(ProfileError):
        sound(table)


@given(name=st.sampled_from(QUANTITIES), key=st.sampled_from(["value", "unit", "source", "basis"]))
def test_a_number_without_one_of_its_four_parts_is_refused(name: str, key: str) -> None:
    table = tomllib.loads(H200)
    section, field = name.split(".")
    del table[section][field][key]
    with pytest.raises(ProfileError, match=f"{section}: {field}: missing {key}"):
        sound(table)


def sound(table: dict[str, Any]) -> Profile:
    """A profile from a table, as from its file."""
    device = table.pop("device")
    assert device == "gpu"
    profile = _build(GpuProfile, completed(table), "profile")
    assert isinstance(profile, GpuProfile)
    return _sound(profile, "profile")


def test_findings_come_a_line_each_and_say_the_file(tmp_path: Path) -> None:
    wrong = tmp_path / "mine.toml"
    wrong.write_text(H200.replace("value = 761e12", "value = 1979e12").replace("value = 55.4e9", "value = 64e9"))
    found = findings_of(wrong)
    assert len(found) >= 2
    assert all(finding.startswith(f"{wrong}: ") for finding in found)
    wrong.write_text("broken")
    assert "not TOML" in findings_of(wrong)[0]
    assert findings_of("h200") == ()
    assert "cannot be read" in findings_of(tmp_path / "none.toml")[0]


def test_a_word_of_a_name_finds_the_longest_data_sheet() -> None:
    """An H200's sheet must not be held against a GH200, whose memory is slower."""
    fast = gpu_named("gh200")
    hbm = fast.memory.hbm_bytes_per_s.with_value(4.5e12, "test")
    fast = attrs.evolve(fast, memory=attrs.evolve(fast.memory, hbm_bytes_per_s=hbm))
    assert "the data sheet of gh200" in lint(fast)[0]

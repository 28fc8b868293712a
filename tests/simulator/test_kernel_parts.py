"""What kernels of a step take by rows, by candidates, in turn and in rounds on the SMs."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from sparda_core.errors import ProfileError
from sparda_core.simulator.derive import completed, reference
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.gpu_price import flows_s, kind_alone_s
from sparda_core.simulator.kernel_parts import Kernels
from sparda_core.simulator.profile_file import gpu_profile_of, load_profile, parse_profile, profile_toml
from sparda_core.simulator.quantity import Basis, Quantity, RowsCurve
from sparda_core.work import Work

SMS = 132


def number(value: float, unit: str = "s") -> Quantity:
    return Quantity(value=value, unit=unit, source="a test", basis=Basis.MEASURED)


def curve(*points: tuple[float, float]) -> RowsCurve:
    tokens, seconds = zip(*points, strict=True)
    return RowsCurve(tokens=tokens, s=seconds, source="a test", basis=Basis.MEASURED)


def profile(**numbers: Any) -> GpuProfile:
    loaded = load_profile("h200")
    assert isinstance(loaded, GpuProfile)
    return attrs.evolve(loaded, kernels=Kernels(**numbers))


def test_a_number_is_of_a_launch_and_a_curve_of_the_operation() -> None:
    work = Work(launches=3)
    assert Kernels(mlp_s=number(2e-6)).own_s("mlp", work, 16) == pytest.approx(6e-6)
    by_rows = Kernels(mlp_rows=curve((1, 1e-6), (7, 3e-6)))
    assert [by_rows.own_s("mlp", work, rows) for rows in (1, 3, 7, 64)] == pytest.approx([1e-6, 2e-6, 3e-6, 3e-6])
    assert by_rows.own_s("mlp", attrs.evolve(work, launches=0), 7) == 0
    assert by_rows.own_s("head", work, 7) == 0


def test_a_launch_behind_another_kernel_costs_more_than_one_behind_itself() -> None:
    kernels = Kernels(output_s=number(2e-6), turn_s=number(3e-7))
    assert kernels.own_s("output", Work(launches=2), 1) == pytest.approx(4.6e-6)
    assert kernels.own_s("output", Work(launches=2), 1, in_turn=False) == pytest.approx(4e-6)


def test_a_choice_costs_what_it_costs_also_where_the_diff_makes_it_along() -> None:
    kernels = Kernels(select_s=number(3e-6), select_searched=curve((0, 0.0), (1023, 1e-6)), diff_s=number(1e-6))
    for launches in (0, 1, 2):
        assert kernels.own_s("select", Work(searched=1023, launches=launches), 1) == pytest.approx(4e-6)
        assert kernels.own_s("select", Work(searched=31, launches=launches), 1) == pytest.approx(3.5e-6)
    assert kernels.own_s("diff", Work(launches=0), 1) == 0


def test_rounds_after_the_first_cost_what_they_cost_where_a_kernel_states_how_many_blocks_an_sm_holds() -> None:
    kernels = Kernels(attend_round_s=number(5e-6))
    rounds = [kernels.rounds_s("attend", Work(ctas=ctas, ctas_per_sm=3), SMS) for ctas in (0, 1, 396, 397, 793)]
    assert rounds == pytest.approx([0, 0, 0, 5e-6, 1e-5])
    assert kernels.rounds_s("attend", Work(ctas=1000), SMS) == 0
    assert kernels.rounds_s("score", Work(ctas=1000, ctas_per_sm=3), SMS) == 0


def test_a_kernel_gets_under_way_slowly_and_a_short_one_loses_less() -> None:
    kernels = Kernels(score_ramp_s=number(2e-6))
    assert kernels.begins_s("score", 1e-3) == pytest.approx(2e-6)
    assert kernels.begins_s("score", 1e-8) == pytest.approx(1e-8, rel=0.01)
    assert kernels.begins_s("attend", 1e-3) == 0


def test_a_kind_reads_at_its_own_rate_and_bytes_passed_on_count_as_more() -> None:
    told = profile(score_bytes_per_s=number(4e12, "B/s"), score_passed=number(1.5, "1"))
    work = Work(hbm_bytes=8e6, passed_bytes=4e6)
    assert flows_s(told, work, "score") == pytest.approx(10e6 / 4e12)
    assert flows_s(told, work, "select") == pytest.approx(8e6 / told.memory.kernel_bytes_per_s.value)
    alone = kind_alone_s(told, work, "score", 16)
    assert alone == pytest.approx(told.launch.graph_s.value + 10e6 / 4e12)


def test_curves_survive_the_file_and_are_not_carried_over_what_a_file_states_by_launch() -> None:
    told = profile(mlp_rows=curve((1, 1e-6), (64, 2e-6)), attend_s=number(1e-6), score_passed=number(1.5, "1"))
    again = parse_profile(profile_toml(told))
    assert isinstance(again, GpuProfile)
    assert again.kernels is not None
    assert again.kernels.mlp_rows == curve((1, 1e-6), (64, 2e-6))
    assert again.kernels.attend_s == number(1e-6)
    assert again.kernels.mlp_s is None
    assert again.kernels.attend_rows is None


def test_every_kind_that_the_reference_tells_is_told_in_one_way() -> None:
    table = completed({key: value for key, value in reference().items() if key not in ("device", "kernels")})
    kinds = {name.rpartition("_")[0] for name in table["kernels"] if name.endswith("_rows")}
    assert not {f"{kind}_s" for kind in kinds} & table["kernels"].keys()
    assert gpu_profile_of(table, "mine").kernels is not None


@pytest.mark.parametrize(("tokens", "s"), [((1, 2), (1e-6,)), ((1,), (-1e-6,)), ((2, 1), (1e-6, 1e-6)), ((-1,), (0,))])
def test_a_curve_that_is_none_is_refused(tokens: tuple[float, ...], s: tuple[float, ...]) -> None:
    with pytest.raises(ProfileError, match="must"):
        RowsCurve(tokens=tokens, s=s, source="a test", basis=Basis.PRIOR)

"""GPU halves of the selectors choose what their CPU halves choose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparda_core.device_view import Choice
from sparda_core.errors import ConfigError, PlanError, RecordingError, WeightsError
from sparda_core.kernels.device import INTERPRETED
from sparda_core.kernels.topk.choose import choose_blocks as choose_on_cpu
from sparda_core.registry import SELECTORS
from sparda_core.selector import DeviceRoom, Selector
from sparda_core.selectors.dense import Dense
from sparda_core.selectors.device import scored
from sparda_core.selectors.device.replay import Replaced
from sparda_core.selectors.forecast import Forecast
from sparda_core.selectors.infinigen import PROXY, InfiniGen
from sparda_core.selectors.nosa import SHORTLIST, Nosa, NosaForecast
from sparda_core.selectors.query import Query
from sparda_core.selectors.recording import Recording
from sparda_core.selectors.replay import Replay
from sparda_core.selectors.uniform import Uniform
from sparda_core.selectors.window import Window
from sparda_core.shapes import BlockSpec
from tests.gpu.selectors.drive import DeviceDrive, same_choice
from tests.gpu_env import DEVICE
from tests.selectors.world import SHAPE, SPEC, Drive, World


@pytest.fixture(autouse=True)
def _quick_choice(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Interpreted, top-k takes most of these tests' time, and it has tests of its own: one here shows that it fits."""

    def choose(
        scores: torch.Tensor, position: torch.Tensor, spec: BlockSpec, choice: Choice, *, early: int = 0
    ) -> None:
        chosen = choose_on_cpu(scores[:, :, None], position.long()[:, None], spec)[:, :, 0]
        choice.blocks.copy_(chosen)
        choice.counts.copy_((chosen >= 0).sum(-1))

    if INTERPRETED and "with_real_top_k" not in request.node.name:
        monkeypatch.setattr(scored, "choose_blocks", choose)


#: Selector, and how early it is asked.
METHODS = [
    pytest.param(Query(), 0, id="query"),
    pytest.param(Forecast(), 1, id="forecast"),
    pytest.param(InfiniGen(scoring="token", channels=3), 1, id="token"),
    pytest.param(InfiniGen(scoring="token", channels=None), 1, id="token-all"),
    pytest.param(InfiniGen(scoring="entry-raw"), 1, id="entry-raw"),
    pytest.param(InfiniGen(scoring="entry-softmax"), 1, id="entry-softmax"),
    pytest.param(Nosa(select_blocks=2), 0, id="nosa"),
    pytest.param(NosaForecast(select_blocks=2), 1, id="nosa-forecast"),
    pytest.param(Window(), 0, id="window"),
    pytest.param(Uniform(seed=2**62 + 5), 1, id="random"),
    pytest.param(Forecast(lead=2), 2, id="forecast-2"),
]
PROMPTS = (100, 37, 150)


def both(selector: Selector, lead: int, world: World) -> tuple[Drive, DeviceDrive]:
    """CPU and GPU half of one session with a row a text, after their prompts."""
    cpu = Drive(selector, world, lead=lead)
    gpu = DeviceDrive(selector, world, places=len(PROMPTS) + 1, lead=lead)
    for text, tokens in enumerate(PROMPTS):
        cpu.prefill(text, tokens, chunk=64)
        gpu.adopt(text, cpu.bound, text, tokens)
    return cpu, gpu


def test_a_scored_half_selects_with_real_top_k() -> None:
    cpu, gpu = both(Forecast(), 1, World.random())
    at = [PROMPTS[0], -1, PROMPTS[2]]
    same_choice(gpu.decode([0, 1, 2], at), cpu.decode([0, 1, 2], at))


@pytest.mark.parametrize(("selector", "lead"), METHODS)
def test_a_gpu_half_chooses_what_the_cpu_half_chooses(selector: Selector, lead: int) -> None:
    cpu, gpu = both(selector, lead, World.random())
    same_choice(gpu.decode([0, 1, 2], PROMPTS), cpu.decode([0, 1, 2], PROMPTS))
    # One row sits out, another is cut into its prompt and goes on from there.
    cpu.bound.row_cropped(2, 130)
    gpu.half.place_cropped(2, 130)
    gpu.adopt(2, cpu.bound, 2, 130)
    at = [PROMPTS[0] + 1, -1, 130]
    same_choice(gpu.decode([0, 1, 2], at), cpu.decode([0, 1, 2], at))


@pytest.mark.parametrize(("selector", "lead"), [METHODS[2], METHODS[4]])
def test_forks_and_moves_take_what_is_known_along(selector: Selector, lead: int) -> None:
    world = World.random()
    cpu, gpu = both(selector, lead, world)
    copy = world.splice(0, 1, 100)
    cpu.bound.row_forked(0, copy)
    gpu.half.place_forked(0, 3)
    texts, at = [0, 1, 2, copy], [100, 37, 150, 100]
    same_choice(gpu.decode(texts, at), cpu.decode(texts, at))
    # The row of place 0 is gone; the last one takes its place.
    gpu.half.place_moved(3, 0)
    texts, at = [copy, 1, 2], [101, 38, 151]
    same_choice(gpu.decode(texts, at), cpu.decode(texts, at))


def test_a_row_without_a_prompt_keeps_its_first_channels() -> None:
    selector, world = InfiniGen(scoring="token", channels=3), World.random()
    cpu, gpu = Drive(selector, world), DeviceDrive(selector, world, places=1)
    decoded = [list(range(130))]
    for layer in range(SHAPE.layers):
        cpu.bound.observe(world.view([0], decoded, layer=layer), world.new_keys([0], decoded, layer))
    gpu.adopt(0, cpu.bound, 0, 130)
    same_choice(gpu.decode([0], [130]), cpu.decode([0], [130]))


@pytest.mark.parametrize(("selector", "lead"), METHODS[:3])
def test_neighbours_change_nothing(selector: Selector, lead: int) -> None:
    world = World.random(texts=4)
    cpu, gpu = both(selector, lead, world)
    together = gpu.decode([0, 1, 2], PROMPTS)
    gpu = DeviceDrive(selector, world, places=3, lead=lead)
    gpu.adopt(1, cpu.bound, 1, PROMPTS[1])
    apart = gpu.decode([3, 1, 3], [-1, PROMPTS[1], -1])
    np.testing.assert_array_equal(apart[:, 1], together[:, 1])
    assert (apart[:, [0, 2]] == -1).all()


def test_dense_lists_every_block_where_the_budget_holds_them_and_nothing_where_it_does_not() -> None:
    world = World.random(spec=SPEC.with_budget(16))
    got = DeviceDrive(Dense(), world, places=3, tokens=256, lead=0).decode([0, 1, 2], [0, 199, -1])
    assert got[1, 0, 1].tolist() == [0] + [-1] * 15
    assert got[1, 1, 1].tolist() == [*range(13), -1, -1, -1]
    assert (got[:, 2] == -1).all()
    narrow = DeviceDrive(Dense(), World.random(), places=1, lead=0)
    view = narrow.view([0], [100], layer=0, source=0)
    narrow.half.run("select", view)
    assert (view.choice.blocks == -7).all()


def recording(rows: int, steps: int, spec_budget: int = SPEC.budget) -> Recording:
    """Selections of the query in steps that begin at ragged positions; row 1 sits out every third step."""
    world = World.random()
    drive, chosen, where = Drive(Query(), world), [], []
    starts = (100, 60, 150)[:rows]
    for step in range(steps):
        at = [-1 if row == 1 and step % 3 == 2 else start + step for row, start in enumerate(starts)]
        chosen.append(drive.decode(range(rows), at)[:, :, :, 0])
        where.append(at)
    return Recording(
        model=SHAPE.name, selector="query", spec=SPEC, selections=np.stack(chosen), positions=np.array(where)
    )  # fmt: skip


@pytest.mark.parametrize("rows", [1, 3])
def test_replay_plays_what_the_cpu_half_plays(rows: int, tmp_path: Path) -> None:
    recording(rows, 5).save(tmp_path / "run.npz")
    selector, world = Replay(path=tmp_path / "run.npz"), World.random()
    cpu, gpu = Drive(selector, world, lead=1), DeviceDrive(selector, world, places=3, lead=1)
    for place, row in enumerate((2, 0, 1)[:rows]):
        gpu.adopt(place, cpu.bound, row, 100)
    starts = (100, 60, 150)[:rows]
    for step in (1, 4, 3):
        at = [start + step for start in starts]
        texts = (2, 0, 1)[:rows]
        same_choice(gpu.decode(texts, at), cpu.decode(texts, at))
    with pytest.raises(RecordingError, match="not recorded"):
        cpu.decode([2], [99])
    gpu.unlawful = True
    assert (gpu.decode([2], [99]) == -1).all()
    with pytest.raises(RecordingError, match="not recorded"):
        gpu.half.place_forked(0, 1)
    gpu.half.place_forked(0, 1)
    np.testing.assert_array_equal(gpu.decode([2, 2], [101, 101])[:, 1], cpu.decode([2], [101])[:, 0, :, 0])


def test_a_recording_wider_than_the_budget_is_refused(tmp_path: Path) -> None:
    recording(1, 1).save(tmp_path / "run.npz")
    room = DeviceRoom(
        shape=SHAPE, spec=SPEC.with_budget(3), places=1, tokens=256, device=DEVICE, dtype=torch.float32, lead=1
    )
    with pytest.raises(RecordingError, match="raise budget to 5"):
        Replay(path=tmp_path / "run.npz").bind_device(room)


def test_a_replaced_selection_is_the_traces_and_the_scores_are_the_inner_selectors() -> None:
    world = World.random()
    gpu = DeviceDrive(Forecast(), world, places=3)
    plain = gpu.decode([0, 1, 2], [100, 37, -1])
    scores = gpu.view([0, 1, 2], [100, 37, -1], layer=2, source=1).scores.nan_to_num(9.0).clone()
    trace = torch.from_numpy(recording(3, 4).selections).to(DEVICE)
    counter = torch.tensor([7], dtype=torch.int32, device=DEVICE)
    gpu.half, gpu.unlawful = Replaced(gpu.half, trace, counter, first=7), True
    for step in (3, 4):
        counter.fill_(7 + step)
        got = gpu.decode([0, 1, 2], [100, 37, -1])
        want = trace[step].cpu().numpy()[:, :3] if step < 4 else np.full_like(plain, -1)
        np.testing.assert_array_equal(got[:, :2], want[:, :2])
        assert (got[:, 2] == -1).all()
        view = gpu.view([0, 1, 2], [100, 37, -1], layer=2, source=1)
        assert torch.equal(view.scores.nan_to_num(9.0), scores)
    assert (plain != trace[0].cpu().numpy()).any()


def test_what_a_half_cannot_do_is_refused() -> None:
    world = World.random()
    room = DeviceDrive(Query(), world, places=1).room
    with pytest.raises(ConfigError, match="lead=0 can be predicted but not run"):
        Forecast(lead=0).bind_device(room)
    with pytest.raises(ConfigError, match="channels=9"):
        InfiniGen(channels=9).bind_device(room)
    gpu = DeviceDrive(Forecast(), world, places=1)
    view = gpu.view([0], [5], layer=1, source=0)
    view.forecast = None
    with pytest.raises(WeightsError, match="Forecast for layer 1"):
        gpu.half.run("score", view)
    with pytest.raises(PlanError, match="own query"):
        Query().bind_device(room).run("score", gpu.view([0], [5], layer=1, source=0))
    for selector in (Query(), Window()):
        with pytest.raises(PlanError, match="not bound"):
            selector.bind_device(room).run(PROXY, view)
    view.bias = None
    with pytest.raises(PlanError, match="layer 1 shows no token bias"):
        Nosa().bind_device(room).run(SHORTLIST, view)
    tokens = InfiniGen(channels=3)
    cpu, early = Drive(tokens, world), DeviceDrive(tokens, world, places=1)
    cpu.prefill(0, 20)
    with pytest.raises(ConfigError, match="keys"):
        early.half.adopt(0, cpu.bound, 0, 20)
    with pytest.raises(PlanError, match="shown 20 of the 21 tokens"):
        early.adopt(0, cpu.bound, 0, 21)


def test_every_registered_selector_has_a_gpu_half_or_says_that_it_has_none() -> None:
    room = DeviceDrive(Query(), World.random(), places=1).room
    made: dict[str, dict[str, Any]] = {"infinigen": {"channels": 4}, "replay": {"path": "nowhere.npz"}}
    for name in SELECTORS.names():
        selector = SELECTORS.make(name, **made.get(name, {}))
        if name == "oracle":
            with pytest.raises(ConfigError, match="CPU only"):
                selector.bind_device(room)
        elif name == "replay":
            with pytest.raises(RecordingError, match=r"nowhere\.npz"):
                selector.bind_device(room)
        else:
            assert selector.bind_device(room).used_bytes >= 0

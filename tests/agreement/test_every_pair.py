"""Under every selector, every runtime that fits selects exactly what `resident` does, and answers the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sparda_core.compose import Combination
from sparda_core.errors import CombinationError
from sparda_core.layer_view import LayerView
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.selection import check_selection
from sparda_core.selectors.recording import Recorder
from tests.agreement.worlds import MODEL, SHAPE, SPEC, TOKENS, pair

PROMPT, STEPS = 90, 40
#: Pairs that are refused on purpose.
CANNOT = {(name, "offload-prefetch") for name in ("query", "oracle", "nosa")}
#: Few slots, so that victims are needed.
SCORED: dict[str, object] = {"policy": "score", "slots": 7}
#: Selectors that give blocks no scores.
UNSCORED = ("dense", "replay", "window")
Outcome = tuple[list[torch.Tensor], list[torch.Tensor]]


def run(combination: Combination) -> Outcome:
    """Logits of every step, and every selection in order of layer."""
    logits, chosen = [], []
    with combination.open_cpu() as session:
        seen: dict[int, torch.Tensor] = {}

        def keep(view: LayerView) -> None:
            assert view.selection is not None
            check_selection(view.selection.numpy(), spec=combination.spec, positions=view.positions.numpy())
            seen[view.layer] = view.selection

        session.on_selection = keep
        row = session.add()
        session.prefill(row, TOKENS[:PROMPT])
        for token in TOKENS[PROMPT : PROMPT + STEPS]:
            logits.append(session.decode({row: token}).logits[0])
            chosen += [seen[layer] for layer in range(SHAPE.layers)]
    return logits, chosen


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Selections of `query`, for `replay`."""
    path = tmp_path_factory.mktemp("recording") / "query.npz"
    _, chosen = run(pair("query", "resident"))
    recorder = Recorder(shape=SHAPE, spec=SPEC, selector="query")
    for step in range(STEPS):
        layers = chosen[step * SHAPE.layers : (step + 1) * SHAPE.layers]
        recorder.add([PROMPT + step], np.stack([ids[:, :, 0].numpy() for ids in layers]))
    recorder.recording().save(path)
    return path


@pytest.fixture(scope="module")
def resident(recording: Path) -> dict[str, Outcome]:
    """What `resident` does under every selector."""
    return {name: run(pair(name, "resident", recording=recording)) for name in SELECTORS.names()}


@pytest.mark.parametrize(
    "options", [{}, {"policy": "lru", "slots": 41}, SCORED], ids=["last-selection", "lru", "score"]
)
@pytest.mark.parametrize("runtime", ["offload-sync", "offload-prefetch"])
@pytest.mark.parametrize("selector", SELECTORS.names())
def test_a_runtime_agrees_with_resident(
    selector: str, runtime: str, options: dict[str, object], recording: Path, resident: dict[str, Outcome]
) -> None:
    if (selector, runtime) in CANNOT:
        with pytest.raises(CombinationError, match="nearest workable choice"):
            pair(selector, runtime)
        return
    if options is SCORED and selector in UNSCORED:
        with pytest.raises(CombinationError, match=r"makes no scores; nearest workable choice: .* policy='lru'"):
            pair(selector, runtime, recording=recording, runtime_options={**options, "slots": 41})
        return
    logits, chosen = run(pair(selector, runtime, recording=recording, runtime_options=options))
    for got, want in zip(chosen, resident[selector][1], strict=True):
        assert torch.equal(got, want)
    for ours, theirs in zip(logits, resident[selector][0], strict=True):
        torch.testing.assert_close(ours, theirs)


def test_every_runtime_is_covered() -> None:
    assert set(RUNTIMES.names()) == {"resident", "offload-sync", "offload-prefetch"}


def test_dense_answers_as_the_plain_forward_does(resident: dict[str, Outcome]) -> None:
    want = MODEL.decoder.dense_forward(torch.tensor([TOKENS[: PROMPT + STEPS]]))
    torch.testing.assert_close(torch.stack(resident["dense"][0]), want[0, PROMPT:])


def test_replay_repeats_the_selector_that_was_recorded(resident: dict[str, Outcome]) -> None:
    torch.testing.assert_close(torch.stack(resident["replay"][0]), torch.stack(resident["query"][0]))

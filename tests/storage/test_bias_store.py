"""BiasStore against plain lists, through any life of its rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from sparda_core.errors import ConfigError, RowError
from sparda_core.runtimes.bias_store import BiasStore
from sparda_core.shapes import BlockSpec
from tests.profiles import share

SPEC = BlockSpec(block=8, window=4, stride=2, sink=1, local=1, budget=5)
LAYERS, HEADS = 2, 3


class _Machine(RuleBasedStateMachine):
    """`model` has every row's biases [L, Hk, n]."""

    def __init__(self) -> None:
        super().__init__()
        self.store = BiasStore(layers=LAYERS, kv_heads=HEADS, dtype=np.float64, spec=SPEC)
        self.model: dict[int, torch.Tensor] = {}
        self.next, self.drawn = 0, torch.Generator().manual_seed(0)

    def _new(self) -> int:
        self.next += 1
        return self.next

    @rule()
    def add(self) -> None:
        row = self._new()
        self.store.add(row)
        self.model[row] = torch.empty(LAYERS, HEADS, 0, dtype=torch.float64)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), tokens=st.integers(1, 12))
    def extend(self, data: st.DataObject, tokens: int) -> None:
        rows = data.draw(st.lists(st.sampled_from(list(self.model)), min_size=1, unique=True))
        new = torch.randn(LAYERS, len(rows), HEADS, tokens, generator=self.drawn, dtype=torch.float64)
        lengths = np.array([self.model[row].shape[2] for row in rows])
        for layer in range(LAYERS):
            self.store.extend(layer, rows, new[layer], lengths)
        for i, row in enumerate(rows):
            self.model[row] = torch.cat((self.model[row], new[:, i]), dim=2)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), share=st.floats(0, 1))
    def crop(self, data: st.DataObject, share: float) -> None:
        row = data.draw(st.sampled_from(list(self.model)))
        tokens = int(share * self.model[row].shape[2])
        self.store.crop(row, tokens)
        self.model[row] = self.model[row][:, :, :tokens]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        row, copy = data.draw(st.sampled_from(list(self.model))), self._new()
        self.store.fork(row, copy)
        self.model[copy] = self.model[row].clone()

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def retire(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(list(self.model)))
        self.store.retire(row)
        del self.model[row]

    @invariant()
    def the_same_biases_and_means(self) -> None:
        for row, want in self.model.items():
            count = SPEC.entry_count(want.shape[2])
            for layer in range(LAYERS):
                assert torch.equal(self.store.of(layer, row, want.shape[2]), want[layer])
                means = self.store.means(layer, (row,))
                assert means.counts.tolist() == [count]
                if count:
                    exact = want[layer].unfold(1, SPEC.window, SPEC.stride).mean(-1)
                    torch.testing.assert_close(means.padded()[0, ..., 0], exact, rtol=1e-13, atol=1e-13)
        values = sum(want.shape[2] + SPEC.entry_count(want.shape[2]) for want in self.model.values())
        assert self.store.used_bytes == 8 * LAYERS * HEADS * values


def test_any_life_of_rows_leaves_their_own_biases() -> None:
    wanted = settings(max_examples=share(30), stateful_step_count=25, deadline=None)
    run_state_machine_as_test(_Machine, settings=wanted)


def test_a_gap_is_refused_and_a_lost_row_named() -> None:
    store = BiasStore(layers=1, kv_heads=1, dtype=np.float32, spec=SPEC)
    store.add(4)
    with pytest.raises(ConfigError, match="position=9 of row 4"):
        store.extend(0, [4], torch.zeros(1, 1, 1), np.array([9]))
    store.retire(4)
    with pytest.raises(RowError, match="row=4"):
        store.means(0, [4])

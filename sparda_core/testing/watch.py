"""Watch: what a CPU session chooses and where its blocks lie, seen from outside while it steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from sparda_core.facts import StepFacts
from sparda_core.layer_view import LayerView
from sparda_core.policy import LAST_SELECTION
from sparda_core.runtimes.block_store import BlockStore
from sparda_core.runtimes.session import CpuSession
from sparda_core.runtimes.slot_pool import SlotPool
from sparda_core.testing.dense_row import DenseRow
from sparda_core.testing.runtime_laws import RuntimeBroken, hold

Held = dict[tuple[int, int, int], set[int]]


class Watch:
    """Observes one session.

    chosen     the last step's selections by layer, [B, Hk, 1, budget]
    appended   those of tokens appended by the selector since `forget`, [Hk, T, budget]; layers without one attend to
               everything

    tolerance  of keys and values beside those of a model without a cache, relative to the largest; sums in another
               order give other last bits
    """

    def __init__(self, name: str, session: CpuSession, *, tolerance: float) -> None:
        self.name, self.session, self._tolerance = name, session, tolerance
        self.chosen: dict[int, torch.Tensor] = {}
        self.appended: dict[int, torch.Tensor] = {}
        self.moved = self.wasted = 0
        session.on_selection = self._selected
        session.on_chunk = self._chose_for_chunk
        session.on_layer = self._attends

    # While a step runs ----------------------------------------------------------------------------

    def _selected(self, view: LayerView) -> None:
        assert view.selection is not None
        self.chosen[view.layer] = view.selection.clone()

    def forget(self) -> None:
        """Forget what was chosen for tokens appended so far."""
        self.appended = {}

    def _chose_for_chunk(self, view: LayerView) -> None:
        assert view.selection is not None
        chosen = view.selection[0].clone()
        before = self.appended.get(view.layer, chosen[:, :0])
        self.appended[view.layer] = torch.cat((before, chosen), dim=1)

    def _attends(self, view: LayerView) -> None:
        """Each selected block lies in a slot, whole, up to and with the step's own token."""
        pool = self.session.tiers.pools.get(view.layer)
        if pool is None:
            return
        for at, row in enumerate(view.rows):
            known = int(view.positions[at, 0]) + 1
            for head, ids in enumerate(self.chosen[view.layer][at, :, 0].tolist()):
                wanted = [block for block in ids if block >= 0]
                slots = pool.slot_of(row, np.array(wanted, np.int64))[head]
                where = f"{self.name}: layer {view.layer}, row {row}, head {head}"
                if not (slots >= 0).all():
                    raise RuntimeBroken("resident-when-attended", f"{where}: {wanted} in slots {slots}")
                found = dict(zip(wanted, slots, strict=True))
                self._same_bytes("resident-when-attended", view.layer, row, head, found, known)

    # Between steps --------------------------------------------------------------------------------

    def held(self) -> Held:
        """Blocks in slots, by (layer, row, head)."""
        pools = self.session.tiers.pools
        return {
            (layer, row, head): {int(block) for block in slots if block >= 0}
            for layer, pool in pools.items()
            for row in self.session.rows
            for head, slots in enumerate(pool.resident(row))
        }

    def step_was_lawful(self, facts: StepFacts, rows: tuple[int, ...], before: Held, moved: int) -> None:
        """Counts, transfers and victims of the step just made by `rows`, in batch order."""
        at = [self.session.rows.index(row) for row in rows]
        sizes = np.stack([(self.chosen[layer][:, :, 0] >= 0).sum(-1).numpy() for layer in sorted(self.chosen)])
        hold("counts", (facts.selected[:, at] == sizes).all(), f"{self.name}: selected {facts.selected.tolist()}")
        whole = (facts.hits + facts.misses == facts.selected).all()
        hold("counts", whole, f"{self.name}: hits and misses do not add up")
        resident = self.session.plan.resident_layers
        hold("counts", not facts.misses[:resident].any(), f"{self.name}: a resident layer missed blocks")
        opens = [(self.session.length(row) - 1) % self.session.spec.block == 0 for row in rows]
        hold(
            "counts", (facts.opened[:, at] == np.array(opens)[None, :, None]).all(),
            f"{self.name}: opened {facts.opened[:, at].tolist()}, rows that open a block: {opens}",
        )  # fmt: skip
        transferred = self.session.transferred - moved
        hold(
            "misses-are-transfers", int(facts.misses.sum()) == transferred,
            f"{self.name}: {int(facts.misses.sum())} misses counted, {transferred} blocks moved",
        )  # fmt: skip
        self.moved, self.wasted = self.moved + transferred, self.wasted + int(facts.wasted.sum())
        hold("counted-once", (facts.late <= facts.misses).all(), f"{self.name}: more late than missed")
        hold("counted-once", self.wasted <= self.moved, f"{self.name}: {self.wasted} wasted of {self.moved} moved")
        self._victims(rows, before)

    def _victims(self, rows: tuple[int, ...], before: Held) -> None:
        after = self.held()
        for (layer, row, head), blocks in after.items():
            pool, was = self.session.tiers.pools[layer], before[layer, row, head]
            where = f"{self.name}: layer {layer}, row {row}, head {head}"
            if row not in rows:
                if blocks != was:
                    raise RuntimeBroken("victims", f"{where}: sat out, had {sorted(was)}, has {sorted(blocks)}")
                continue
            wanted = {block for block in self.chosen[layer][rows.index(row), head, 0].tolist() if block >= 0}
            if not (wanted <= blocks):
                raise RuntimeBroken("victims", f"{where}: of {sorted(wanted)} lost {sorted(wanted - blocks)}")
            if pool.policy == LAST_SELECTION:
                if blocks != wanted:
                    raise RuntimeBroken("victims", f"{where}: keeps {sorted(blocks - wanted)} besides")
            else:
                gone = was - blocks
                full = len(blocks) == pool.slots
                if gone and not full:
                    raise RuntimeBroken("victims", f"{where}: dropped {sorted(gone)} with slots to spare")

    def tiers_are_lawful(self, dense: Mapping[int, DenseRow]) -> None:
        """Everything that is kept is what was appended, where it should be."""
        tiers, session = self.session.tiers, self.session
        for store in (tiers.device, tiers.host):
            self._pages(store)
        for row, model in dense.items():
            for layer in range(session.shape.layers):
                kept = tiers.store(layer).read(layer, row, 0, model.tokens)
                for name, got, want in zip("KV", kept, (model.keys[layer], model.values[layer]), strict=True):
                    most = float(want.abs().max()) if want.numel() else 0.0
                    near = np.allclose(got, want.numpy(), rtol=0, atol=self._tolerance * most)
                    hold("nothing-lost", near, f"{self.name}: {name} of layer {layer}, row {row} is not as appended")
            for layer, pool in tiers.pools.items():
                self._slots(layer, pool, row, model.tokens)

    def _slots(self, layer: int, pool: SlotPool, row: int, tokens: int) -> None:
        block = self.session.spec.block
        for head, slots in enumerate(pool.resident(row).tolist()):
            blocks = [held for held in slots if held >= 0]
            where = f"{self.name}: layer {layer}, row {row}, head {head}"
            if len(set(blocks)) != len(blocks):
                raise RuntimeBroken("one-slot-a-block", f"{where}: slots hold {slots}")
            if tokens % block and tokens // block not in blocks:
                raise RuntimeBroken("tail-in-a-slot", f"{where}: block {tokens // block} has none")
            found = pool.slot_of(row, np.array(blocks, np.int64))[head]
            self._same_bytes("slots-hold-copies", layer, row, head, dict(zip(blocks, found, strict=True)), tokens)

    def _same_bytes(self, law: str, layer: int, row: int, head: int, slots: Mapping[int, Any], tokens: int) -> None:
        """Blocks in slots have the bytes of the host store, as far as the row's tokens go."""
        pool, host, block = self.session.tiers.pools[layer], self.session.tiers.host, self.session.spec.block
        places = host.physical(layer, row)[head]
        for one, slot in slots.items():
            seen = min(block, tokens - one * block)
            where = f"{self.name}: layer {layer}, row {row}, head {head}, block {one}"
            if seen <= 0:
                raise RuntimeBroken(law, f"{where}: is in a slot, and the row has {tokens} tokens")
            same = np.array_equal(pool.array[slot][:, :seen], host.array[places[one]][:, :seen])
            if not same:
                raise RuntimeBroken(law, f"{where}: slot {slot} does not have the bytes of the host store")

    def _pages(self, store: BlockStore) -> None:
        of_rows = {row: store.row_pages(row).ravel().tolist() for row in store.rows}
        for row, pages in of_rows.items():
            hold("pages", len(set(pages)) == len(pages), f"{self.name}: row {row} holds a page twice: {pages}")
        held, used = len({page for pages in of_rows.values() for page in pages}), store.used_pages
        hold("pages", held == used, f"{self.name}: {used} pages are in use and rows hold {held}")

"""One launch of the append kernel, and the obvious way in float64 that it is compared with."""

from __future__ import annotations

from typing import Any

import attrs
import torch

from sparda_core.kernels.append import gpu, reference
from sparda_core.kernels.append.store import Store
from tests.gpu.append.worlds import World, close, positions, strided


def rotate_append(world: World, proj: torch.Tensor, store: Store | None, **tensors: Any) -> None:
    gpu.rotate_append(
        proj, heads=world.heads, cos=world.tables.cos, sin=world.tables.sin, position=positions(world.places),
        spec=world.spec, store=store, **tensors,
    )  # fmt: skip


def wanted_heads(world: World, proj: torch.Tensor) -> dict[str, torch.Tensor | None]:
    cos, sin = world.tables.cos.cpu().double(), world.tables.sin.cpu().double()
    where = torch.tensor(world.places)
    turned = reference.rotate_heads(proj.cpu(), heads=world.heads, cos=cos, sin=sin, position=where)
    q, kv = world.heads.q, world.heads.kv
    sizes = [q, kv, *[kv] * world.heads.has_next, *[kv] * world.heads.has_own, kv]
    parts = torch.split(turned, sizes, 1)
    return {
        "query": parts[0],
        "key": parts[1],
        "forecast_next": parts[2] if world.heads.has_next else None,
        "forecast_own": parts[-2] if world.heads.has_own else None,
        "value": parts[-1],
    }


def copies(store: Store) -> list[torch.Tensor]:
    """The store's arrays."""
    arrays = [store.slots, *(pages.array for pages in (store.device, store.host) if pages is not None)]
    return [array for array in arrays if array is not None]


def on_cpu(store: Store) -> Store:
    """The same with copies of everything in the CPU's memory."""

    def pages(name: str) -> Any:
        one = getattr(store, name)
        return one and attrs.evolve(one, array=one.array.cpu().clone(), table=one.table.cpu())

    slots, tail = store.slots, store.tail
    return Store(
        device=pages("device"), host=pages("host"), slots=None if slots is None else slots.cpu().clone(),
        tail=None if tail is None else tail.cpu(),
    )  # fmt: skip


def launch_is_right(world: World, where: str, *, host: bool) -> None:
    """Rotated heads, ring, entries and store of one launch are the references'; nothing else is written.

    where  "pages" or "slots": the store on the device
    host   whether K and V are written through to pinned pages
    """
    proj = strided(len(world.places), world.heads.total * world.size, dtype=world.dtype)
    proj.copy_(world.random(*proj.shape))
    out, entries, ring, store = world.outputs(), world.entries(), world.ring(), world.store(where, host=host)
    place, wanted = torch.tensor(world.places), on_cpu(store)
    want_entries, want_ring = entries.cpu().double(), ring.cpu().clone()
    rotate_append(world, proj, store, entries=entries, ring=ring, **out)
    for name, want in wanted_heads(world, proj).items():
        got = out[name]
        assert (got is None) == (want is None)
        if got is not None and want is not None:
            close(got, want)
    key, value = out["key"], out["value"]
    assert key is not None
    assert value is not None
    reference.keep_keys(key.cpu(), place, want_entries, want_ring, world.spec)
    reference.store_tokens(key.cpu(), value.cpu(), place, wanted)
    torch.testing.assert_close(ring.cpu(), want_ring, rtol=0, atol=0, equal_nan=True)
    close(entries, want_entries)
    for array, want_array in zip(copies(store), copies(wanted), strict=True):
        torch.testing.assert_close(array.cpu(), want_array, rtol=0, atol=0, equal_nan=True)

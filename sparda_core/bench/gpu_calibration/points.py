"""Which kernels are timed with nothing beside them, at which sizes. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from sparda_core.bench.gpu_calibration.sizes import KIB, Sizes


@attrs.frozen(kw_only=True)
class Point:
    """A kernel class at one size.

    rows     of the step
    context  tokens of each of them
    slots    that each KV head has, in selections; matters to a diff
    """

    kernel: str
    rows: int
    context: int
    slots: int = 1


#: Rows between those at which every class is timed: the library's products change their tiles there, and grids of ours
#: fill the last round of the SMs well or badly.
_ATTEND = (2, 8, 12, 20, 24, 28, 32, 40, 48, 56, 80, 96, 112, 128, 160, 192, 256)
_SCORES = {
    "score forecast": {128: (8, 28), 32: (1, 16, 40, 112, 160), 64: (20, 24, 56), 256: (8,)},
    "score query": {128: (8, 28), 32: (40, 112, 160), 64: (20, 24, 56), 192: (10,)},
    "score proxy": {128: (8,), 12: (160,), 32: (16, 40, 112), 256: (8,)},
}
#: Thousands of tokens whose blocks are chosen from.
_CHOOSE = {12: (16, 160), 32: (1, 16, 64, 160), 64: (16, 64), 128: (160,), 192: (16,), 256: (1, 16, 64)}
_DIFF_ROWS, _SLOTS = (1, 16, 64, 160), (1, 2, 3, 4)
_MORE = {
    "qkv": (32, 128, 256), "output": (32, 128, 256), "gate up": (32, 128, 256), "down": (32, 128, 256),
    "head": (32, 128, 256), "attend": _ATTEND, "attend all": (8, 28), "attend pages": (8, 28, 112),
    "choose and diff last-selection": (160,), "norm": (256,), "gate": (112, 256), "rotate append": (160, 256),
    "sample": (112, 256),
}  # fmt: skip


def points(sizes: Sizes, classes: tuple[str, ...]) -> list[Point]:
    """Every class at `sizes.batches`; in a full calibration between them and at other contexts, too."""
    found = [Point(kernel=name, rows=rows, context=sizes.context) for name in classes for rows in sizes.batches]
    if sizes.finely:
        found += _between(sizes)
    # One class after another, so that only one has its tensors in memory.
    order = {name: at for at, name in enumerate(classes)}
    return sorted(dict.fromkeys(found), key=lambda point: order[point.kernel])


def _between(sizes: Sizes) -> Iterator[Point]:
    for name, rows in _MORE.items():
        yield from (Point(kernel=name, rows=count, context=sizes.context) for count in rows)
    for name, table in (*_SCORES.items(), ("choose", _CHOOSE)):
        for kib, rows in table.items():
            yield from (Point(kernel=name, rows=count, context=kib * KIB) for count in rows)
    yield from (
        Point(kernel=name, rows=rows, context=sizes.context, slots=slots)
        for name in ("diff lru", "choose and diff lru")
        for slots in _SLOTS
        for rows in (_DIFF_ROWS if name == "diff lru" else (16, 64))
    )

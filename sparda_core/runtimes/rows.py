"""Rows by name: where each row's data lies in a store's tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sparda_core.errors import ConfigError, RowError


class RowTable:
    """Gives each row id a place: the lowest that is free."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._batches: dict[tuple[int, ...], npt.NDArray[np.int64]] = {}

    def __contains__(self, row: object) -> bool:
        return row in self._places

    @property
    def rows(self) -> tuple[int, ...]:
        """Row ids, oldest first."""
        return tuple(self._places)

    def next_place(self) -> int:
        """The place that the next `add` will give."""
        taken = set(self._places.values())
        return next(place for place in range(len(taken) + 1) if place not in taken)

    def add(self, row: int) -> int:
        """Place of a new row; raises ConfigError where the id is in use."""
        self.refuse_known(row)
        place = self.next_place()
        self._places[row] = place
        return place

    def remove(self, row: int) -> int:
        """Place that the row had; raises RowError where there is no such row."""
        place = self.place(row)
        del self._places[row]
        self._batches.clear()
        return place

    def place(self, row: int) -> int:
        """Place of a row; raises RowError where there is no such row."""
        try:
            return self._places[row]
        except KeyError:
            known = ", ".join(map(str, sorted(self._places))) or "none"
            raise RowError(f"row={row} does not exist or was retired; rows: {known}") from None

    def batch(self, rows: Sequence[int]) -> npt.NDArray[np.int64]:
        """int64 [B], places of rows in the order given. The array is shared between calls: read only."""
        key = tuple(rows)
        found = self._batches.get(key)
        if found is None:
            found = self._batches[key] = np.array([self.place(row) for row in key], np.int64)
        return found

    def refuse_known(self, row: int) -> None:
        """Raise ConfigError where the id is in use."""
        if row in self._places:
            raise ConfigError(f"row={row} is in use; row ids are never used twice")

"""What a GPU session has no room for, told with the way out."""

from __future__ import annotations

from collections.abc import Mapping

from sparda_core.errors import CapacityError


def check_place(place: int, places: int) -> int:
    """The place, where it is one of `places`; raises CapacityError where all hold rows."""
    if place < places:
        return place
    raise CapacityError(
        tier="places", need=1, free=0, unit="rows", says=f"all {places} places of this session hold rows",
        hint="retire a row, or open the session with more places",
    )  # fmt: skip


def check_room(before: Mapping[int, int], more: int, room: int) -> None:
    """Raise CapacityError where a row, by id with its tokens, cannot grow by `more` to at most `room`."""
    for row, length in before.items():
        if length + more > room:
            raise CapacityError(
                tier="row", need=length + more, free=room, unit="tokens",
                says=f"row {row} of {length} tokens cannot grow by {more}: rows of this session hold {room}",
                hint="crop the row, or open the session with more tokens",
            )  # fmt: skip

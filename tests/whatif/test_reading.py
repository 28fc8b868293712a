"""Numbers as they are read."""

from __future__ import annotations

import pytest

from sparda_core.whatif.reading import readable


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (2.0, "2"), (0.0234567, "0.02346"), (14.8401, "14.84"), (1786.4, "1786"), (90470.0, "90470"),
        (270300.4, "270300"), (1.37439e11, "1.374e+11"), (-1786.4, "-1786"), (0.00001, "1e-05"),
    ],
)  # fmt: skip
def test_four_figures_or_the_whole_part_without_an_exponent(value: float, text: str) -> None:
    assert readable(value) == text

"""Reports of the whole table, made once."""

from __future__ import annotations

import pytest

from sparda_core.published.cells import Assumptions
from sparda_core.published.report import FITTED, Report, fit_launch, make_report


@pytest.fixture(scope="session")
def plain() -> Report:
    return make_report(Assumptions())


@pytest.fixture(scope="session")
def fitted() -> Report:
    return make_report(fit_launch(Assumptions()), fitted=FITTED)

"""What all tests of models share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Keep a developer's real cache out of it, except where a test reads the real model."""
    if request.node.get_closest_marker("model") is None:
        monkeypatch.setenv("SPARDA_CACHE", str(tmp_path / "cache"))

"""Keeping what a script of this folder measured, with what it was measured on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sparda_core.bench.gpu_machine import gpu
from sparda_core.bench.provenance import provenance
from sparda_core.files import write_whole


def keep(path: Path | str | None, what: str, rows: Any, **more: Any) -> None:
    """Write rows, and where they come from, as JSON; nothing where no file was named."""
    if path is not None:
        document = {"what": what, "gpu": gpu(), "provenance": provenance(), **more, "rows": rows}
        write_whole(Path(path), json.dumps(document, indent=1) + "\n")

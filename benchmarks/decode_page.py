"""Fill the tables of docs/decode.md from the measured steps that are kept: python -m benchmarks.decode_page"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from sparda_core.bench.decode.page import filled
from sparda_core.files import write_whole

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "decode.md"
#: Results by the name that the page's tables begin with.
DATA = {
    name: ROOT / "benchmarks" / "results" / f"2026-11-30-decode{f'-{name}' if name else ''}-h200.json"
    for name in ("", "nosa", "entries", "leads")
}


def documents() -> dict[str, Any]:
    """The results, read."""
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in DATA.items()}


def main() -> int:
    """Write the page; returns 0."""
    write_whole(PAGE, filled(PAGE.read_text(encoding="utf-8"), documents()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

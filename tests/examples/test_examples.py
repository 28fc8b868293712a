"""Every example runs as it stands and prints what lies beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_lies_beside_it(script: Path) -> None:
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == script.with_suffix(".out").read_text()


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 2

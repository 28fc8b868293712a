"""The tables of docs/decode.md are those of the result file that it names, cell for cell."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sparda_core.bench.decode.page import filled
from sparda_core.errors import ConfigError
from tests.bench.test_decode_rows import rows_at
from tests.house.tree import ROOT

PAGE = (ROOT / "docs" / "decode.md").read_text()
TABLE = re.compile(r"(<!-- table: [a-z0-9-]+ -->\n).*?(<!-- end -->)", re.DOTALL)


def test_tables_are_filled_from_the_result_file_or_empty_until_there_is_one() -> None:
    (name,) = set(re.findall(r"`(benchmarks/results/[\w-]+-decode-h200\.json)`", PAGE))
    file: Path = ROOT / name
    if file.exists():
        assert filled(PAGE, {"": json.loads(file.read_text())}) == PAGE
    else:
        assert TABLE.sub(r"\1\2", PAGE) == PAGE


def test_filling_changes_the_page_once_and_a_second_time_nothing() -> None:
    document = {"rows": [{**row, "kinds_s": row.get("kinds_s", {})} for row in rows_at(16)]}
    once = filled(PAGE, {"": document})
    assert once != PAGE
    assert filled(once, {"": document}) == once
    with pytest.raises(ConfigError, match="table='nonsense' is unknown"):
        filled("<!-- table: nonsense -->\n<!-- end -->", {"": document})

"""Commands that run a model take the blocks that its checkpoint names, where no option says otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import attrs
import pytest

from sparda_core.cli.main import main
from sparda_core.errors import ConfigError
from sparda_core.shapes import BlockSpec
from tests.cli.test_generate_families import write

OWN = BlockSpec(block=16, window=8, stride=4, sink=1, local=2, budget=6)  # as write() has it for a MiniCPM
COMMANDS = {
    "compare": ("sparda_core.bench.compare.run_compare", ()),
    "calibrate": ("sparda_core.bench.calibrate_cpu.calibrate_cpu", ("--contexts", "64", "--selectors", "query")),
    "timeline": (
        "sparda_core.bench.calibrate_cpu.calibrate_cpu", ("--selector", "query", "--runtime", "offload-sync")
    ),
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_blocks_are_the_checkpoints_own_and_give_way_to_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    does, words = COMMANDS[command]
    seen: list[BlockSpec] = []

    def stopped(*args: Any, **options: Any) -> NoReturn:
        seen.extend(arg.spec for arg in args if hasattr(arg, "spec"))
        raise ConfigError("seen enough")

    monkeypatch.setattr(does, stopped)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("The quick brown fox jumps over it. " * 6)
    for family, options in (("minicpm", ()), ("minicpm", ("--budget", "5")), ("qwen3", ())):
        folder = tmp_path / family
        if not folder.exists():
            write(folder, family)
        assert main([command, "--model", str(folder), "--text", "text.txt", *words, *options]) != 0
    assert seen == [OWN, attrs.evolve(OWN, budget=5), BlockSpec()]

"""The command line and the configuration have one set of defaults."""

from __future__ import annotations

import argparse

import attrs
import pytest

from sparda_core.bench.config import CompareConfig
from sparda_core.cli import compare

NAMES = {"quality_steps": "steps"} | {name: name for name in ("timed_steps", "rounds", "windows", "seed")}


@pytest.mark.parametrize(("option", "field"), NAMES.items())
def test_an_option_left_out_is_the_configurations_default(option: str, field: str) -> None:
    parser = argparse.ArgumentParser()
    compare.add_arguments(parser)
    given = getattr(parser.parse_args([]), option)
    assert given == attrs.fields_dict(CompareConfig)[field].default

"""The knobs of a Scenario as options: one set of names, bounds and help for every command that takes them."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import Any

from sparda_core.cli.options import check_pool, selector_options
from sparda_core.cli.parser import number
from sparda_core.whatif.knobs import MOST, Knob
from sparda_core.whatif.scenario import Scenario

#: Options that are not spelled as their knob: given once for each pair.
SPELLED = {"selector_options": "--selector-option"}


def add_knobs(parser: argparse.ArgumentParser, *, leave_out: Collection[str] = ()) -> None:
    """An option for every knob but those left out, in groups; defaults are those of Scenario()."""
    usual, groups = Scenario(), {}
    for knob in Scenario.knobs().values():
        if knob.name in leave_out:
            continue
        if knob.group not in groups:
            groups[knob.group] = parser.add_argument_group(knob.group)
        option = SPELLED.get(knob.name, "--" + knob.name.replace("_", "-"))
        groups[knob.group].add_argument(option, dest=knob.name, help=knob.help, **_how(knob, usual))


#: Knobs of the device pool, which a runtime that moves nothing has no use for; their values where nobody set them.
POOL = {"slots": None, "slot_factor": Scenario().slot_factor, "policy": Scenario().policy, "resident_layers": None}


def check_knobs(scenario: Scenario) -> None:
    """Raise ConfigError where the pool's knobs were turned for a runtime without a pool."""
    turned = {name: getattr(scenario, name) for name, usual in POOL.items() if getattr(scenario, name) != usual}
    check_pool(scenario.runtime, turned)


def scenario_of(args: argparse.Namespace) -> Scenario:
    """The scenario of parsed options; knobs that the command left out keep their defaults."""
    values = {name: getattr(args, name) for name in Scenario.knobs() if hasattr(args, name)}
    if "selector_options" in values:
        values["selector_options"] = selector_options(values["selector_options"])
    return Scenario.of(values)


def _how(knob: Knob, usual: Scenario) -> dict[str, Any]:
    if knob.kind is bool:
        return {"action": "store_true"}
    if knob.kind is dict:
        return {"action": "append", "default": [], "metavar": knob.metavar}
    metavar = f"{{{','.join(knob.choices)}}}" if knob.choices else knob.metavar
    how = {"default": getattr(usual, knob.name), "metavar": metavar}
    if knob.numeric:
        how["type"] = number(knob.kind, least=knob.least, most=None if knob.most == MOST else knob.most)
    return how

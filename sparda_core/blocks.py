"""The cut of a run: what its options say, what its checkpoint names, and what stands where neither does. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping

from sparda_core.errors import ConfigError
from sparda_core.shapes import BlockSpec

#: Fields of a BlockSpec, in the order of options.
FIELDS = ("block", "window", "stride", "sink", "local", "budget")
#: The flag that lets options say otherwise than a checkpoint.
OTHER = "--other-blocks"
OTHER_HELP = "let options cut blocks and entries otherwise than the checkpoint's sparse_config says"


def settled(
    said: Mapping[str, int | None], own: BlockSpec | None, usual: BlockSpec, *, other: bool = False,
    options: Mapping[str, str] | None = None,
) -> BlockSpec:  # fmt: skip
    """The cut: each field as it was said, else the checkpoint's, else the usual one.

    said     by field; None for one that was left out
    own      of the checkpoint; None where it names none
    other    whether what was said may differ from the checkpoint's; a budget may in any case, since it is chosen anew
             for every use of a model
    options  names of fields in messages, where they are not the fields' own
    raises   ConfigError where they differ and may not, naming each; or where the numbers do not fit together
    """
    if own is not None and not other:
        differs = {
            name: value for name, value in said.items() if value not in (None, getattr(own, name)) and name != "budget"
        }
        if differs:
            names = options or {}
            told = ", ".join(f"{names.get(name, '--' + name)} {value}" for name, value in differs.items())
            theirs = ", ".join(f"{name}={getattr(own, name)}" for name in differs)
            raise ConfigError(
                f"{told} contradicts the checkpoint, whose sparse_config has {theirs}: leave out, or add {OTHER} to "
                "cut otherwise than it was trained"
            )
    base = usual if own is None else own
    known = {name: value for name, value in said.items() if value is not None}
    return BlockSpec(**{name: known.get(name, getattr(base, name)) for name in FIELDS})

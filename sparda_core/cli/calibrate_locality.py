"""`sparda calibrate --locality RECORDING`: churn and reuse of recorded selections as a file. Loads no torch."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from sparda_core.cli.screen import show_json, show_table
from sparda_core.errors import ConfigError
from sparda_core.files import check_place

if TYPE_CHECKING:
    from sparda_core.simulator.locality import LocalityModel
    from sparda_core.simulator.locality_fit import MissShares


def calibrate_locality(recording: Path, out: Path, *, as_json: bool) -> int:
    """Fit, write, and show the fit beside what it was fitted to."""
    if out.suffix != ".toml":
        raise ConfigError(f"out={str(out)!r} must end in .toml")
    check_place(out)

    from sparda_core.selectors.recording import load
    from sparda_core.selectors.shipped import path_of
    from sparda_core.simulator.locality_file import save_locality
    from sparda_core.simulator.locality_fit import fit_locality, miss_shares

    recorded = load(recording)
    digest = hashlib.sha256(path_of(recording).read_bytes()).hexdigest()
    model = fit_locality(recorded, name=out.stem, file=path_of(recording).name, sha256=digest)
    shares = miss_shares(recorded, model)
    save_locality(model, out)
    if as_json:
        show_json({"file": str(out), **attrs.asdict(model), "misses": [attrs.asdict(share) for share in shares]})
        return 0
    _tables(model, shares)
    sys.stdout.write(f"{out}: locality {model.name!r}, churn {model.churn:.2%}\n")
    return 0


def _tables(model: LocalityModel, shares: tuple[MissShares, ...]) -> None:
    fitted = model.fitted
    assert fitted is not None
    show_table(
        model.title, ("deeper than, in selections", "share of newcomers"),
        [(f"{depth:g}", f"{share:.1%}") for depth, share in model.reuse],
        notes=[
            f"{fitted.selected} blocks selected in {fitted.steps} steps of {fitted.streams} streams.",
            f"{fitted.newcomers} of them newcomers, {fitted.unseen} of these never shown before.",
            f"Beyond the last depth the share falls as depth ** -{model.tail:g}.",
            f"Source: {fitted.recording}, sha256 {fitted.sha256[:12]}.",
        ],
    )  # fmt: skip
    show_table(
        "Misses / selected blocks", ("policy", "slots", "recording", "fit, same steps", "fit, steady"),
        [
            (one.policy, str(one.slots), f"{one.recording:.2%}", f"{one.model:.2%}", f"{one.steady:.2%}")
            for one in shares
        ],
        notes=[
            "Recording and same steps: slots empty at first, the second half of the recorded steps counted.",
            "Steady: slots that have been in use for long.",
        ],
    )  # fmt: skip

"""Whether a model has the Forecast that a selector needs: asked by sessions on any device before they open."""

from __future__ import annotations

from typing import Any

from sparda_core.errors import ConfigError
from sparda_core.selector import Selector


def check_forecast(decoder: Any, selector: Selector) -> None:
    """Raise ConfigError where the model lacks the Forecast that a selector needs, or has one of another lead."""
    if "forecast" not in selector.needs:
        return
    if not decoder.has_forecast:
        raise ConfigError(
            f"selector={selector.name!r} needs Forecast weights and the model has none: "
            "train them with `sparda train`, load them with forecast=FILE, or choose selector 'query'"
        )
    trained = decoder.forecast_lead
    if selector.lead is not None and selector.lead != trained:
        raise ConfigError(
            f"lead={selector.lead} of selector {selector.name!r} must be {trained}, the lead that the model's Forecast "
            f"was trained for: leave lead out, or load a Forecast of lead {selector.lead} "
            f"(`sparda train --lead {selector.lead}`)"
        )

"""Tensor half of `forecast`."""

from __future__ import annotations

import torch

from sparda_core.errors import WeightsError
from sparda_core.kernels.score_forecast.cpu import forecast_block_scores
from sparda_core.layer_view import LayerView
from sparda_core.selectors.scored import ScoredSelector


class BoundForecast(ScoredSelector):
    """Scores blocks with the Forecast that the layer before made."""

    def scores(self, view: LayerView) -> torch.Tensor:
        """[B, Hk, T, M], dot products with the entries, pooled; raises WeightsError without a Forecast."""
        if view.forecast is None:
            raise WeightsError(
                f"selector 'forecast' needs a Forecast for layer {view.layer}, and the model has none: "
                "train one with `sparda train`, or choose selector 'query' (or 'infinigen', which needs no training)"
            )
        return forecast_block_scores(view.forecast, view.entries, view.positions, view.spec)

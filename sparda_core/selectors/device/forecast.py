"""GPU half of `forecast`."""

from __future__ import annotations

from sparda_core.device_view import DeviceView
from sparda_core.errors import WeightsError
from sparda_core.kernels.score_forecast.gpu import forecast_block_scores
from sparda_core.selectors.device.scored import ScoredDevice


class DeviceForecast(ScoredDevice):
    """Scores blocks with the Forecast that the layer before made. Keeps nothing."""

    def score(self, view: DeviceView) -> None:
        """Dot products with the entries, pooled; raises WeightsError without a Forecast."""
        if view.forecast is None:
            raise WeightsError(
                f"selector 'forecast' needs a Forecast for layer {view.layer}, and the model has none: "
                "train one with `sparda train`, or choose selector 'query' (or 'infinigen', which needs no training)"
            )
        forecast_block_scores(
            view.forecast, view.entries, view.position, view.spec, view.unseen, view.scores, early=self.early
        )

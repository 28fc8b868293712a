"""GPU half of `nosa` and `nosa-forecast`."""

from __future__ import annotations

from sparda_core.device_view import DeviceView
from sparda_core.errors import PlanError
from sparda_core.kernels.shortlist.gpu import shortlist_scores
from sparda_core.selector import DeviceRoom, DeviceSelector
from sparda_core.selectors.device.scored import ScoredDevice
from sparda_core.selectors.nosa import SHORTLIST, NosaDeclaration


class DeviceNosa(ScoredDevice):
    """Another method's scores, then one launch more, which leaves the scores of the two-stage choice.

    The choice itself is the plain one by scores, so a runtime may make it in one launch with the diff.
    """

    def __init__(self, room: DeviceRoom, first: DeviceSelector, declared: NosaDeclaration) -> None:
        super().__init__(room)
        assert isinstance(first, ScoredDevice)
        self._first, self._declared = first, declared
        self.used_bytes = first.used_bytes

    def score(self, view: DeviceView) -> None:
        """As the first stage scores."""
        self._first.score(view)

    def run(self, kind: str, view: DeviceView) -> None:
        """`shortlist` turns view.scores into those of the two-stage choice; see ScoredDevice for the others."""
        if kind != SHORTLIST:
            super().run(kind, view)
            return
        if view.bias is None:
            raise PlanError(
                f"layer {view.layer} shows no token bias: the model has none, and no plan of ours asks for it"
            )
        keep = self._declared.keep(view.spec)
        shortlist_scores(
            view.scores, view.bias, view.position, view.spec, view.unseen, keep=keep, early=self.early
        )

"""What judges a selector or a runtime, built in or yours: one call each, docs/testing.md.

    check_selector(MySelector())
    check_runtime(MyRuntime())

Both raise LawBroken with the law, the smallest example that breaks it and a call that shows it again. They draw their
examples with hypothesis, which the extra `sparda[testing]` brings.
"""

from __future__ import annotations

from sparda_core.testing.check_runtime import check_runtime
from sparda_core.testing.check_selector import SELECTOR_LAWS, check_selector
from sparda_core.testing.law import Law, LawBroken, Verdict
from sparda_core.testing.runtime_laws import RUNTIME_LAWS
from sparda_core.testing.scene import Scene, scenes
from sparda_core.testing.stage import Stage
from sparda_core.testing.trial import Sight, Trial

__all__ = [
    "RUNTIME_LAWS", "SELECTOR_LAWS", "Law", "LawBroken", "Scene", "Sight", "Stage", "Trial", "Verdict", "check_runtime",
    "check_selector", "scenes",
]  # fmt: skip

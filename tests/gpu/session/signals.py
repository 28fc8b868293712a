"""Real signals at random moments of a story on a GPU, in a process of its own: see tests/chaos/signals.py.

    python -m tests.gpu.session.signals --pair 0 --rounds 10 --seed 3
"""

from __future__ import annotations

import functools

from tests.chaos.signals import main
from tests.gpu.session.test_spoilt_calls import ACTS, TRIED, fresh

if __name__ == "__main__":
    # One signal a call: a second one may lose pages of the host store until the session closes.
    main([functools.partial(fresh, *pair) for pair in TRIED], ACTS, within=2e-4, again=False)

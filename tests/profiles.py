"""How many examples a property test tries: as many as it names under `ci`, and its share of every other profile."""

from __future__ import annotations

import hypothesis

#: Profile -> examples of a test that names none (tests/conftest.py registers them).
EXAMPLES = {"dev": 25, "ci": 50, "nightly": 1000}
#: Whether chaos tests try every moment, not some.
NIGHTLY = hypothesis.settings.get_current_profile_name() == "nightly"


def share(examples: int) -> int:
    """Under `ci` this many; under another profile as much more or fewer as it tries in general, one at least."""
    now = hypothesis.settings().max_examples
    return max(1, round(examples * now / EXAMPLES["ci"]))

"""Ways to break the demonstration on purpose, so that the tests can show its verdict is able to say no.

Set ``FENCEPOST_DEMO_SABOTAGE`` to some of these words, separated by commas. For tests only.
"""

from __future__ import annotations

import os

NO_DEDUPE = "no-dedupe"
"""The receiver acts on every arrival, repeats included."""
NO_FENCE = "no-fence"
"""The workers write their results by plain SQL, without comparing the token."""
TWO_TRANSACTIONS = "two-transactions"
"""The shop commits its events apart from its orders."""

VARIABLE = "FENCEPOST_DEMO_SABOTAGE"


def sabotaged(what: str) -> bool:
    """Tell whether the demonstration shall break in this way."""
    return what in os.environ.get(VARIABLE, "").split(",")

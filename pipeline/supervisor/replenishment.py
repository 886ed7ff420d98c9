"""How many groups should be in flight.

As many as the open steps still want, at the rate at which groups turn out informative, times the over-sampling factor; never fewer than
they want. Informative groups are kept when they are too many (they open the next step), so the factor costs only what is cancelled at the
target.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipeline.supervisor.views import OpenStep

PRIOR_INFORMATIVE, PRIOR_JUDGED = 2.0, 3.0
"""The rate before anything is known: two of three. Three groups' worth, so that one bad start is soon outvoted."""
LOWEST_RATE = 0.1
"""Where hardly any group is informative, ten times what is wanted is in flight and no more: steps take long, but the fleet is not flooded
with prompts that will be sampled by an old policy."""


def informative_rate(informative: int, judged: int) -> float:
    """Share of groups that turn out informative, from the last few hundred and a prior.

    Where more than the prior's share was seen, what was seen counts as it is: a few good groups are no reason to launch for bad ones, the
    over-sampling is there for that.
    """
    seen = informative / judged if judged else 0.0
    return max(LOWEST_RATE, seen, (informative + PRIOR_INFORMATIVE) / (judged + PRIOR_JUDGED))


def wanted_in_flight(steps: Sequence[OpenStep], rate: float) -> list[int]:
    """Groups that should be in flight for the first, the first two, ... of the open steps."""
    wanted: list[int] = []
    needed, weighted = 0, 0.0
    for step in steps:
        needed += step.wanting
        weighted += step.wanting * step.spec.over
        wanted.append(max(needed, math.ceil(weighted / rate - 1e-9)))
    return wanted

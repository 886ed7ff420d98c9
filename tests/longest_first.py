"""The order in which several processes of pytest take tests: those with the longest limits first, in each process.

A run ends with its last test. In random order a test of a minute may be the last one that begins, and then all other processes wait for
it. A test that may take longer than the usual limit says so itself (`@pytest.mark.timeout`), and nothing else has to be known of it.

pytest-xdist's `worksteal` gives each process a stretch of the order that it is shown, in equal numbers; a process that is done takes the
second half of what another one has left. So:

    stretch    long tests, then a share of the others; what is taken from its end is short
    long       module by module, the next to the process that has the least: they share what they start (a fleet, a server) by module
    others     in the random order that they come in

Every process finds the same order, for it depends on the tests and their number of processes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """What is known of a test's length."""

    module: str
    limit_s: float


def longest_first(tests: Sequence[Length], *, usual_s: float, processes: int) -> list[int]:
    """Places of the tests in the order to run them in.

    Args:
        tests: in the order they would be run in.
        usual_s: a test whose limit is above is a long one.
    """
    modules: dict[str, list[int]] = {}
    others: list[int] = []
    for place, test in enumerate(tests):
        (modules.setdefault(test.module, []) if test.limit_s > usual_s else others).append(place)
    hands: list[list[int]] = [[] for _ in range(processes)]
    loads = [0.0] * processes
    by_length = {module: sum(tests[place].limit_s for place in places) for module, places in modules.items()}
    for module in sorted(modules, key=lambda name: -by_length[name]):
        least = loads.index(min(loads))
        hands[least] += modules[module]
        loads[least] += by_length[module]
    order: list[int] = []
    for number, hand in enumerate(hands):
        size = (len(tests) - len(order)) // (processes - number)
        share = max(0, size - len(hand)) if number < processes - 1 else len(others)
        order += hand + others[:share]
        del others[:share]
    return order

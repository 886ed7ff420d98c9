"""Informativeness policies of installed packages, by the entry-point group `rollstream.policies`. Imported by supervisors only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import cast

import structlog

from pipeline.supervisor.informative import BUILT_IN, Policy

log = structlog.get_logger(__name__)

ENTRY_POINTS = "rollstream.policies"


def load_policies(found: Sequence[EntryPoint] | None = None) -> Mapping[str, Policy]:
    """The built-in policies and those of installed packages. One that cannot be loaded is told, and is not known here.

    Args:
        found: the entry points; None = those that are installed.
    """
    policies = dict(BUILT_IN)
    for point in entry_points(group=ENTRY_POINTS) if found is None else found:
        try:
            if point.name in policies:
                raise ValueError("a policy of that name is known already")
            loaded = point.load()
            if not callable(loaded):
                raise TypeError(f"expected a callable of values and specification, got {type(loaded).__name__}")
        except Exception as error:  # noqa: BLE001  # importing somebody else's package can raise anything; the others still serve
            log.error("policy_unusable", policy=point.name, value=point.value, error=f"{type(error).__name__}: {error}")
            continue
        policies[point.name] = cast(Policy, loaded)
    return MappingProxyType(policies)

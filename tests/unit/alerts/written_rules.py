"""Alerts, metrics and expressions as they stand in the files, read without a parser of YAML: promtool is the judge of that."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.promtool import ROOT, RULES

METRICS_PAGE = ROOT / "docs/reference/metrics.md"
RUNBOOKS = ROOT / "docs/runbooks"
_NAME = re.compile(r"\brollstream_[a-z_]+\b(\{[^}]*\})?")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"([^\"]*)\"")
_PARTS_OF_HISTOGRAMS = ("_bucket", "_sum", "_count")


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule."""

    name: str
    text: str

    def field(self, name: str) -> str:
        """What follows its key on the line."""
        found = re.search(rf"^ +{name}: '?(.+?)'?$", self.text, re.MULTILINE)
        return found[1] if found else ""


def alerts() -> list[Alert]:
    """All rules that alert, in order."""
    parts = re.split(r"^ +- (?=alert|record|name)", RULES.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [Alert(part.split("\n", 1)[0].removeprefix("alert: "), part) for part in parts if part.startswith("alert: ")]


def documented_metrics() -> Mapping[str, frozenset[str]]:
    """Each metric on its page -> its labels."""
    found = {}
    for line in METRICS_PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[0].startswith("`rollstream_"):
            name, labels = cells[0].strip("`"), frozenset(re.findall(r"`(\w+)`", cells[2]))
            found[name] = labels
            if cells[1] == "histogram":
                found |= {name + part: labels | ({"le"} if part == "_bucket" else set()) for part in _PARTS_OF_HISTOGRAMS}
    return found


def used_metrics(text: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Each metric that a text of expressions or series names, with the labels that it asks for."""
    for match in _NAME.finditer(text):
        yield match[0].partition("{")[0], dict(_LABEL.findall(match[1] or ""))

"""The board for Grafana: it can be imported anywhere, and each of its expressions is one that Prometheus takes, of metrics that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.promtool import PROMETHEUS, promtool
from tests.unit.alerts.written_rules import documented_metrics, used_metrics

BOARD = PROMETHEUS / "grafana.json"
VARIABLES = {"$pipeline": ".*", "$run": ".*", "$node": ".*", "$__rate_interval": "5m"}
EVERYWHERE = {"namespace"}


def board() -> dict[str, Any]:
    """As Grafana reads it; Any: it is JSON."""
    loaded: dict[str, Any] = json.loads(BOARD.read_text(encoding="utf-8"))
    return loaded


def expressions() -> Iterator[tuple[str, str]]:
    """Title of the panel, and each of its expressions."""
    for panel in board()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def filled(expression: str) -> str:
    """With values in place of variables."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def test_prometheus_takes_each_expression(tmp_path: Path) -> None:
    rules = [{"record": f"r:{number}", "expr": filled(expression)} for number, (_, expression) in enumerate(expressions())]
    file = tmp_path / "board.yml"
    file.write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}), encoding="utf-8")  # JSON is YAML

    checked = promtool("check", "rules", file)

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(rules)} rules found" in checked.stdout
    assert not any("$" in rule["expr"] for rule in rules)


def test_only_metrics_and_labels_that_exist_are_shown() -> None:
    known = documented_metrics()
    for title, expression in expressions():
        for name, labels in used_metrics(expression):
            assert name in known, (title, name)
            assert labels.keys() - EVERYWHERE <= known[name], (title, name)


def test_each_legend_and_grouping_is_of_labels_that_its_metrics_have() -> None:
    """A legend of a label that is gone shows a braced name, and a grouping by one sums all."""
    known = documented_metrics()
    for panel in board()["panels"]:
        for target in panel.get("targets", ()):
            if "ALERTS" in target["expr"]:
                continue
            labels = {label for name, _ in used_metrics(target["expr"]) for label in known[name]} | EVERYWHERE
            kept = {label.strip() for group in re.findall(r"\bby \(([^)]*)\)", target["expr"]) for label in group.split(",")}
            assert kept <= labels, panel["title"]
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= kept - {"le"}, panel["title"]


def test_it_can_be_imported_anywhere() -> None:
    """One address, the data source a variable, numbers unique, nothing over anything else, no place of the machine that it was made on."""
    loaded, text = board(), BOARD.read_text(encoding="utf-8")
    panels = loaded["panels"]
    variables = {variable["name"] for variable in loaded["templating"]["list"]}

    assert loaded["uid"] == "rollstream"
    assert "id" not in loaded
    assert variables == {"datasource", "pipeline", "run", "node"}
    sources = [
        of for panel in panels if panel["type"] != "row" for of in (panel["datasource"], *(each["datasource"] for each in panel["targets"]))
    ]
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["title"] and panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len(set(taken))
    assert not re.search(r"/(home|root|srv|tmp|work)\b|https?://", text)

"""The rules of alerts: Prometheus takes them, each fires for what it is there for and for nothing else, and each has its runbook."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.promtool import ROOT, RULES, promtool
from tests.unit.alerts.written_rules import RUNBOOKS, Alert, alerts, documented_metrics, used_metrics

HERE = Path(__file__).parent
CASES = sorted(HERE.glob("*.yml"))
HEADINGS = ["What users see", "First look", "Causes, and what to do", "It ends"]
EVERYWHERE = {"job", "instance", "namespace"}
"""Labels that Prometheus and target files add to each series."""


def test_prometheus_takes_the_rules() -> None:
    checked = promtool("check", "rules", RULES)

    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("cases", CASES, ids=lambda path: path.stem)
def test_each_alert_fires_for_what_it_is_there_for_and_for_nothing_else(cases: Path) -> None:
    tested = promtool("test", "rules", cases)

    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_no_alert_is_without_a_case_that_fires_it_and_one_that_does_not() -> None:
    fired, silent = set[str](), set[str]()
    for cases in CASES:
        text = cases.read_text(encoding="utf-8")
        fired |= set(re.findall(r"alertname: (\w+)\n +exp_alerts:", text))
        silent |= set(re.findall(r"alertname: (\w+)\}", text))

    assert fired == silent == {alert.name for alert in alerts()}


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert.name)
def test_an_alert_says_who_hears_of_it_what_is_wrong_and_where_its_page_is(alert: Alert) -> None:
    severity, page = alert.field("severity"), ROOT / alert.field("runbook_url")

    assert severity in ("page", "ticket")
    assert alert.field("summary")
    assert page.parent == RUNBOOKS
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# {alert.name}\n\n**{severity.capitalize()}.** ")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS
    assert "```\nrollstream " in text, "the first look begins with a command"


def test_no_page_is_without_its_alert() -> None:
    pages = [alert.field("runbook_url") for alert in alerts()]

    assert len(alerts()) > 10
    assert sorted(pages) == sorted(str(path.relative_to(ROOT)) for path in RUNBOOKS.iterdir())


@pytest.mark.parametrize("path", [RULES, *CASES], ids=lambda path: path.stem)
def test_only_metrics_and_labels_that_exist_are_asked_for(path: Path) -> None:
    """A name that is misspelt never fires, and no tool of Prometheus can tell."""
    known, text = documented_metrics(), re.sub(r"#.*", "", path.read_text(encoding="utf-8"))
    used = list(used_metrics(text))

    assert len(used) > 10
    for name, labels in used:
        assert name in known, name
        assert labels.keys() - EVERYWHERE <= known[name], name


def test_each_label_that_a_rule_lets_go_or_keeps_is_one_of_some_metric() -> None:
    labels = {label for of_metric in documented_metrics().values() for label in of_metric} | EVERYWHERE
    named = re.findall(r"(?:without|by|ignoring|on) \(([^)]*)\)", RULES.read_text(encoding="utf-8"))

    assert {label.strip() for group in named for label in group.split(",") if label.strip()} <= labels

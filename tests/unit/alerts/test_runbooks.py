"""A runbook is read at night: what it says to type is there, in sentences too (blocks are held by the tests of all documents)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from ops.cli.app import app
from ops.status.trouble import ORDER
from tests.promtool import ROOT
from tests.unit.alerts.written_rules import RUNBOOKS

PAGES = [*sorted(RUNBOOKS.glob("*.md")), ROOT / "docs/how-to/alerts.md"]


def inline(page: Path) -> Iterator[str]:
    """All that stands in code style within sentences and tables."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    yield from re.findall(r"`([^`\n]+)`", text)


def missing_in(command: str) -> str:
    """What a command line names that is not there; empty when all is."""
    found: Any = typer.main.get_command(app)  # Any: typer keeps the classes of its own copy of click private
    words = [word for word in command.split()[1:] if word != "..."]
    while words and hasattr(found, "commands"):
        if words[0] not in found.commands:
            return words[0]
        found = found.commands[words.pop(0)]
    options = {option for parameter in getattr(found, "params", ()) for option in (*parameter.opts, *parameter.secondary_opts)}
    return next((word for word in words if word.startswith("--") and word not in options), "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_command_in_a_sentence_is_there(page: Path) -> None:
    for code in inline(page):
        if code.startswith("rollstream "):
            assert missing_in(code) == "", code


def test_a_command_that_is_not_there_is_noticed() -> None:
    assert missing_in("rollstream node polish gpu7") == "polish"
    assert missing_in("rollstream image prune --to-gb 200") == "--to-gb"
    assert missing_in("rollstream run set RUN --resume") == ""


def test_each_cause_that_status_names_is_on_some_page() -> None:
    """Who is paged asks `status` first, and looks for its word here."""
    words = {word for page in RUNBOOKS.glob("*.md") for word in inline(page)}

    assert sorted(set(ORDER) - words) == []

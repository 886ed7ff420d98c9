"""A script carries the functions of its heads that it uses, and all that those use."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

import pytest

from pipeline.scripts.sources import HEADS, source

SCRIPTS = sorted(
    found.name.removesuffix(".lua")
    for found in files("pipeline.scripts").iterdir()
    if found.name.endswith(".lua") and found.name.removesuffix(".lua") not in {*HEADS, "ledger"}
)
FUNCTION = re.compile(r"^(?:local function (\w+)|(\w+) = function)", re.MULTILINE)


@cache
def functions_of_heads() -> set[str]:
    """Every function that some head has."""
    texts = [(files("pipeline.scripts") / f"{head}.lua").read_text(encoding="utf-8") for head in (*HEADS, "ledger")]
    return {name for text in texts for names in FUNCTION.findall(text) for name in names if name}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_has_every_function_that_it_calls_and_before_it_does(script: str) -> None:
    """A function that is not there is an error of the server only when its line is reached."""
    lines = [re.sub(r"--.*|'[^']*'", "", line) for line in source(script).splitlines()]
    there: set[str] = set()
    forward: set[str] = set()

    for line in lines:
        found = re.match(r"local function (\w+)|local ([\w, ]+)", line)
        if found:
            there |= set(re.findall(r"\w+", found[1] or found[2]))
        forward |= set(re.findall(r"^(\w+) = function", line))
        called = set(re.findall(r"(?<![.:\w])(\w+)\(", line)) & functions_of_heads()
        assert called <= there, f"{script}: {called - there} in {line}"

    declared_only = {name for name in re.findall(r"^local (\w+(?:, \w+)*) *$", "\n".join(lines), re.MULTILINE) for name in name.split(", ")}
    assert declared_only & functions_of_heads() <= forward


def test_a_small_script_does_not_carry_what_it_has_no_use_for() -> None:
    assert "local function terminal" not in source("journal")
    assert "admit" not in source("journal")
    assert "local function terminal" in source("settle")


def test_a_word_that_a_script_answers_is_not_taken_for_a_name() -> None:
    """A group's verdict `'dropped'` brought the table of dropped entries along, made anew at each call."""
    assert "'dropped'" in source("account_groups")
    assert "local dropped" not in source("account_groups")
    assert "local dropped" in source("settle")


def test_a_loop_that_fills_a_table_goes_with_it() -> None:
    """`for` at the top of a head declares nothing."""
    for script in SCRIPTS:
        assert ("for i, name in ipairs(AWAITED)" in source(script)) == ("local AWAITED_FIELDS" in source(script)), script

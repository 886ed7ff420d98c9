"""Tests of ours that run after those of a task, in the same process and by the same runner, and of which some must fail.

Who makes every test pass, by whatever means, makes these pass as well; who only says that every test has passed does not know that
these were asked about. The file is made anew for each run: names, values, and which of its tests fail.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

_FORMS = {
    "pytest": (
        "    assert {value} == {other}\n",
        "    assert sorted({{{value}: 1, 5: 2}}) == sorted([5, {other}])\n",
        "    if {value} != {other}:\n        raise AssertionError('{value} is not {other}')\n",
        "    unittest.TestCase().assertEqual({value}, {other})\n",
        "    import pytest\n    with pytest.raises(KeyError):\n        {{{value}: 1}}[{wrong}]\n",
        "    if {value} != {other}:\n        {{}}[{value}]\n",
    ),
    "unittest": (
        "    assert {value} == {other}\n",
        "    if {value} != {other}:\n        raise AssertionError('{value} is not {other}')\n",
        "    unittest.TestCase().assertEqual({value}, {other})\n",
        "    with unittest.TestCase().assertRaises(KeyError):\n        {{{value}: 1}}[{wrong}]\n",
        "    if {value} != {other}:\n        {{}}[{value}]\n",
    ),
}


@dataclass(frozen=True, slots=True)
class Canaries:
    """A file of tests, and what is known of it."""

    name: str
    """Of the module."""
    source: str
    must_fail: tuple[bool, ...]

    def trouble(self, ends: Sequence[str] | None) -> str:
        """What is wrong with how they ended; empty when nothing is, or when there is no telling (None)."""
        if ends is None:
            return ""
        if len(ends) != len(self.must_fail):
            return f"{len(ends)} tests of ours ended, of {len(self.must_fail)}"
        passed = sum(end == "passed" for end, must_fail in zip(ends, self.must_fail, strict=True) if must_fail)
        return f"{passed} tests of ours passed that must fail" if passed else ""


def make_canaries(framework: str) -> Canaries:
    """One test of each form that fails, and one that passes."""
    forms = _FORMS.get(framework, _FORMS["unittest"])
    tests = [(form, must_fail) for form in forms for must_fail in (True, False)]
    secrets.SystemRandom().shuffle(tests)
    lines, names = ["import unittest\n"], []
    for form, must_fail in tests:
        value = 10 + secrets.randbelow(1_000_000)
        other = value + 1 + secrets.randbelow(1000)
        names.append(f"test_{secrets.token_hex(5)}")
        # of what must raise KeyError, the key that is there is the one that fails
        body = form.format(value=value, other=other if must_fail else value, wrong=value if must_fail else other)
        lines.append(f"\n\ndef {names[-1]}():\n{body}")
    lines.append(f"\n\nTESTS = [{', '.join(names)}]\n")
    return Canaries(f"test_{secrets.token_hex(6)}", "".join(lines), tuple(must_fail for _, must_fail in tests))

"""How the tests of SWE-bench are run: the shell script that its harness runs in an image, taken apart.

Rows of version 5 of the data set hold the script (`eval_script`). For older rows it is made by the package `swebench` (4.x), which has the
specifications of each repository and version; it is an extra, and a row that needs it says so.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any

from workers.handlers.task_data import BadTaskData, Row, text_of

INSTALL = "pip install 'rollstream[swebench]'"
MAX_SCRIPT_CHARS = 4_000_000
_START, _END = ">>>>> Start Test Output", ">>>>> End Test Output"
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_NOT_OURS = re.compile(r"(git\s|cd\s|set\s|:\s|echo\s|#!|SWEBENCH_)")
"""Of the script: what lays tests, which we do ourselves, what only informs, and its markers."""
_ENVIRONMENT = re.compile(r"(source|\.|conda|export|eval|unset|locale-gen|sed|nvm|ulimit)\s|[A-Z_]+=\S*\s*$")
"""What the tests need in their own shell. All else (installing) is done before, by itself."""
_TOX = re.compile(r"^tox --current-env -e\S+ -v -- ", re.MULTILINE)
"""Of Sphinx: pytest in the environment that is there anyway. tox keeps from it what it needs to report to us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A script, taken apart."""

    before: str
    setup: str
    command: str


def script_of_row(row: Row, place: str) -> str:
    """The script of a row: its own, else as the package makes it.

    Raises:
        BadTaskData: the row has none and the package is not here, or does not know the repository.
    """
    found = row.get("eval_script")
    if isinstance(found, list | tuple):
        return "\n".join(map(str, found))
    if isinstance(found, str) and found.strip():
        return found
    try:
        from swebench.harness.constants import MAP_REPO_VERSION_TO_SPECS
        from swebench.harness.test_spec.create_scripts import make_eval_script_list
    except ImportError as missing:
        why = f"{place}: how its tests are run is in the package swebench, versions 4: {INSTALL}; or give the row `test_command`"
        command = row.get("test_command")
        if isinstance(command, str) and command.strip():
            return _plain_script(command)
        raise BadTaskData(why, field="eval_script") from missing
    repo, version = text_of(row, "repo", place), text_of(row, "version", place)
    specs: Any = MAP_REPO_VERSION_TO_SPECS.get(repo, {}).get(version)  # the package's own maps, untyped
    if specs is None:
        raise BadTaskData(f"{place}: swebench knows no version {version} of {repo}", field="version")
    needed = ("repo", "version", "instance_id", "test_patch", "base_commit")
    instance = {name: text_of(row, name, place, longest=MAX_SCRIPT_CHARS) for name in needed}
    lines = make_eval_script_list(instance, specs, "testbed", "/testbed", instance["base_commit"], instance["test_patch"])
    return "\n".join(map(str, lines))


def _plain_script(command: str) -> str:
    return f"source /opt/miniconda3/bin/activate\nconda activate testbed\n: '{_START}'\n{command}\n: '{_END}'\n"


def recipe_of_script(script: str, place: str) -> Recipe:
    """Takes a script apart.

    Raises:
        BadTaskData: it has no test command between its markers.
    """
    before: list[str] = []
    setup: list[str] = []
    command: list[str] = []
    where, until = "before", ""
    for line in script.split("\n"):
        if until:  # a patch that is given to git
            until = "" if line.strip() == until else until
            continue
        if _START in line:
            where = "tests"
        elif _END in line:
            where = "after"
        elif not line.strip() or where == "after":
            continue
        elif where == "tests":
            if not line.startswith("SWEBENCH_"):
                command.append(line)
        elif _NOT_OURS.match(line):
            heredoc = _HEREDOC.search(line)
            until = heredoc[2] if heredoc else ""
        else:
            (before if _ENVIRONMENT.match(line) else setup).append(line)
    if not command:
        raise BadTaskData(f"{place}: no test command between {_START!r} and {_END!r}", field="eval_script")
    unique = list(dict.fromkeys(before))
    run = _TOX.sub("python -m pytest -rA --durations 25 ", "\n".join(command))
    return Recipe(before="\n".join(unique), setup="\n".join((*unique, *setup)) if setup else "", command=run)


def framework_of_parser(parser: str, repo: str, place: str) -> str:
    """Which of our parsers reads what SWE-bench's parser of that name reads; of older rows, by the repository.

    Raises:
        BadTaskData: a runner that we have no parser for.
    """
    word = (parser or {"django/django": "django", "sympy/sympy": "sympy"}.get(repo, "pytest")).lower()
    for part, framework in _FRAMEWORKS:
        if part in word:
            return framework
    raise BadTaskData(f"{place}: no parser for what {shlex.quote(parser)} reads", field="log_parser")


_FRAMEWORKS = (
    ("django", "django"),
    ("sympy", "sympy"),
    ("unittest", "unittest"),
    ("pytest", "pytest"),
    ("seaborn", "pytest"),
    ("matplotlib", "pytest"),
    ("gotest", "go"),
    ("_go", "go"),
    ("jest", "jest"),
    ("cargo", "cargo"),
)

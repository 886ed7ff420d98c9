"""Compares what the package `swebench` reads out of logs, and makes of lists of tests, with what we do, case by case.

    python tests/cases/against_swebench.py [--python PYTHON] [FILE ...]

`swebench` needs 80 packages and half a gigabyte, so no environment of ours has it: give it one of its own
(`python -m venv DIR && DIR/bin/pip install swebench`) and name its interpreter. Without one that can import it nothing is compared, and
the reason is printed. Differences are no failures: `WHY` tells of those known with `swebench` 5.0.2 and who is right; others are marked
`new`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from tests.cases.case import Case, read_cases, text_of  # noqa: E402 - the script is run by its path
from workers.graders.swe import ParsedLog, judge, parse_log  # noqa: E402

FILES = (HERE / "data" / "swe.jsonl", HERE / "data" / "swe_own.jsonl")
PARSERS = {
    "pytest": "parse_log_pytest",
    "django": "parse_log_django",
    "unittest": "parse_log_django",
    "go": "parse_log_gotest",
    "jest": "parse_log_jest",
    "cargo": "parse_log_cargo",
    "sympy": "parse_log_sympy",
}
CHILD = """
import json, sys
from swebench.harness import log_parsers, grading
for line in sys.stdin:
    asked = json.loads(line)
    try:
        if "parser" in asked:
            answer = dict(getattr(log_parsers, asked["parser"])(asked["log"], None))
        else:
            gold = {"FAIL_TO_PASS": asked["fail_to_pass"], "PASS_TO_PASS": asked["pass_to_pass"]}
            answer = grading.get_resolution_status(grading.get_eval_tests_report(asked["statuses"], gold)) == "RESOLVED_FULL"
    except Exception as broken:
        answer = f"{type(broken).__name__}: {broken}"
    print(json.dumps(answer), flush=True)
"""
CUT = "ours: ids are cut at their first blank there (data sets have them so, which `judge` allows for), and printed lines count"
PRINTED = "ours: lines that a test prints are read as results there"
COLOURED = "ours: nothing is found there between colours or line ends of Windows"
GROUPS = "both: titles stand without their groups there, which are other names here; and printed lines count there"
WORDS = "ours: a word that no runner has (or `XFAIL_NOTRUN`) is neither passed nor failed there, and so is no obstacle"
WHY: Mapping[str, str] = {
    "swe-log-001": CUT,
    "swe-log-003": "ours: what never ran is named `at` there, and what passed unexpectedly is nothing",
    "swe-log-005": "ours: verbose lines alone are not read there",
    "swe-log-015": "ours: expected failures, and the last test of a file that failed, are not read there",
    "swe-log-021": "ours: a time in seconds is part of the name there",
    "swe-verdict-005": WORDS,
    **{f"swe-own-log-{number:03}": CUT for number in range(1, 9)},
    **{f"swe-own-log-{number:03}": PRINTED for number in (9, 10, 11, 16, 17, 25)},
    **{f"swe-own-log-{number:03}": COLOURED for number in (18, 26)},
    "swe-own-log-013": "ours: events of `go test -json` are not read there",
    **{f"swe-own-log-{number:03}": GROUPS for number in (14, 15)},
    "swe-own-log-019": "ours: the last line that names a test counts there, here the worst",
    "swe-own-log-024": "ours: lines before the run are read as results there",
    **{f"swe-own-log-{number:03}": "ours: skipped, expected and last tests of a file are not read there" for number in (29, 30)},
    "swe-own-verdict-005": "ours: without tests everything is resolved there",
    "swe-own-verdict-011": WORDS,
    "swe-own-verdict-012": "a choice: a skipped test of PASS_TO_PASS is as good as passed there; here not, as repairs could skip it so",
}


def ours(case: Case) -> ParsedLog | bool:
    """Our answer to a case."""
    if case.input["kind"] == "parse_log":
        return parse_log(case.input["framework"], text_of(case.input, "log"))
    return judge(case.input["status_map"], case.input["FAIL_TO_PASS"], case.input["PASS_TO_PASS"]).resolved


def asked(case: Case) -> dict[str, Any]:
    """The case as the other side is asked."""
    if case.input["kind"] == "parse_log":
        return {"parser": PARSERS[case.input["framework"]], "log": text_of(case.input, "log")}
    return {
        "statuses": case.input["status_map"],
        "fail_to_pass": case.input["FAIL_TO_PASS"],
        "pass_to_pass": case.input["PASS_TO_PASS"],
    }


def differences(case: Case, mine: ParsedLog | bool, theirs: Any) -> list[str]:
    """What the two do not agree on, in words."""
    if not isinstance(mine, ParsedLog):
        return [] if mine == theirs else [f"resolved: ours {mine}, swebench {theirs}"]
    if isinstance(theirs, str):
        return [f"swebench raises {theirs}"]
    found = [f"{name}: ours {mine.status(name)}, swebench {status}" for name, status in theirs.items() if mine.status(name) != status]
    missing = [f"{name}: ours {status}, swebench nothing" for name, status in mine.statuses.items() if name not in theirs]
    return found + missing


def main() -> int:
    arguments = argparse.ArgumentParser(description="Compare the parsers of swebench with ours.")
    arguments.add_argument("--python", default=sys.executable, help="an interpreter that can import swebench")
    arguments.add_argument("files", nargs="*", type=Path, default=FILES)
    given = arguments.parse_args()
    tried = subprocess.run(
        [given.python, "-c", "import swebench; print(swebench.__version__)"], capture_output=True, text=True, check=False
    )
    if tried.returncode != 0:
        print(f"skipped: {given.python} cannot import swebench ({tried.stderr.strip().splitlines()[-1]})")
        return 0
    cases = [case for path in given.files for case in read_cases(path) if case.input["kind"] in ("parse_log", "verdict")]
    said = subprocess.run(
        [given.python, "-c", CHILD],
        input="".join(json.dumps(asked(case)) + "\n" for case in cases),
        capture_output=True,
        text=True,
        check=True,
    )
    print(f"swebench {tried.stdout.strip()}")
    same = 0
    for case, line in zip(cases, said.stdout.splitlines(), strict=True):
        found = differences(case, ours(case), json.loads(line))
        same += not found
        if found:
            print(f"{case.id}: {WHY.get(case.id, 'new')}")
            for difference in found[:6]:
                print(f"    {difference}")
            if len(found) > 6:
                print(f"    and {len(found) - 6} more")
    print(f"{same} of {len(cases)} cases alike")
    return 0


if __name__ == "__main__":
    sys.exit(main())

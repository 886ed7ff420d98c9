"""The case runner.

    python tests/cases/run.py AREA FILE [--json]

Runs the cases of FILE through the product. Prints one line a failing case with what was expected and what came, ends with
`N passed, M failed`, and exits 1 when one failed, 2 when the file or the area is no good. With --json one JSON document goes to standard
output and the closing line to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    from pipeline.logs import configure_logs
    from tests.cases.areas import offered
    from tests.cases.case import BadCase, read_cases
    from tests.cases.runner import run_cases, run_inside_limits

    parser = argparse.ArgumentParser(prog="run.py", description="Runs a file of cases through the product.")
    parser.add_argument("area", choices=offered())
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of lines")
    parser.add_argument("--inside-limits", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(argv)
    configure_logs(as_json=False, level="warning")  # to standard error: the output is for those who count
    if asked.inside_limits:
        return run_inside_limits(asked.area)
    if asked.file is None:
        parser.error("the following arguments are required: file")
    try:
        cases = list(read_cases(asked.file))
    except (BadCase, OSError) as bad:
        print(bad, file=sys.stderr)
        return 2
    results = asyncio.run(run_cases(asked.area, cases))
    failed = [result for result in results if not result.passed]
    closing = f"{len(results) - len(failed)} passed, {len(failed)} failed"
    if asked.json:
        failures = [
            {
                "id": result.case.id,
                "story": result.case.story,
                "differences": [{"what": one.what, "expected": one.expected, "found": one.found} for one in result.differences],
            }
            for result in failed
        ]
        document = {
            "area": asked.area,
            "file": str(asked.file),
            "passed": len(results) - len(failed),
            "failed": len(failed),
            "failures": failures,
        }
        print(json.dumps(document, ensure_ascii=False, default=str))
        print(closing, file=sys.stderr)
    else:
        for result in failed:
            print(result.line())
        print(closing)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # the folder of this file would shadow nothing useful and hide the project
    sys.exit(main())

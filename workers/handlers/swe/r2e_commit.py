"""The reference repair of a row of R2E-Gym: the commit's files that are no tests, before and after, as a patch."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping


def gold_of_commit(commit: Mapping[str, object]) -> bytes | None:
    """The patch; None when the row does not hold both sides of the files."""
    parts: list[str] = []
    diffs = commit.get("file_diffs")
    for diff in diffs if isinstance(diffs, list) else ():
        path = _path(diff) if isinstance(diff, Mapping) else ""
        if not path or is_test_file(path):
            continue
        before, after = diff.get("old_file_content"), diff.get("new_file_content")
        if not isinstance(before, str) or not isinstance(after, str) or before == after:
            continue
        parts += _diff(path, before, after)
    return "".join(parts).encode("utf-8", "surrogatepass") if parts else None


def is_test_file(path: str) -> bool:
    """As that data set splits commits: tests are not part of the repair."""
    name = path.rpartition("/")[2]
    return name.endswith("_test.py") or name.startswith("test_") or "tests" in path.split("/")[:-1] or "test" in path.split("/")[:-1]


def _path(diff: Mapping[str, object]) -> str:
    header = diff.get("header")
    file = header.get("file") if isinstance(header, Mapping) else None
    path = file.get("path") if isinstance(file, Mapping) else None
    return path if isinstance(path, str) else ""


def _diff(path: str, before: str, after: str) -> Iterator[str]:
    yield f"diff --git a/{path} b/{path}\n"
    if not before:
        yield "new file mode 100644\n"
    if not after:
        yield "deleted file mode 100644\n"
    old, new = (f"a/{path}" if before else "/dev/null"), (f"b/{path}" if after else "/dev/null")
    for line in difflib.unified_diff(_lines(before), _lines(after), old, new):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _lines(text: str) -> list[str]:
    """Lines end with a line feed and nothing else, as in git."""
    return [f"{line}\n" for line in text.split("\n")[:-1]] + ([text.rsplit("\n", 1)[-1]] if not text.endswith("\n") and text else [])

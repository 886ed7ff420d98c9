"""The rows that the task `harbor` reads: what `folders.py` makes of a task folder.

instruction, workdir, tests            what `test.sh` and the files beside it are: {path: text} or {path: {text or base64, executable}}
image                                  `docker_image` of the task; empty = it has a Dockerfile alone
env, memory_mb, storage_mb             of its environment
verifier_timeout_s, verifier_env       of its tests
solution, solution_env                 for preflight
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

from workers.graders.harbor import HarborTask, TaskFile
from workers.graders.harbor.task import SOLUTION_SCRIPT, TEST_SCRIPT
from workers.handlers.harbor.folders import rows_of_folder
from workers.handlers.task_data import BadTaskData, Layout, Row, only_known, text_of

_FIELDS = frozenset(("id", "instruction", "image", "workdir", "env", "memory_mb", "storage_mb", "verifier_timeout_s", "verifier_env")) | {
    "solution",
    "solution_env",
    "tests",
    "meta",
}
MAX_INSTRUCTION_CHARS = 200_000


def _task(row: Row, place: str) -> HarborTask:
    only_known(row, _FIELDS, place)
    tests, solution = _files(row, "tests", place), _files(row, "solution", place)
    if TEST_SCRIPT not in tests:
        raise BadTaskData(f"{place}: expected {TEST_SCRIPT} among {', '.join(tests) or 'no files'}", field="tests")
    if solution and SOLUTION_SCRIPT not in solution:
        raise BadTaskData(f"{place}: expected {SOLUTION_SCRIPT} among {', '.join(solution)}", field="solution")
    workdir = text_of(row, "workdir", place)
    if not workdir.startswith("/") or workdir == "/" or ".." in workdir.split("/"):
        raise BadTaskData(f"{place}: expected an absolute path, found {workdir!r:.80}", field="workdir")
    image = row.get("image") or ""
    if not isinstance(image, str):
        raise BadTaskData(f"{place}: expected the name of an image, found {image!r:.80}", field="image")
    return HarborTask(
        name=str(row.get("id", "")),
        instruction=text_of(row, "instruction", place, longest=MAX_INSTRUCTION_CHARS),
        image=image,
        workdir=workdir.rstrip("/"),
        env=_variables(row, "env", place),
        tests=tests,
        solution=solution,
        verifier_env=_variables(row, "verifier_env", place),
        solution_env=_variables(row, "solution_env", place),
        verifier_timeout_s=_number(row, "verifier_timeout_s", 600.0, place),
        memory_mb=int(_number(row, "memory_mb", 0, place)),
        storage_mb=int(_number(row, "storage_mb", 0, place)),
    )


def _files(row: Row, name: str, place: str) -> Mapping[str, TaskFile]:
    found = row.get(name) or {}
    if not isinstance(found, dict):
        raise BadTaskData(f"{place}: expected files by their paths, found {found!r:.80}", field=name)
    return {_path(path, name, place): _file(value, f"{name}.{path}", place) for path, value in found.items()}


def _path(path: object, field: str, place: str) -> str:
    if not isinstance(path, str) or any(part in ("", ".", "..") for part in path.split("/")) or "\0" in path:
        raise BadTaskData(f"{place}: {path!r:.80} is no path below {field}/", field=field)
    return path


def _file(value: object, field: str, place: str) -> TaskFile:
    if isinstance(value, str):
        return TaskFile(value.encode())
    if isinstance(value, dict):
        text, packed = value.get("text"), value.get("base64")
        executable = value.get("executable") is True
        if isinstance(text, str):
            return TaskFile(text.encode(), executable)
        if isinstance(packed, str):
            try:
                return TaskFile(base64.b64decode(packed, validate=True), executable)
            except ValueError as broken:
                raise BadTaskData(f"{place}: no base64: {broken}", field=field) from broken
    raise BadTaskData(f"{place}: expected a text, or text or base64 in an object, found {value!r:.80}", field=field)


def _variables(row: Row, name: str, place: str) -> Mapping[str, str]:
    found = row.get(name) or {}
    if not isinstance(found, dict) or not all(isinstance(key, str) and isinstance(value, str) for key, value in found.items()):
        raise BadTaskData(f"{place}: expected texts by their names, found {found!r:.80}", field=name)
    return found


def _number(row: Row, name: str, default: float, place: str) -> float:
    value = row.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise BadTaskData(f"{place}: expected a number from 0, found {value!r:.80}", field=name)
    return float(value)


LAYOUTS: Sequence[Layout[HarborTask]] = (
    Layout(name="Harbor", columns=frozenset(("instruction", "workdir", "tests")), read=_task, of_folder=rows_of_folder),
)

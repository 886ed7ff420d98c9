"""Task folders of Harbor as rows: what a worker needs of a folder travels in the row, so it needs no folder.

    NAME/task.toml  NAME/instruction.md  NAME/environment/Dockerfile  NAME/tests/test.sh  NAME/solution/solve.sh

A folder is a task when it has a `task.toml`; a path is one task or a folder of them. What of a `task.toml` cannot be served is refused
here, with its name, and with it the whole path.
"""

from __future__ import annotations

import base64
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workers.handlers.task_data import BadTaskData

MAX_BYTES = 4 * 1024 * 1024
"""Of tests and solution of one task: they are in every job's body."""
MAX_FILES = 2_000
_LEFT_OUT = frozenset(("__pycache__", ".git", ".venv", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".DS_Store"))
_WORKDIR = re.compile(r"(?mi)^\s*WORKDIR\s+(/\S*)\s*$")
_FROM_WORKER = re.compile(r"\$\{[^}:]*\}")
_DEFAULT = re.compile(r"\$\{[^}:]*:-([^}]*)\}")
DEFAULT_WORKDIR = "/app"

Toml = Mapping[str, Any]  # a table, as TOML


def rows_of_folder(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """The tasks of a folder, by name.

    Raises:
        BadTaskData: there is none, or one cannot be served.
    """
    folders = [path] if (path / "task.toml").is_file() else sorted(found.parent for found in path.glob("*/task.toml"))
    if not folders:
        raise BadTaskData(f"{path}: no task.toml in it, nor in a folder of it")
    for folder in folders:
        yield str(folder), _row(folder)


def _row(folder: Path) -> dict[str, object]:
    config = _toml(folder)
    environment, verifier = _table(config, "environment", folder), _table(config, "verifier", folder)
    _refuse(folder, config, environment, verifier)
    name = _table(config, "task", folder).get("name") or folder.name
    dockerfile = folder / "environment" / "Dockerfile"
    written = _WORKDIR.findall(dockerfile.read_text(encoding="utf-8", errors="replace")) if dockerfile.is_file() else []
    return {
        "id": str(name),
        "instruction": _text(folder / "instruction.md"),
        "image": str(environment.get("docker_image") or ""),
        "workdir": str(environment.get("workdir") or (written[-1] if written else DEFAULT_WORKDIR)),
        "env": _variables(environment, folder),
        "memory_mb": environment.get("memory_mb") or 0,
        "storage_mb": environment.get("storage_mb") or 0,
        "verifier_timeout_s": verifier.get("timeout_sec", 600.0),
        "verifier_env": _variables(verifier, folder),
        "solution_env": _variables(_table(config, "solution", folder), folder),
        "tests": _files(folder / "tests"),
        "solution": _files(folder / "solution"),
    }


def _toml(folder: Path) -> Toml:
    try:
        return tomllib.loads(_text(folder / "task.toml"))
    except tomllib.TOMLDecodeError as broken:
        raise BadTaskData(f"{folder / 'task.toml'}: {broken}", field="task.toml") from broken


def _refuse(folder: Path, config: Toml, environment: Toml, verifier: Toml) -> None:
    """What would be judged otherwise than Harbor does it."""
    composed = [name for name in ("docker-compose.yaml", "docker-compose.yml") if (folder / "environment" / name).exists()]
    separate = verifier.get("environment_mode") == "separate" or "environment" in verifier
    not_served = {
        "steps": "tasks of several steps" if config.get("steps") else "",
        "environment.os": "Windows" if str(environment.get("os", "linux")).lower() != "linux" else "",
        "environment.gpus": "GPUs" if environment.get("gpus") or environment.get("tpu") else "",
        "environment.mcp_servers": "MCP servers" if environment.get("mcp_servers") else "",
        "environment.healthcheck": "health checks" if environment.get("healthcheck") else "",
        "environment": f"several containers ({composed[0]})" if composed else "",
        "verifier.environment_mode": "tests in an environment of their own: write environment_mode = 'shared'" if separate else "",
        "verifier.user": "tests as another user" if verifier.get("user") not in (None, "root", 0) else "",
        "verifier.collect": "commands before the tests" if verifier.get("collect") else "",
    }
    for field, what in not_served.items():
        if what:
            raise BadTaskData(f"{folder / 'task.toml'}: {field} asks for what is not served: {what}", field=field)


def _table(config: Toml, name: str, folder: Path) -> Toml:
    found = config.get(name, {})
    if not isinstance(found, dict):
        raise BadTaskData(f"{folder / 'task.toml'}: expected a table, found {found!r:.80}", field=name)
    return found


def _variables(table: Toml, folder: Path) -> dict[str, str]:
    """Variables; what Harbor would take from the environment of its own process has its default, and without one is refused."""
    found = {str(name): _DEFAULT.sub(r"\1", str(value)) for name, value in (table.get("env") or {}).items()}
    for name, value in found.items():
        if _FROM_WORKER.search(value):
            raise BadTaskData(
                f"{folder / 'task.toml'}: {name} = {value!r:.80} is not in the task: write a value or a default", field=f"env.{name}"
            )
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as broken:
        raise BadTaskData(f"{path}: {getattr(broken, 'strerror', None) or broken}", field=path.name) from broken


def _files(folder: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    size = 0
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if _LEFT_OUT & set(inside.parts):
            continue
        if path.is_symlink():
            raise BadTaskData(f"{path}: links are not taken", field=folder.name)
        if not path.is_file():
            continue
        content = path.read_bytes()
        size += len(content)
        if size > MAX_BYTES or len(found) >= MAX_FILES:
            raise BadTaskData(f"{folder}: more than {MAX_BYTES:,} bytes or {MAX_FILES:,} files", field=folder.name)
        found[inside.as_posix()] = _as_row(content, executable=bool(path.stat().st_mode & 0o100))
    return found


def _as_row(content: bytes, *, executable: bool) -> object:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode(), "executable": executable}
    return {"text": text, "executable": True} if executable else text

"""What a command asks of a task beside its rows: a file with the fields of a request, and over it what the command line names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from pipeline.errors import InvalidRequest
from pipeline.near_names import hint
from pipeline.requests import TemplateRequest
from workers.sandbox.spec import Isolation


def request_fields(
    task: str, file: Path | None, *, options: Sequence[str] = (), sampling: Mapping[str, object] | None = None, **fields: object
) -> dict[str, Any]:
    """The fields of a request.

    Args:
        file: JSON: `sampling`, `limits`, `chat`, `options`, and the like, as a job's request has them.
        options: `name=value` each, the value as JSON, else as text; over those of the file.
        sampling: fields of `sampling` over those of the file; None is not named.
        fields: others over those of the file; None is not named.

    Raises:
        InvalidRequest: the file cannot be read, or is of another task.
    """
    found = _read(file) if file is not None else {}
    if found.setdefault("task", task) != task:
        raise InvalidRequest(f"{file} is a request for {found['task']!r}, not for {task!r}", field="task")
    if options:
        found["options"] = {**_map(found, "options"), **dict(_option(text) for text in options)}
    named = {name: value for name, value in (sampling or {}).items() if value is not None}
    if named:
        found["sampling"] = {**_map(found, "sampling"), **named}
    return {**found, **{name: value for name, value in fields.items() if value is not None}}


def template_request(fields: Mapping[str, object]) -> TemplateRequest:
    """The request of these fields.

    Raises:
        InvalidRequest: a field does not fit; says which.
    """
    found = TemplateRequest.parse(dict(fields))
    classes = [each.value for each in Isolation]
    if found.capability not in classes:  # no node serves it: a job would wait for ever, and nothing could be tried
        raise InvalidRequest(f"no class of sandboxes is called {found.capability!r}; {hint(found.capability, classes)}", field="capability")
    return found


def _read(file: Path) -> dict[str, Any]:
    try:
        found = orjson.loads(file.read_bytes())
    except (OSError, orjson.JSONDecodeError) as broken:
        raise InvalidRequest(
            f"{file} cannot be read: {getattr(broken, 'strerror', None) or f'no JSON: {broken}'}", field="request"
        ) from broken
    if not isinstance(found, dict):
        raise InvalidRequest(f"{file}: expected an object with the fields of a request", field="request")
    return found


def _map(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = found.get(name) or {}
    if not isinstance(value, dict):
        raise InvalidRequest(f"expected an object, got {type(value).__name__}", field=name)
    return value


def _option(text: str) -> tuple[str, object]:
    name, is_there, value = text.partition("=")
    if not is_there or not name:
        raise InvalidRequest(f"expected name=value, got {text!r}", field="options")
    try:
        return name, orjson.loads(value)
    except orjson.JSONDecodeError as broken:
        if value[:1] in ("[", "{"):
            example = '["bash", "finish"]' if value[0] == "[" else '{"task": "image"}'
            raise InvalidRequest(f"expected JSON, as in '{name}={example}', got {value!r}", field=f"options.{name}") from broken
        return name, value

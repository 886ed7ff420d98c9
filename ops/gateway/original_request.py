"""Requests of the original's trainers, and what they mean here: a task, a row of it, and a request for one job.

The row is the instance without what only names it there; `sampling_params` are read in `original_params.py`; what these requests cannot
say comes from a file of the gateway's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from pydantic import Field

from ops.gateway.original_params import read_params
from ops.gateway.refusals import Refusal
from ops.gateway.settings import GatewaySettings
from ops.gateway.work import Wanted, queue_name
from pipeline.errors import InvalidRequest
from pipeline.exact_sampling import inexact_sampling
from pipeline.near_names import hint
from pipeline.request_errors import shown
from pipeline.request_model import Request
from pipeline.requests import new_id
from trainer_client import JobRequest, SamplingRequest

SOURCES: Mapping[str, str] = {
    "swebench": "swe",
    "deepscaler": "math",
    "deepcoder": "code",
    "apps": "code",
    "taco": "code",
    "codeforces": "code",
    "codecontests": "code",
    "stem": "stem",
    "reasoning_gym": "reasoning_gym",
}
"""`data_source` there -> task here. The name of a task is its own source, too."""
SOURCE_PREFIXES = {"deepcoder": "code"}
OWN_ROWS = ("math", "stem", "code")
"""Tasks whose own layout takes `id` and refuses what it does not know."""
DEFAULTS_OF_ALL = "*"
PARTS = ("sampling", "limits", "chat", "options")
"""Fields of a request that are maps, and are joined name by name."""


class ProcessRequest(Request):
    """Body of `POST /process`."""

    instance: dict[str, object]
    """Row of the task, with `data_source`, `instance_id` and `trajectory_id`."""
    sampling_params: dict[str, object] = Field(default_factory=dict)
    """How the model samples and what the job may use."""
    job_id: str | None = Field(default=None, min_length=1, max_length=512)
    """The client's name for the job; posted again, the call attaches to that job."""
    cancel_on_disconnect: bool = False
    """Whether the job is cancelled when this call's connection ends before its answer."""
    return_tokens: bool = False
    """Whether the answer has `segments`: ids, masks and logprobs as they were sampled."""


class CancelRequest(Request):
    """Body of `POST /cancel`."""

    job_id: str = Field(min_length=1, max_length=512)


class ServerRequest(Request):
    """Body of `POST /add_llm_server`."""

    address: str = Field(min_length=1, max_length=2048)
    """`http://host:port`; a `/v1` at its end is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What one call of `/process` asks for."""

    wanted: Wanted
    job_id: str
    """As its client calls it."""
    with_tokens: bool
    """Whether messages have their token ids."""
    return_tokens: bool
    cancel_on_disconnect: bool
    instance_id: object
    trajectory_id: object
    not_used: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def request(self) -> JobRequest:
        return self.wanted.request


class OriginalRequests:
    """Reads requests of `/process`.

    Args:
        settings: limits, further sources, the file of defaults.
        tasks: names of the tasks that may be asked for.
    """

    def __init__(self, settings: GatewaySettings, tasks: tuple[str, ...]) -> None:
        self._settings = settings
        self._tasks = tasks
        self._sources = {**SOURCES, **dict(pair.split("=", 1) for pair in settings.sources)}
        self._defaults = read_defaults(settings.requests_file)

    def task_of(self, source: object) -> str:
        """The task of a `data_source`.

        Raises:
            Refusal: 400, nobody has it.
        """
        if not isinstance(source, str) or not source:
            raise Refusal(400, "unknown_task", f"expected a text such as 'deepscaler', got {shown(source)}", field="instance.data_source")
        task = self._sources.get(source) or (source if source in self._tasks else None)
        if task is None:
            task = next((name for prefix, name in SOURCE_PREFIXES.items() if source.startswith(prefix)), None)
        if task is None or task not in self._tasks:
            known = sorted({*self._sources, *self._tasks})
            raise Refusal(
                400, "unknown_task", f"no handler for data_source {source[:80]!r}; {hint(source, known)}", field="instance.data_source"
            )
        return task

    def read(self, body: dict[str, object]) -> Asked:
        """The job that a body asks for.

        Raises:
            Refusal, InvalidRequest: says which field and what to do.
        """
        asked = ProcessRequest.parse(body)
        task = self.task_of(asked.instance.get("data_source"))
        params = read_params(asked.sampling_params)
        limit_s = self._settings.timeout_s
        fields: dict[str, Any] = {  # Any: a tree that pydantic checks
            "limits": {"init_active_s": limit_s, "run_active_s": limit_s, "eval_active_s": limit_s},
            "wall_s": self._settings.wall_s,
        }
        for defaults in (self._defaults.get(DEFAULTS_OF_ALL, {}), self._defaults.get(task, {})):
            fields = _joined(fields, defaults)
        said = {"sampling": params.sampling, "limits": params.limits, "chat": params.chat, **params.others}
        fields = _joined(fields, said)
        _fit_observations(fields["limits"])
        job_id = asked.job_id or new_id()
        why = _inexact(fields["sampling"])
        if why:
            params.warnings.append(f"logprobs are not those of the distribution sampled from: {why}; a trainer's ratio would be biased")
        row = {"task": task, "prompt": row_of(asked.instance, task)}
        fields |= {**row, "id": queue_name(job_id), "exact_logprobs": not why}
        return Asked(
            wanted=Wanted.of(JobRequest.parse(fields), {**row, **said}),
            job_id=job_id,
            with_tokens=params.with_tokens,
            return_tokens=asked.return_tokens,
            cancel_on_disconnect=asked.cancel_on_disconnect,
            instance_id=asked.instance.get("instance_id"),
            trajectory_id=asked.instance.get("trajectory_id"),
            not_used=params.not_used,
            warnings=params.warnings,
        )


def row_of(instance: Mapping[str, object], task: str) -> dict[str, object]:
    """The row of the task in an instance: without what only names it there. Equal for all trajectories of one instance."""
    row = {name: value for name, value in instance.items() if name not in ("data_source", "trajectory_id")}
    if task in OWN_ROWS and "instance_id" in row:
        name = row.pop("instance_id")
        if isinstance(name, str | int) and not isinstance(name, bool):
            row.setdefault("id", str(name))
    return row


def read_defaults(path: Path | None) -> dict[str, dict[str, object]]:
    """Fields of requests by task.

    Raises:
        InvalidRequest: the file is no such map, or one of its requests cannot be.
    """
    if path is None:
        return {}
    try:
        found = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as broken:
        why = getattr(broken, "strerror", None) or broken
        raise InvalidRequest(f"{path} cannot be read as JSON: {why}", field="gateway.requests_file") from None
    if not isinstance(found, dict) or not all(isinstance(fields, dict) for fields in found.values()):
        raise InvalidRequest(f'{path}: expected {{"TASK or *": {{fields of a request}}}}', field="gateway.requests_file")
    for task, fields in found.items():
        try:
            JobRequest.parse({**fields, "task": "any", "prompt": {"row": 1}, "exact_logprobs": False})
        except InvalidRequest as wrong:
            raise InvalidRequest(f"{path}, {task!r}: {wrong}", field="gateway.requests_file") from None
    return found


def _inexact(sampling: Mapping[str, object]) -> str:
    """Why logprobs of this sampling serve no ratio; empty when they do, or when it cannot be, which the request as a whole says better."""
    try:
        return inexact_sampling(SamplingRequest.parse(sampling).record())
    except InvalidRequest:
        return ""


def _fit_observations(limits: dict[str, object]) -> None:
    """A small context asks for small answers of tools; the original has no word for these."""
    context = limits.get("max_context_tokens")
    if isinstance(context, int) and not isinstance(context, bool) and context > 0 and "max_observation_tokens" not in limits:
        limits["max_observation_tokens"] = min(context, JobRequest(task="any", prompt={"row": 1}).limits.max_observation_tokens)


def _joined(under: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    joined = {**under, **over}
    for part in PARTS:
        if part in under and isinstance(under[part], dict) and isinstance(over.get(part, {}), dict):
            joined[part] = {**under[part], **over.get(part, {})}
    return joined


__all__ = ["SOURCES", "Asked", "CancelRequest", "OriginalRequests", "ProcessRequest", "ServerRequest", "read_defaults", "row_of"]

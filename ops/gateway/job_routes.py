"""Jobs by id: submit, look and wait, fetch, cancel, let go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aiohttp import web
from pydantic import Field

from ops.gateway.answers import form_of, json_answer
from ops.gateway.bodies import checked
from ops.gateway.refusals import Refusal
from ops.gateway.state import DELIVERS, Gateway
from ops.gateway.steps import result_as_map
from ops.gateway.waiting import submit_for_caller, wait_for_result, wait_s_of, wants_cancel
from ops.gateway.work import Wanted
from ops.job.story import JobStory, NoSuchJob
from pipeline.messages import Trajectory
from pipeline.near_names import hint
from pipeline.redis_client import ask
from pipeline.request_model import Request
from trainer_client import BodyMissing, JobRequest, ReportAnswer, Result, WaitTimeout

MOST_CHARACTERS = 512
"""Of a name in a path, as of `job_id`."""
MOST_AT_ONCE = 256
"""Jobs of one request."""
SUBMIT_S = 2.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """How a job stands, as its hash in Redis says."""

    header: dict[str, str]

    @property
    def is_done(self) -> bool:
        return self.header.get("st") == "done"


class RewardRequest(Request):
    """Body of `POST /jobs/{id}/reward`."""

    score: float
    """The unshaped task score."""
    components: dict[str, float] = Field(default_factory=dict, max_length=64)
    """Other parts by name."""


class JobRoutes:
    """What stands behind `/jobs`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def submit(self, request: web.Request) -> web.Response:
        """Puts a job, or a list of them, into the queue. The same id again is the same job."""
        gateway = self._gateway
        body = await gateway.budget.read_object(request)
        wait_s, cancels = wait_s_of(request), wants_cancel(request.headers)
        gateway.check_accepts()
        many = "jobs" in body
        wanted = await checked(request, lambda: self._wanted(body) if many else [Wanted.of(JobRequest.parse(body))])
        for one in wanted:
            self._check_task(one.request.task)
        jobs = await submit_for_caller(gateway, wanted, wait_s=SUBMIT_S, by_process=False, cancel_on_disconnect=cancels)
        places = [self._place(job.id) for job in jobs]
        if many:
            return json_answer({"jobs": places}, status=202)
        if wait_s:
            return await self._told(request, jobs[0].id, wait_s, cancels=cancels)
        return json_answer(places[0], status=202, headers={"Location": f"/jobs/{wanted[0].request.id}"})

    def _wanted(self, body: dict[str, Any]) -> list[Wanted]:
        listed = body["jobs"]
        if set(body) != {"jobs"} or not isinstance(listed, list) or not 1 <= len(listed) <= MOST_AT_ONCE:
            raise Refusal(422, "invalid", f'expected {{"jobs": [1 to {MOST_AT_ONCE} requests]}} and nothing beside it', field="jobs")
        return [Wanted.of(JobRequest.parse(one)) for one in listed]

    def _check_task(self, task: str) -> None:
        names = self._gateway.tools.names
        if task not in names:
            raise Refusal(
                400, "unknown_task", f"no handler for task {task!r}; {hint(task, names)} (gateway.tasks names more)", field="task"
            )

    def _place(self, job: str) -> dict[str, object]:
        name = self._gateway.work.client_id(job)
        return {"id": name, "job": job, "state": "accepted", "status_at": f"/jobs/{name}", "trajectory_at": f"/jobs/{name}/trajectory"}

    async def status(self, request: web.Request) -> web.Response:
        """How a job stands; waits for its end at most `wait_s`."""
        return await self._told(request, self._job_in(request), wait_s_of(request), cancels=False)

    async def _told(self, request: web.Request, job: str, wait_s: float, *, cancels: bool) -> web.Response:
        gateway = self._gateway
        name = request.match_info.get("id") or gateway.work.client_id(job)
        seen, why = await self._look(job, name), tuple[str, ...]()
        if wait_s and not seen.is_done:
            try:
                await wait_for_result(gateway, job, wait_s, cancel_on_disconnect=cancels)
            except WaitTimeout as late:
                why = late.why
            seen = await self._look(job, name)
        result = self._result_of(job)
        story = JobStory(job=job, header=seen.header, prompt=None, trajectory=None, grade=None, unreadable=())
        ended = result_as_map(result.record) if result is not None else None
        if ended is not None and not ended["has_trajectory"]:
            request[DELIVERS] = job  # there is no more to it
        return json_answer(
            {
                "id": gateway.work.client_id(job),
                "job": job,
                "state": "done" if seen.is_done else seen.header.get("st", "unknown"),
                "stage": seen.header.get("stage", ""),
                "attempt": int(seen.header.get("att") or 0),
                "task": seen.header.get("task", ""),
                "words": story.state,
                "timeline": _timeline(seen.header),
                "last_error": seen.header.get("err", ""),
                "why_waiting": list(why),
                "result": ended,
                "trajectory_at": f"/jobs/{gateway.work.client_id(job)}/trajectory" if ended and ended["has_trajectory"] else None,
            }
        )

    async def _look(self, job: str, name: str) -> _Seen:
        raw = await ask(self._gateway.client, "HGETALL", self._gateway.keys.job(job))
        if not raw:
            raise NoSuchJob(name)
        return _Seen({name.decode(): value.decode("utf-8", "replace") for name, value in raw.items()})

    def _result_of(self, job: str) -> Result | None:
        kept = self._gateway.work.kept.get(job)
        return kept.result if kept is not None else self._gateway.steps.members.get(job)

    def _job_in(self, request: web.Request) -> str:
        name = request.match_info["id"]
        if len(name) > MOST_CHARACTERS:
            why = f"expected the id of a job, at most {MOST_CHARACTERS} characters, got {len(name)}"
            raise Refusal(422, "invalid", why, field="id")
        return self._gateway.work.named(name)

    async def trajectory(self, request: web.Request) -> web.StreamResponse:
        """What a job produced, with its result and its grade: JSON, or msgpack where `Accept` says so."""
        gateway, job = self._gateway, self._job_in(request)
        form = form_of(request.headers.get("Accept", "*/*"))
        result = self._result_of(job)
        if result is None:
            seen = await self._look(job, request.match_info["id"])
            if not seen.is_done:
                raise Refusal(409, "not_done", f"job {request.match_info['id']!r} has not ended: GET /jobs/ID?wait_s=60", retry_after_s=1.0)
            raise Refusal(404, "no_body", "it is a member of a step that was not given out by this process: POST /steps", field="id")
        with gateway.work.reading(result):
            trajectory = await result.trajectory()
            grade = await self._grade(result)
            answer = await gateway.large.make(lambda: _document(gateway, result, trajectory, grade), form=form)
        request[DELIVERS] = job
        return answer

    async def _grade(self, result: Result) -> object:
        try:
            return await result.grade()
        except BodyMissing:
            return None

    async def reward(self, request: web.Request) -> web.Response:
        """Gives a job that awaits it its reward, and with it its end."""
        job = self._job_in(request)
        asked = RewardRequest.parse(await self._gateway.budget.read_object(request))
        answer = await self._gateway.run.report_reward(job, asked.score, asked.components)
        return json_answer({"id": self._gateway.work.client_id(job), "answer": answer.value, "accepted": answer is ReportAnswer.ACCEPTED})

    async def delete(self, request: web.Request) -> web.Response:
        """Cancels a job that has not ended; lets go of the result of one that has."""
        gateway, job = self._gateway, self._job_in(request)
        name = gateway.work.client_id(job)
        if await gateway.work.let_go(job):
            return json_answer({"id": name, "state": "let_go"})
        if job in gateway.steps.members:
            raise Refusal(409, "member_of_step", "it is a member of a step: POST /steps/INDEX/ack lets go of all of it", field="id")
        state = await gateway.work.cancel(job)
        if state == "unknown":
            raise NoSuchJob(request.match_info["id"])
        return json_answer({"id": name, "state": state}, status=202 if state == "running" else 200)


def _document(gateway: Gateway, result: Result, trajectory: Trajectory, grade: object) -> dict[str, object]:
    return {"id": gateway.work.client_id(result.job), "result": result_as_map(result.record), "trajectory": trajectory, "grade": grade}


def _timeline(header: dict[str, str]) -> list[dict[str, object]]:
    """Moments, in milliseconds by the clock of Redis, and what happened then."""
    names = {
        "t": "accepted",
        "at.init": "INIT began",
        "at.run": "RUN began",
        "at.eval": "EVAL began",
        "rewarded": "rewarded",
        "done": "ended",
    }
    found = [{"at_ms": int(header[name]), "what": what} for name, what in names.items() if header.get(name, "").isdigit()]
    return sorted(found, key=lambda moment: (moment["at_ms"], list(names.values()).index(str(moment["what"]))))


__all__ = ["JobRoutes", "RewardRequest"]

"""The original's seven routes."""

from __future__ import annotations

import asyncio
import contextlib

import structlog
from aiohttp import web

from ops.gateway.answers import json_answer
from ops.gateway.bodies import checked
from ops.gateway.model_hosts import ModelHosts
from ops.gateway.original_request import Asked, CancelRequest, ServerRequest
from ops.gateway.original_result import Ended, original_result
from ops.gateway.refusals import Refusal
from ops.gateway.state import DELIVERS, Gateway
from ops.gateway.waiting import Closed, submit_for_caller, wait_for_result, wants_cancel
from ops.gateway.work import queue_name
from ops.look import look
from pipeline.errors import BrokerUnreachable, DamagedBody, IdTaken, NewerMessage
from pipeline.inference_pool import wrong_address
from pipeline.messages import Outcome, Stage
from pipeline.redis_client import ask
from trainer_client import BodyMissing, Result, WaitTimeout

log = structlog.get_logger(__name__)

MARGIN_S = 5.0
"""The queue ends a job at its wall deadline, and then its record comes; a call waits this much longer for it, at most as long again."""
SUBMIT_S = 10.0
"""A full queue is waited for, since these clients do not come back."""
STOP_S = 10.0
"""A worker that is told to cancel does it within a second; one that is gone is not waited for longer."""
V1 = "/v1"


class OriginalRoutes:
    """What the original's trainers call."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._hosts = ModelHosts(gateway.settings.model_hosts)

    # ---- the door

    async def start(self, _: web.Request) -> web.Response:
        """Lets `/process` take jobs. Servers that drained are up again."""
        gateway = self._gateway
        gateway.check_accepts()
        if gateway.door.is_open:
            raise Refusal(400, "running", "it runs already: POST /stop first, or go on with /process")
        servers = [server.url for server in await gateway.run.servers.list() if server.draining]
        if servers:
            await gateway.run.servers.attach(servers)
        await gateway.door.open()
        log.info("door_opened", run=gateway.run.id)
        return json_answer({"status": f"started; run {gateway.run.id} takes jobs"})

    async def stop(self, _: web.Request) -> web.Response:
        """Takes no more jobs, and cancels what `/process` has in flight. Engines may sleep when it has answered."""
        gateway = self._gateway
        self._check_running()
        jobs = list(dict.fromkeys((*gateway.door.jobs, *gateway.work.of_process)))
        await gateway.door.close()
        states = await asyncio.gather(*(gateway.work.cancel(job) for job in jobs))
        await asyncio.gather(*(self._ended_soon(job) for job, state in zip(jobs, states, strict=True) if state == "running"))
        log.info("door_closed", run=gateway.run.id, cancelled=len(jobs))
        return json_answer(
            {"status": f"stopped; {len(jobs)} jobs were cancelled", "cancelled": dict(zip(map(self._name, jobs), states, strict=True))}
        )

    async def _ended_soon(self, job: str) -> None:
        """Waits for the end of a job that was cancelled under its worker: then no model call of it is in flight."""
        with contextlib.suppress(WaitTimeout, Refusal):
            await self._gateway.work.result(job, STOP_S)

    async def status(self, _: web.Request) -> web.Response:
        """How busy it is. Stages are counted over the whole fleet."""
        gateway = self._gateway
        self._check_running()
        found = await look(gateway.client, gateway.queue)
        stages = {stage: found.stages[stage] for stage in Stage}
        mine = next((run for run in found.runs if run.name == gateway.run.id), None)
        jobs = 0 if mine is None else mine.waiting + mine.in_flight
        return json_answer(
            {
                "status": "running",
                "pending_jobs": sum(gateway.door.jobs.values()),
                **{f"{stage.value}_queue": look.waiting for stage, look in stages.items()},
                **{f"active_{stage.value}": look.running for stage, look in stages.items()},
                "total": sum(look.waiting + look.running for look in stages.values()),
                "running": True,
                "jobs": jobs,
                **{stage.value: look.running for stage, look in stages.items()},
                "run_id": gateway.run.id,
                "workers": {stage.value: look.workers for stage, look in stages.items()},
                "kept_results": len(gateway.work.kept),
            }
        )

    def _check_running(self) -> None:
        if not self._gateway.door.is_open:
            raise Refusal(503, "not_running", "it is not running: POST /start first", retry_after_s=1.0)

    def _name(self, job: str) -> str:
        return self._gateway.work.client_id(job)

    # ---- model servers

    async def add_llm_server(self, request: web.Request) -> web.Response:
        """Gives a model server to the run; one that it has already stays."""
        gateway = self._gateway
        address = ServerRequest.parse(await gateway.budget.read_object(request)).address.strip().rstrip("/").removesuffix(V1)
        if why := wrong_address(address):
            raise Refusal(422, "invalid", why, field="address")
        had = {server.url for server in await gateway.run.servers.list()}
        if address not in had and not self._hosts.may_be_named(address):
            run = gateway.run.id
            raise Refusal(
                422,
                "host_not_allowed",
                f"clients may name model servers of this machine and of gateway.model_hosts, got {address!r:.80}: let who runs the gateway "
                f"add its host there, or give it with rollstream llm add --run {run} URL",
                field="address",
            )
        await gateway.run.servers.attach(address)
        log.info("server_added", run=gateway.run.id, server=address)
        word = "there already" if address in had else "added" if gateway.door.is_open else "added, for the next start"
        return json_answer({"status": f"{word}: {address}", "address": address})

    async def clear_llm_server(self, _: web.Request) -> web.Response:
        """Takes all model servers from the run: calls in flight end by themselves."""
        gone = await self._gateway.run.servers.clear()
        log.info("servers_cleared", run=self._gateway.run.id, count=len(gone))
        return json_answer({"status": f"cleared: {len(gone)} servers", "addresses": list(gone)})

    # ---- jobs

    async def cancel(self, request: web.Request) -> web.Response:
        """Cancels a job, and says what became of it."""
        gateway = self._gateway
        self._check_running()
        name = CancelRequest.parse(await gateway.budget.read_object(request)).job_id
        state = await gateway.work.cancel(gateway.work.full_id(queue_name(name)))
        said = {
            "settled": "cancelled",
            "running": "cancel requested: its worker is told, and it ends within a second",
            "done": "it had ended before",
            "unknown": "no job has this id: it was never accepted, or its result was let go",
        }[state]
        return json_answer({"status": said, "job_id": name, "state": state, "cancelled": state in ("settled", "running")})

    async def process(self, request: web.Request) -> web.StreamResponse:
        """Runs one job and answers with its result."""
        gateway = self._gateway
        body = await gateway.budget.read_object(request, missing_is_null=True)  # rows of tables come with NaN
        gateway.check_accepts()
        self._check_running()
        asked = await checked(request, lambda: gateway.originals.read(body))
        await self._check_servers()
        job = gateway.work.full_id(asked.request.id)
        cancels = asked.cancel_on_disconnect or wants_cancel(request.headers)
        with gateway.door.waiting(job) as closed:
            try:
                await submit_for_caller(gateway, [asked.wanted], wait_s=SUBMIT_S, by_process=True, cancel_on_disconnect=cancels)
                wall_s = asked.request.wall_s + min(MARGIN_S, asked.request.wall_s)
                result = await wait_for_result(gateway, job, wall_s, closed=closed, cancel_on_disconnect=cancels)
            except IdTaken:
                raise IdTaken(asked.job_id) from None  # by the name that its client knows
            except Closed:
                why = f"it was stopped while job {asked.job_id!r} ran, which was cancelled: POST /start, and send it under another job_id"
                raise Refusal(500, "stopped", why) from None
            except WaitTimeout as late:
                became = await self._cancelled_soon(job)
                raise Refusal(504, "timeout", f"{late} {became}", more={"job_id": asked.job_id}) from None
        return await self._answer(request, asked, result)

    async def _cancelled_soon(self, job: str) -> str:
        """Cancels a job, and says so: a call whose time is over waits for no Redis."""
        try:
            async with asyncio.timeout(STOP_S):
                await self._gateway.work.cancel(job)
        except (TimeoutError, BrokerUnreachable):
            return "Redis does not answer: the job ends there when its own time is over"
        return "The job was cancelled"

    async def _check_servers(self) -> None:
        servers = await self._gateway.run.servers.list()
        if not servers:
            run = self._gateway.run.id
            how = f'POST /add_llm_server {{"address": "http://host:port"}}, or rollstream llm add --run {run} URL'
            raise Refusal(503, "no_llm_server", f"run {run} has no model server: {how}", field="address")

    async def _answer(self, request: web.Request, asked: Asked, result: Result) -> web.StreamResponse:
        gateway = self._gateway
        with gateway.work.reading(result):
            ended = await self._ended(result)
            if ended.record.outcome is Outcome.EXPIRED and ended.trajectory is None:
                request[DELIVERS] = result.job
                why = f"job {asked.job_id!r} had {asked.request.wall_s:g} s by the wall clock, which went by in queues"
                raise Refusal(504, "timeout", f"{why}: add workers, or raise gateway.timeout_s", more={"job_id": asked.job_id})
            answer = await gateway.large.make(lambda: original_result(asked, ended, gateway.tools.of(asked.request)))
        request[DELIVERS] = result.job
        return answer

    async def _ended(self, result: Result) -> Ended:
        gateway, record = self._gateway, result.record
        stage, failure = "", ""
        if record.outcome is Outcome.INFRA_FAILURE:
            found = await ask(gateway.client, "HMGET", gateway.keys.job(result.job), "err.stage", "err")
            stage, failure = (word.decode("utf-8", "replace") if word else "" for word in found)
        trajectory = grade = None
        try:
            trajectory = await result.trajectory() if result.trajectory_key else None
            grade = await result.grade() if result.grade_key else None
        except (BodyMissing, DamagedBody, NewerMessage) as broken:
            failure = failure or str(broken)
        return Ended(record=record, trajectory=trajectory, grade=grade, failed_stage=stage, failure=failure)


__all__ = ["OriginalRoutes"]

"""All routes in one table: path, who may, what goes in and comes out. The router, the OpenAPI document and the page for people are made
of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from aiohttp import web
from pydantic import BaseModel

from ops.gateway.access import Access
from ops.gateway.job_routes import JobRoutes, RewardRequest
from ops.gateway.original_request import CancelRequest, ProcessRequest, ServerRequest
from ops.gateway.original_routes import OriginalRoutes
from ops.gateway.state import Gateway
from ops.gateway.step_routes import PromptsRequest, StepRoutes
from ops.gateway.waiting import CANCEL_HEADER
from ops.gateway.watch_routes import WatchRoutes
from trainer_client import JobRequest, StepRequest

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
WAIT = {"wait_s": "seconds to wait, 0 to 600; default 0"}
CANCELS = {CANCEL_HEADER: "`true`: the job is cancelled when this connection ends before the answer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method of one path."""

    method: str
    path: str
    access: Access
    handler: Handler
    about: str
    body: type[BaseModel] | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    codes: Mapping[int, str] = field(default_factory=dict)
    """Of answers, beside 401 and 403."""
    is_original: bool = False


def routes_of(gateway: Gateway) -> list[Route]:
    """The routes, those of the original first."""
    original, jobs, steps, watch = OriginalRoutes(gateway), JobRoutes(gateway), StepRoutes(gateway), WatchRoutes(gateway)
    not_running = {503: "not running, or the gateway is ending"}
    found = [
        Route(
            method="POST",
            path="/start",
            access=Access.OPS,
            handler=original.start,
            about="Lets /process take jobs.",
            codes={200: "started", 400: "it runs already"},
            is_original=True,
        ),
        Route(
            method="POST",
            path="/stop",
            access=Access.OPS,
            handler=original.stop,
            about="Takes no more jobs, and cancels what /process has in flight.",
            codes={200: "stopped", **not_running},
            is_original=True,
        ),
        Route(
            method="POST",
            path="/process",
            access=Access.TRAINER,
            handler=original.process,
            about="Runs one job and answers with its result; the same job_id again attaches to the same job.",
            body=ProcessRequest,
            headers=CANCELS,
            codes={
                200: "the result, also of a job that failed",
                400: "no handler for data_source",
                409: "job_id is another request's",
                410: "the result was let go",
                422: "a field does not fit",
                500: "stopped while it ran",
                503: "not running, no model server, queue full, or the gateway is ending",
                504: "out of time",
            },
            is_original=True,
        ),
        Route(
            method="POST",
            path="/cancel",
            access=Access.OPS,
            handler=original.cancel,
            about="Cancels a job, and says what became of it.",
            body=CancelRequest,
            codes={200: "what became of it", **not_running},
            is_original=True,
        ),
        Route(
            method="GET",
            path="/status",
            access=Access.READ,
            handler=original.status,
            about="How busy it is; stages are counted over the whole fleet.",
            codes={200: "counts", **not_running},
            is_original=True,
        ),
        Route(
            method="POST",
            path="/add_llm_server",
            access=Access.OPS,
            handler=original.add_llm_server,
            about="Gives a model server to the run; one that it has already stays.",
            body=ServerRequest,
            codes={
                200: "added, or there already",
                409: "another run has it",
                422: "no address, or a host that gateway.model_hosts does not name",
            },
            is_original=True,
        ),
        Route(
            method="POST",
            path="/clear_llm_server",
            access=Access.OPS,
            handler=original.clear_llm_server,
            about="Takes all model servers from the run.",
            codes={200: "cleared"},
            is_original=True,
        ),
        Route(
            method="POST",
            path="/jobs",
            access=Access.TRAINER,
            handler=jobs.submit,
            about='Puts a job into the queue, or up to 256 as {"jobs": [...]}. The same id again is the same job.',
            body=JobRequest,
            query=WAIT,
            headers=CANCELS,
            codes={
                200: "how it stands, with wait_s",
                202: "accepted",
                400: "no such task",
                409: "the id is another request's",
                410: "the result was let go",
                422: "a field does not fit",
                503: "queue full, or the gateway is ending",
            },
        ),
        Route(
            method="GET",
            path="/jobs/{id}",
            access=Access.READ,
            handler=jobs.status,
            about="How a job stands: state, timeline, and the result when it has ended.",
            query=WAIT,
            codes={200: "how it stands", 404: "nobody knows it"},
        ),
        Route(
            method="GET",
            path="/jobs/{id}/trajectory",
            access=Access.READ,
            handler=jobs.trajectory,
            about="What a job produced, with result and grade: JSON, or msgpack where Accept says so.",
            codes={200: "the record", 404: "there is none", 406: "neither form is accepted", 409: "it has not ended"},
        ),
        Route(
            method="DELETE",
            path="/jobs/{id}",
            access=Access.TRAINER,
            handler=jobs.delete,
            about="Cancels a job that has not ended; lets go of the result of one that has.",
            codes={200: "done", 202: "its worker is told", 404: "nobody knows it", 409: "a member of a step"},
        ),
        Route(
            method="POST",
            path="/jobs/{id}/reward",
            access=Access.TRAINER,
            handler=jobs.reward,
            about="Gives a job that awaits it its reward from outside; the first one stands.",
            body=RewardRequest,
            codes={200: "what became of it", 422: "no finite number"},
        ),
        Route(
            method="POST",
            path="/prompts",
            access=Access.TRAINER,
            handler=steps.push,
            about="Puts prompts into the reserve that steps draw from. The same id again changes nothing.",
            body=PromptsRequest,
            codes={200: "how many were new", 422: "a field does not fit", 503: "the queue is full"},
        ),
        Route(
            method="POST",
            path="/steps",
            access=Access.TRAINER,
            handler=steps.ask,
            about="Asks for a step: the first that is not acknowledged, or the one that index names.",
            body=StepRequest,
            query={"index": "which step; default: the first that is not acknowledged", **WAIT},
            codes={
                200: "the step, or that the prompts have ended",
                202: "it is open",
                400: "no such task",
                422: "a field does not fit",
                502: "infrastructure broke every member of the run's first groups",
            },
        ),
        Route(
            method="GET",
            path="/steps",
            access=Access.READ,
            handler=steps.overview,
            about="Which step comes next, and which were asked for.",
            codes={200: "indices"},
        ),
        Route(
            method="GET",
            path="/steps/{index}",
            access=Access.READ,
            handler=steps.status,
            about="A step that was asked for.",
            query=WAIT,
            codes={200: "the step", 202: "it is open", 404: "it was not asked for"},
        ),
        Route(
            method="POST",
            path="/steps/{index}/ack",
            access=Access.TRAINER,
            handler=steps.ack,
            about="Lets go of a step and of all before it.",
            codes={200: "which went", 409: "it is not complete"},
        ),
        Route(
            method="GET",
            path="/events",
            access=Access.READ,
            handler=watch.events,
            about="Jobs, groups and steps as they end, as server-sent events.",
            query={"from": "id to begin after, 0 = all that are kept; default: now", "kinds": "job, group, step, awaiting, held, note"},
            headers={"Last-Event-ID": "id to go on after"},
            codes={200: "a stream", 422: "no position or kind", 503: "too many readers"},
        ),
        Route(
            method="GET",
            path="/healthz",
            access=Access.OPEN,
            handler=watch.health,
            about="Whether it takes work.",
            codes={200: "it does", 503: "it is ending"},
        ),
        Route(
            method="GET",
            path="/metrics",
            access=Access.READ,
            handler=watch.metrics,
            about="Numbers for Prometheus.",
            codes={200: "text"},
        ),
    ]
    return found


__all__ = ["Route", "routes_of"]

"""Prompts and steps: filling the reserve, asking for a step, taking it, letting go of it."""

from __future__ import annotations

import asyncio

from aiohttp import web
from pydantic import Field

from ops.gateway.answers import JSON, json_answer
from ops.gateway.bodies import checked
from ops.gateway.refusals import Refusal
from ops.gateway.state import Gateway
from ops.gateway.steps import step_as_map
from ops.gateway.waiting import wait_s_of
from pipeline.keys import PROMPT_ID
from pipeline.prompts import encode_prompt, prompt_data
from pipeline.request_model import Request
from pipeline.scripts.step_calls import StepScripts
from trainer_client import Step, StepRequest

MOST_PROMPTS = 1024
MOST_INDEX = 2**53
MOST_AHEAD = 1024
"""Steps that may be asked for beyond the first that is not acknowledged: an ack lets go of all before it, so a mistyped index would end a
run."""


class PromptRow(Request):
    """One prompt of `POST /prompts`."""

    id: str = Field(pattern="^" + PROMPT_ID.pattern.replace(r"\Z", "$"))
    """Names it in the run, for ever: pushed again, it is the same. `e<epoch>-<row>` is counted by epoch."""
    data: dict[str, object]
    """Row of the task."""


class PromptsRequest(Request):
    """Body of `POST /prompts`."""

    prompts: list[PromptRow] = Field(default_factory=list, max_length=MOST_PROMPTS)
    end: bool = False
    """No more prompts come: steps end short when these are used up. Later prompts take it back."""


class StepRoutes:
    """What stands behind `/prompts` and `/steps`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._scripts = StepScripts(gateway.client, gateway.keys)

    async def push(self, request: web.Request) -> web.Response:
        """Puts prompts into the reserve of the run, in order."""
        gateway = self._gateway
        body = await gateway.budget.read_object(request)
        gateway.check_accepts()
        asked, encoded = await checked(request, lambda: self._encoded(body))
        run = gateway.run
        fresh = await self._scripts.push_prompts(run.id, run.incarnation, encoded) if encoded else []
        if asked.end:
            await self._scripts.end_prompts(run.id, run.incarnation)
        if asked.end != ("ended" in gateway.memory):
            await gateway.memory.note("ended", holds=asked.end)
        return json_answer({"pushed": sum(fresh), "known": len(fresh) - sum(fresh), "ended": asked.end})

    def _encoded(self, body: dict[str, object]) -> tuple[PromptsRequest, list[tuple[str, bytes]]]:
        asked = PromptsRequest.parse(body)
        if not asked.prompts and not asked.end:
            raise Refusal(422, "invalid", "expected at least one prompt, or end: true", field="prompts")
        encoded = []
        for number, row in enumerate(asked.prompts):
            field = f"prompts[{number}].data"
            data = prompt_data(row.data, field=field)
            encoded.append((row.id, encode_prompt(row.id, data, max_body_bytes=self._gateway.queue.max_body_bytes, field=field)))
        return asked, encoded

    async def ask(self, request: web.Request) -> web.StreamResponse:
        """Asks for a step: the first that is not acknowledged, or the one that `index` names. Waits for it at most `wait_s`."""
        gateway = self._gateway
        asked = StepRequest.parse(await gateway.budget.read_object(request))
        gateway.check_accepts()
        if asked.task not in gateway.tools.names:
            raise Refusal(
                400, "unknown_task", f"no handler for task {asked.task!r}; known are {', '.join(gateway.tools.names)}", field="task"
            )
        index = _index(request.query["index"]) if "index" in request.query else self._first()
        if index > gateway.steps.next_index + MOST_AHEAD:
            why = f"expected at most {MOST_AHEAD} steps beyond step {gateway.steps.next_index}, the first that is not acknowledged"
            raise Refusal(422, "invalid", f"{why}, got {index}", field="index")
        return await self._told(gateway.steps.ask(index, asked), index, wait_s_of(request))

    def _first(self) -> int:
        """The first step that is not acknowledged, but for those that ended without a group when there are prompts again."""
        index = self._gateway.steps.next_index
        while "ended" not in self._gateway.memory and self._gateway.steps.has_ended(index):
            index += 1
        return index

    async def status(self, request: web.Request) -> web.StreamResponse:
        """A step that was asked for; waits for it at most `wait_s`."""
        index = _index(request.match_info["index"])
        step = self._gateway.steps.get(index)
        if step is None:
            raise Refusal(
                404, "no_such_step", f"step {index} was not asked for since this process began: POST /steps?index={index}", field="index"
            )
        return await self._told(step, index, wait_s_of(request))

    async def overview(self, _: web.Request) -> web.Response:
        """Which step comes next, and which were asked for."""
        steps = self._gateway.steps
        return json_answer({"next": steps.next_index, "asked_for": steps.open})

    async def ack(self, request: web.Request) -> web.Response:
        """Lets go of a step and of all before it."""
        index = _index(request.match_info["index"])
        try:
            gone = await self._gateway.steps.ack(index)
        except KeyError:
            if index < self._gateway.steps.next_index and self._gateway.run.next_step is not None:
                return json_answer({"acked": [], "next": self._gateway.steps.next_index})
            raise Refusal(
                409, "not_given_out", f"step {index} is not complete, or was not asked for: GET /steps/{index}?wait_s=60", field="index"
            ) from None
        return json_answer({"acked": gone, "next": self._gateway.steps.next_index})

    async def _told(self, step: asyncio.Future[Step | None], index: int, wait_s: float) -> web.StreamResponse:
        gateway = self._gateway
        leaving = asyncio.create_task(gateway.leaving.wait(), name=f"leaving-step-{index}")
        try:
            if wait_s:
                await asyncio.wait((step, leaving), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(0)
        finally:
            leaving.cancel()
        if not step.done():
            if gateway.leaving.is_set():
                raise gateway.goodbye()
            why = await gateway.run.why_waiting() if wait_s else []
            return json_answer({"index": index, "state": "open", "why_waiting": why, "status_at": f"/steps/{index}"}, status=202)
        found = step.result()
        if found is None:
            return json_answer({"index": index, "state": "ended", "why": "the prompts have ended, and no group is left for it"})
        return await gateway.large.make(lambda: step_as_map(found), form=JSON)


def _index(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 16) or int(text) > MOST_INDEX:
        raise Refusal(422, "invalid", f"expected a whole number from 0 on, got {text[:40]!r}", field="index")
    return int(text)


__all__ = ["PromptRow", "PromptsRequest", "StepRoutes"]

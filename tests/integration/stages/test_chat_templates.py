"""A job's chat settings, all the way: a worker, the pool, and a server whose own template is asked before anything is sampled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.inference_pool import InferencePool, Server
from pipeline.messages import ChatMessage, ChatSettings, Grade, JobSpec
from pipeline.testing import a_template
from tests.integration.stages.fleet import RUN, TASK, Fleet
from workers.handlers.agent_handler import AgentHandler
from workers.handlers.base import EvalContext
from workers.llm.scripted import ScriptedServer, ServerOptions
from workers.sandbox.base import Sandbox
from workers.tools.base import Tool

pytestmark = pytest.mark.one_server
NAME = "two user turns after a thought"


class Greets(AgentHandler):
    """A user says hello, and whatever comes is right."""

    name = TASK

    def messages(self, spec: JobSpec) -> Sequence[ChatMessage]:
        return [ChatMessage(role="user", content="Hello.")]

    def tools(self, spec: JobSpec, sandbox: Sandbox | None) -> Sequence[Tool]:
        return ()

    async def evaluate(self, context: EvalContext) -> Grade:
        return Grade(reward=1.0, grader="greets/1")


@pytest.fixture
async def server(fleet: Fleet) -> AsyncIterator[ScriptedServer]:
    """A scripted server whose template keeps thoughts, attached to the run."""
    async with ScriptedServer(ServerOptions()) as server:
        pool = InferencePool(fleet.client, fleet.settings.namespace, lease_s=fleet.settings.lease_s)
        await pool.attach(RUN, [Server(server.url)])
        yield server


async def test_a_job_runs_with_what_was_found_in_its_record(fleet: Fleet, server: ScriptedServer) -> None:
    await fleet.add("job", template=a_template(task=TASK))
    fleet.start(play=Greets())

    record = await fleet.result()

    trajectory = await fleet.trajectory(record)
    assert record["out"] in ("ok", "model_failure")
    assert trajectory.extra["chat_templates"] == {server.url: "same"}
    assert "template_differences" not in trajectory.extra


async def test_a_difference_ends_the_job_before_a_token_is_sampled_for_it(fleet: Fleet, server: ScriptedServer) -> None:
    await fleet.add("job", template=replace(a_template(task=TASK), chat=ChatSettings(keep_thinking=False)))
    fleet.start(play=Greets())

    record = await fleet.result()

    assert record["out"] == "infra_failure"
    assert record["rew"] == ""
    assert record["why"].startswith(
        f"body: TemplateMismatch: chat: the renderer and the chat template of {server.url} differ on the dialogue {NAME!r} at token "
    )
    assert f"template_differences=[{NAME!r}]" in record["why"]
    assert not [body for _, body in server.requests if "job" in str(body.get("request_id"))], "only the client's probe was sampled"


async def test_a_difference_that_the_job_names_is_allowed_and_recorded(fleet: Fleet, server: ScriptedServer) -> None:
    chat = ChatSettings(keep_thinking=False, template_differences=(NAME,))
    await fleet.add("job", template=replace(a_template(task=TASK), chat=chat))
    fleet.start(play=Greets())

    trajectory = await fleet.trajectory(await fleet.result())

    assert trajectory.extra["chat_templates"] == {server.url: f"differs: {NAME}"}
    assert trajectory.extra["template_differences"] == [NAME]


async def test_a_tokenizer_that_no_worker_has_ends_the_job_as_infrastructure_and_names_the_path(
    fleet: Fleet, server: ScriptedServer, tmp_path: Path
) -> None:
    """Promise 7: tried again, since another worker may have it, and never a reward of 0."""
    chat = ChatSettings(tokenizer=str(tmp_path / "nowhere"))
    (job,) = await fleet.add("job", template=replace(a_template(task=TASK, max_failed=2), chat=chat))
    fleet.start(play=Greets())

    record = await fleet.result()

    assert record["out"] == "infra_failure"
    assert record["rew"] == ""
    assert f"model: RendererUnavailable: cannot render with the tokenizer {tmp_path / 'nowhere'}" in record["why"]
    assert (await fleet.audit.job(job))["failed"] == "3"

"""The same wrong uses at both doors, HTTP and the client: each gets a sentence that says what was expected, what came and what to do."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pipeline.errors import BrokerMisused, InvalidRequest, StaleIncarnation
from pipeline.messages import Stage
from pipeline.redis_client import ask, command_client
from pipeline.settings import QueueSettings
from pipeline.testing import PrivateServer, wait_until
from tests.integration.gateway.service import RUN, Answer, Client, gateway, instance, workers
from tests.secret_words import a_secret, words_in
from trainer_client import JobRequest, Run, StepRequest, WaitTimeout, connect

pytestmark = pytest.mark.one_server

TOKEN = {"Authorization": "Bearer trainer-0123456789abcdef"}
WRONG_TOKEN = {"Authorization": "Bearer trainer-0123456789abcdeg"}
JOB = {"task": "math", "prompt": {"question": "x"}}

BY_HTTP: dict[str, tuple[Callable[[Client], Awaitable[Answer]], int, str]] = {
    "group size 0": (lambda c: c.post("/steps", {"task": "math", "groups": 1, "n": 0}, headers=TOKEN), 422, "n: expected .* got 0"),
    "unknown task": (
        lambda c: c.post("/jobs", {**JOB, "task": "maths"}, headers=TOKEN),
        400,
        "no handler for task 'maths'; did you mean 'math'",
    ),
    "missing server": (lambda c: c.post("/process", {"instance": instance()}, headers=TOKEN), 503, "no model server: POST /add_llm_server"),
    "wrong token": (lambda c: c.post("/jobs", JOB, headers=WRONG_TOKEN), 401, "in none of the gateway's token files: ask whoever runs it"),
    "no token": (lambda c: c.post("/jobs", JOB), 401, "expected a token: send it as `Authorization: Bearer TOKEN`"),
    "newer schema": (
        lambda c: c.post("/jobs", {**JOB, "schema_version": 2}, headers=TOKEN),
        422,
        "schema 2, this gateway reads up to 1: upgrade",
    ),
}


@pytest.mark.parametrize("what", BY_HTTP)
async def test_wrong_use_of_the_gateway_gets_a_sentence(queue: QueueSettings, tmp_path: Path, what: str) -> None:
    call, status, sentence = BY_HTTP[what]
    tokens = tmp_path / "tokens"
    tokens.write_text("trainer-0123456789abcdef\n")
    tokens.chmod(0o600)
    async with gateway(queue, tmp_path, trainer_token_file=tokens) as service:
        await service.client.post("/start", headers=TOKEN)

        answer = await call(service.client)
        steps = await service.client.get("/steps", headers=TOKEN)

    assert (answer.status, bool(answer.body["error"])) == (status, True)
    assert re.search(sentence, answer.body["detail"])
    assert steps.body == {"next": 1, "asked_for": []}  # it changed nothing


async def test_a_second_client_on_the_run_of_a_gateway_is_told_by_the_gateway(queue: QueueSettings, tmp_path: Path) -> None:
    quick = queue.model_copy(update={"run_ttl_s": 2.0})  # a client hears of its fencing with its next sign of life
    async with gateway(quick, tmp_path) as service, connect(quick, run=RUN):
        told = await service.client.post("/jobs", JOB)

    assert (told.status, told.body["error"]) == (503, "fenced")
    assert "another client took the run 'gate' over" in told.body["detail"]
    assert "give each a run of its own (--run)" in told.body["detail"]


async def group_size_0(_: Run, __: QueueSettings, ___: Path) -> str:
    with pytest.raises(InvalidRequest) as told:
        StepRequest(task="math", groups=1, n=0)
    return str(told.value)


async def unknown_task(run: Run, queue: QueueSettings, folder: Path) -> str:
    """Which tasks there are is known to the workers alone."""
    async with workers(queue, folder, stages=(Stage.INIT,)):
        job = await run.submit(JobRequest(task="maths", prompt={"question": "x"}, max_failed=0))
        result = await job.result(timeout_s=30)
    assert result.reward is None
    return (await job.status())["err"]


async def missing_server(run: Run, queue: QueueSettings, folder: Path) -> str:
    async with workers(queue, folder, stages=(Stage.INIT, Stage.RUN)):
        job = await run.submit(JobRequest(task="math", prompt={"question": "x", "answer": "1"}, options={"tools": False}))

        async def waits_in_run() -> bool:
            status = await job.status()
            return (status["stage"], status["st"]) == ("run", "running")

        await wait_until(waits_in_run, "it waits for a server", timeout_s=30)
        with pytest.raises(WaitTimeout) as told:
            await job.result(timeout_s=0.05)
    return str(told.value)


async def newer_schema(run: Run, queue: QueueSettings, _: Path) -> str:
    state = {**run.state_dict(), "schema_version": 99}
    with pytest.raises(InvalidRequest) as told:
        async with connect(queue, run=RUN, resume=state):
            pass
    return str(told.value)


async def second_client(run: Run, queue: QueueSettings, _: Path) -> str:
    async with connect(queue, run=RUN):
        with pytest.raises(StaleIncarnation) as told:
            await run.submit(JobRequest(task="math", prompt={"question": "x"}))
    return str(told.value)


BY_CLIENT: dict[str, tuple[Callable[[Run, QueueSettings, Path], Awaitable[str]], str]] = {
    "group size 0": (group_size_0, "n: expected .* got 0"),
    "unknown task": (unknown_task, "no task 'maths' is installed here; did you mean 'math'"),
    "missing server": (missing_server, "[Nn]o model server is attached.*rollstream llm add --run gate"),
    "newer schema": (newer_schema, "schema 99, this one reads [0-9]+.: upgrade rollstream"),
    "second client": (second_client, "incarnation 1 is fenced off, 2 is current: another trainer took the run over"),
}


@pytest.mark.parametrize("what", BY_CLIENT)
async def test_wrong_use_of_the_client_gets_a_sentence(queue: QueueSettings, tmp_path: Path, what: str) -> None:
    use, sentence = BY_CLIENT[what]
    async with connect(queue, run=RUN) as run:
        told = await use(run, queue, tmp_path)

    assert re.search(sentence, told)


async def test_a_wrong_password_of_the_client_gets_a_sentence(make_server: Callable[[], PrivateServer]) -> None:
    """What a token is at the gateway."""
    url = make_server().url
    client = command_client(QueueSettings(redis_url=url))
    await ask(client, "CONFIG", "SET", "requirepass", a_secret("redis"))
    await client.aclose()

    wrong = a_secret("wrong")
    with pytest.raises(BrokerMisused, match=r"takes neither this user nor password .* give them in its URL") as told:
        async with connect(url.replace("://", f"://:{wrong}@"), run=RUN):
            pass
    assert not words_in(str(told.value))

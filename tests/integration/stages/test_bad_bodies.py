"""What cannot be read ends its job as a dead letter that says why; what a newer version wrote is left to newer workers. No worker dies of
either."""

from __future__ import annotations

import msgpack
import pytest

from pipeline import codec
from pipeline.messages import Stage
from pipeline.redis_client import ask
from pipeline.testing import a_template, wait_until
from tests.integration.stages.fleet import TASK, Fleet, Play
from workers.handlers.base import Environment, StageContext
from workers.handlers.task_options import Option, Truth

pytestmark = pytest.mark.one_server

GOOD = codec.encode(a_template(task=TASK))
BROKEN: dict[str, tuple[bytes, str]] = {
    "no msgpack": (b"\x00\xc1\xff\xff", "damaged body"),
    "empty": (b"", "empty"),
    "another codec byte": (b"\x07" + GOOD[1:], "unknown codec byte 7"),
    "truncated": (GOOD[: len(GOOD) // 2], "damaged body"),
    "a list": (b"\x00" + msgpack.packb([1, 2]), "not a map"),
    "another record": (b"\x00" + msgpack.packb({"v": 1, "colour": "red"}), "is missing"),
    "a field of another type": (b"\x00" + msgpack.packb({"v": 1, "task": 7, "id": 7, "data": 7}), "expected str"),
    "a version that is no number": (b"\x00" + msgpack.packb({"v": "one"}), "schema version"),
}


@pytest.mark.parametrize("which", ["template", "prompt"])
async def test_a_body_that_cannot_be_read_is_a_dead_letter(fleet: Fleet, which: str) -> None:
    bad: dict[str, str] = {}
    for number, (kind, (body, _)) in enumerate(BROKEN.items()):
        (job,) = await fleet.add(
            f"bad{number}", template_body=body if which == "template" else None, prompt_body=body if which == "prompt" else None
        )
        bad[job] = kind
    (good,) = await fleet.add("good")

    fleet.start()

    results = await fleet.results(len(bad) + 1)
    assert results[good]["out"] == "ok"
    for job, kind in bad.items():
        assert (results[job]["out"], results[job]["att"]) == ("infra_failure", "1"), kind
        assert BROKEN[kind][1] in results[job]["why"], kind
    assert {row["job"] for row in await fleet.audit.entries(fleet.keys.dead)} == set(bad)
    assert await fleet.audit.all_ended("run1", fleet.units) == []


@pytest.mark.parametrize("which", ["template", "prompt"])
@pytest.mark.parametrize("how", ["missing", "of another type"])
async def test_a_body_that_is_not_there_is_a_dead_letter(fleet: Fleet, which: str, how: str) -> None:
    (job,) = await fleet.add("job")
    key = fleet.keys.prompt(job) if which == "prompt" else fleet.keys.template("run1", "t0")
    await ask(fleet.client, "DEL", key)
    if how == "of another type":
        await ask(fleet.client, "HSET", key, "a", "b")
        await ask(fleet.client, "EXPIRE", key, 60)

    fleet.start()

    record = await fleet.result()
    assert (record["out"], record["att"]) == ("infra_failure", "1")
    assert "is not there" in record["why"]


@pytest.mark.parametrize("stage", [Stage.RUN, Stage.EVAL])
async def test_what_the_stage_before_made_and_is_gone_is_a_dead_letter(fleet: Fleet, stage: Stage) -> None:
    (job,) = await fleet.add("job")
    before = list(Stage)[: list(Stage).index(stage)]
    fleet.start(*before)

    async def is_there() -> bool:
        return (await fleet.audit.job(job)).get("stage") == stage.value

    await wait_until(is_there, "it waits for the stage")
    made = (await fleet.audit.job(job))[f"b.{before[-1].value}"]
    assert await ask(fleet.client, "DEL", fleet.keys.body(job, made, before[-1].value)) == 1

    fleet.start(stage)

    record = await fleet.result()
    assert record["out"] == "infra_failure"
    assert "is not there" in record["why"]


async def test_a_message_of_a_higher_version_is_left_to_newer_workers(fleet: Fleet) -> None:
    """Handed back uncounted, and then the worker rests: it took the message again at once, some hundred times a second, and no newer worker
    had a chance to be faster."""
    newer = b"\x00" + msgpack.packb({"v": 2, "task": TASK})
    (job,) = await fleet.add("job", template_body=newer)
    fleet.start(Stage.INIT)

    async def handed_back() -> bool:
        return int((await fleet.audit.job(job))["att"]) >= 2

    await wait_until(handed_back, "it was handed back and tried again")
    h = await fleet.audit.job(job)
    assert (int(h["att"]) <= 3, h["failed"], h["lost"]) == (True, "0", "0")
    await ask(fleet.client, "SET", fleet.keys.template("run1", "t0"), GOOD, "KEEPTTL")  # as a newer worker would read it

    fleet.start(node="upgraded")

    assert (await fleet.result())["out"] == "ok"


async def test_a_task_that_no_worker_has_is_a_dead_letter_that_names_what_there_is(fleet: Fleet) -> None:
    await fleet.add("job", template=a_template(task="chess"))
    fleet.start()

    record = await fleet.result()

    assert (record["out"], record["att"]) == ("infra_failure", "1")
    known = record["why"].partition("no task 'chess' is installed here; known are ")[2].split(", ")
    assert {"math", "play"} <= set(known)
    assert known == sorted(known)


async def test_a_misspelt_option_ends_the_job_in_init_and_is_not_tried_again(fleet: Fleet) -> None:
    """It was looked up by nobody: the job ran with the default, and its trainer thought otherwise."""

    class Tuned(Play):
        options = (Option(name="loud", takes=Truth(), default=False, about="whether it shouts"),)

    made: list[str] = []

    async def makes(context: StageContext) -> Environment:
        made.append(context.spec.job)
        return Environment()

    (bad,) = await fleet.add("bad", template=a_template(task=TASK, options={"lout": True}))
    (wrong,) = await fleet.add("wrong", template=a_template(task=TASK, options={"loud": "yes"}))
    (good,) = await fleet.add("good", template=a_template(task=TASK, options={"loud": True}))

    fleet.start(play=Tuned(on_init=makes))

    results = await fleet.results(3)
    assert (results[bad]["out"], results[bad]["att"]) == ("infra_failure", "1")
    assert results[bad]["why"] == "body: BadOption: options.lout: the task play has no such option; did you mean 'loud'?"
    assert (results[wrong]["att"], results[wrong]["why"]) == (
        "1",
        "body: BadOption: options.loud: expected true or false, got 'yes' (str)",
    )
    assert results[good]["out"] == "ok"
    assert made == [good]


async def test_an_output_above_the_bound_is_a_dead_letter(fleet: Fleet) -> None:
    async def huge(context: StageContext) -> Environment:
        return Environment(data={"noise": "x" * 100_000})

    fleet.settings = fleet.settings.model_copy(update={"max_body_bytes": 50_000})
    await fleet.add("job")
    fleet.start(play=Play(on_init=huge))

    record = await fleet.result()

    assert record["out"] == "infra_failure"
    assert "result_too_large" in record["why"]
    assert "the bound is 50,000" in record["why"]

"""Dead letters: read, tried again as new jobs, taken off the list."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from ops.dead.letters import NoDeadLetter, drop_letters, letter_of, read_dead_letters
from ops.dead.replay import CannotReplay, replay_job
from ops.dead.view import as_lines, tables
from pipeline import codec
from pipeline.keys import Keys
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts import Scripts
from pipeline.settings import QueueSettings
from pipeline.testing import ManualWorker, a_group, a_template, a_unit

pytestmark = pytest.mark.one_server
WHY = "sandbox: SandboxStartError: \x1b[31mno space"


async def dead_job(scripts: Scripts, *, members: int = 0) -> str:
    """A job, or the first of a group, that INIT gave up for good."""
    incarnation = await scripts.connect_run("run1", nonce="t", ttl_s=3600)
    unit = a_group(members=members) if members else a_unit()
    template = a_template()
    await scripts.accept("run1", incarnation, template, "t1", codec.encode(template), [unit], max_waiting=100, window=100)
    init = ManualWorker(scripts, Stage.INIT)
    held = await init.take()
    await init.give_up(held[0], kind="dead", why=WHY)
    return held[0].job


async def test_a_dead_letter_is_found_by_its_job_and_shown_without_what_would_drive_a_terminal(
    scripts: Scripts, client: AsyncClient, settings: QueueSettings
) -> None:
    job = await dead_job(scripts)

    letter = await letter_of(client, settings, job)

    assert (letter.kind, letter.stage, letter.attempt) == ("sandbox: SandboxStartError", "init", 1)
    assert not any("\x1b" in line for line in as_lines(letter))
    printed = StringIO()
    Console(file=printed, width=80).print(tables([letter]))
    assert "sandbox: SandboxStartError" in printed.getvalue()
    assert "\x1b" not in printed.getvalue()
    assert await letter_of(client, settings, letter.entry) == letter
    with pytest.raises(NoDeadLetter, match="rollstream dead list"):
        await letter_of(client, settings, "run1.none")


@pytest.mark.parametrize("members", [0, 2], ids=["a single job", "a member of a group"])
async def test_a_replay_is_a_new_job_that_names_the_old_one_whose_record_stands(
    members: int, scripts: Scripts, client: AsyncClient, settings: QueueSettings, keys: Keys
) -> None:
    job = await dead_job(scripts, members=members)
    before = await ask(client, "HGETALL", keys.job(job))

    first = await replay_job(client, settings, job)
    again = await replay_job(client, settings, job)

    assert (first.is_new, again.is_new) == (True, False)
    assert first.job == again.job != job
    made = await ask(client, "HGETALL", keys.job(first.job))
    assert (made[b"replay_of"], made[b"grp"], made[b"task"]) == (job.encode(), b"", before[b"task"])
    assert await ask(client, "HGETALL", keys.job(job)) == before
    init = ManualWorker(scripts, Stage.INIT)
    (held,) = [one for one in await init.take() if one.job == first.job]
    await init.give_up(held, kind="dead", why=WHY)
    assert (await replay_job(client, settings, job)).job.endswith("-replay2"), "the first one has ended"


async def test_what_has_not_ended_or_is_gone_is_not_tried_again(scripts: Scripts, client: AsyncClient, settings: QueueSettings) -> None:
    job = await dead_job(scripts, members=2)
    other = job.removesuffix("0") + "1"

    with pytest.raises(CannotReplay, match="has not ended"):
        await replay_job(client, settings, other)
    with pytest.raises(CannotReplay, match="is not known"):
        await replay_job(client, settings, "run1.none")


async def test_a_dropped_letter_is_gone_and_the_record_of_its_job_is_not(
    scripts: Scripts, client: AsyncClient, settings: QueueSettings, keys: Keys
) -> None:
    job = await dead_job(scripts)
    letter = await letter_of(client, settings, job)

    assert await drop_letters(client, settings, [letter]) == 1
    assert await drop_letters(client, settings, [letter]) == 0

    assert await read_dead_letters(client, settings, most=10) == []
    assert await ask(client, "XLEN", keys.results("run1")) == 1

"""A dead job tried again: a new single job of its run, made of the old one's prompt and template, that names it in `replay_of`.

    dead job ──prompt, template──> accept(new id) ──> `replay_of` = old id in the new job's hash

1. The old record stands: a job ends once (promise 1), and its group's verdict stands (promise 3). The new job is in no group.
2. Asked for again while a replay is open, the same one is answered; once it has ended, the next number is tried.
3. Its result comes to the run's trainer as that of a single job does.

The name of the old job is written after the new one was accepted: a command that is killed in between leaves a replay without it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipeline import codec
from pipeline.errors import RollstreamError
from pipeline.keys import Keys, run_of, shard_of
from pipeline.messages import JobTemplate, Prompt
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts import Scripts, Unit
from pipeline.settings import QueueSettings
from pipeline.supervisor.run_account import texts

MOST_REPLAYS = 99
LONGEST_NAME = 54
"""Of what is kept of the old id: with `-replay99` an id as a single job may have."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replay that is there now."""

    job: str
    replay_of: str
    is_new: bool
    """False = an open one was there."""


class CannotReplay(RollstreamError):
    """The job cannot be tried again; says why."""

    def __init__(self, job: str, why: str) -> None:
        super().__init__(f"job {job} cannot be tried again: {why}")


async def replay_job(client: AsyncClient, settings: QueueSettings, job: str) -> Replayed:
    """Tries a job again that ended without a usable result.

    Raises:
        CannotReplay: it is not known, has not ended, or what it was made of is gone.
        QueueFull, RunClosed, StaleIncarnation
        BrokerError
    """
    run = run_of(job)
    keys = Keys.of_shard(settings.namespace, shard_of(run, settings.shards))
    old = texts(await ask(client, "HGETALL", keys.job(job)))
    if not old:
        raise CannotReplay(job, "it is not known: never accepted, or its trainer acknowledged it and its records went")
    if old.get("st") != "done":
        raise CannotReplay(job, f"it has not ended, it is {old.get('st', '?')} in {old.get('stage', '?').upper()}")
    group = old.get("grp", "")
    template_body = await ask(client, "GET", keys.template(run, old.get("tpl", "")))
    prompt_body = await ask(client, "GET", keys.prompt(group or job))
    if template_body is None or prompt_body is None:
        raise CannotReplay(job, "its prompt or its template is gone")
    template, prompt = codec.decode(JobTemplate, template_body), codec.decode(Prompt, prompt_body)
    incarnation = int(await ask(client, "HGET", keys.run(run), "inc") or 0)
    base = re.sub(r"[^A-Za-z0-9_-]", "-", job.removeprefix(f"{run}."))[:LONGEST_NAME]
    scripts = Scripts(client, keys)
    for number in range(1, MOST_REPLAYS + 1):
        new = f"{run}.{base}-replay{number}"
        there = texts(await ask(client, "HGETALL", keys.job(new)))
        if there and there.get("st") != "done":
            return Replayed(new, job, is_new=False)
        if there:
            continue
        unit = Unit(new, 0, prompt.id, 0, old.get("pv", ""), prompt_body)
        (accepted,) = await scripts.accept(
            run,
            incarnation,
            template,
            old.get("tpl", ""),
            template_body,
            [unit],
            max_waiting=settings.max_waiting,
            window=settings.admit_window,
        )
        if accepted.value == "acked":  # that replay has ended and was acknowledged
            continue
        await ask(client, "HSET", keys.job(new), "replay_of", job)
        await ask(client, "PEXPIRE", keys.job(new), int(template.wall_s * 1000), "NX")
        return Replayed(new, job, is_new=accepted.value == "ok")
    raise CannotReplay(job, f"it was tried again {MOST_REPLAYS} times")

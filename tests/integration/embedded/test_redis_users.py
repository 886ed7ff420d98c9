"""The users of a shared Redis can do their work: every script runs as who calls it, on each server we know."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from ops.look import look_at_run
from ops.redis.users import acl_directives, make_passwords, password_file, roles
from ops.run_report import report_on
from pipeline.errors import BrokerMisused
from pipeline.inference_pool import InferencePool, Server
from pipeline.keys import Keys
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask, command_client
from pipeline.scripts import Accepted, Scripts
from pipeline.settings import QueueSettings
from pipeline.testing import ManualWorker, a_group, a_template, a_unit, carry, jobs_of
from pipeline.testing.servers import PrivateServer

KEYS = Keys.of_shard("rs", 0)
As = Callable[[str], Scripts]
ONLY_OF_WORKERS = frozenset({"XCLAIM", "XGROUP|DELCONSUMER"})
"""What scripts of workers alone do: renewing a lease, dropping a consumer."""


def tell(admin: redis.Redis, *words: str) -> Any:
    """Any command; the reply is Any because its shape belongs to the command."""
    return cast(Any, admin).execute_command(*words)


@pytest.fixture
def shared_server(make_server: Callable[..., PrivateServer], tmp_path: Path) -> PrivateServer:
    """A server with our users, as `rollstream redis serve` makes them; its default user stays, as who makes the server looks for it."""
    server = make_server()
    with redis.Redis.from_url(server.url) as admin:
        for name, *words in acl_directives(roles("rs"), make_passwords(tmp_path, roles("rs"))):
            assert name == "user"
            if words[0] != "default":
                tell(admin, "ACL", "SETUSER", *words)
    return server


@pytest.fixture
async def scripts_as(shared_server: PrivateServer, tmp_path: Path) -> AsyncIterator[As]:
    """The scripts, called as one of the users."""
    clients: list[AsyncClient] = []

    def as_user(user: str) -> Scripts:
        settings = QueueSettings(redis_url=shared_server.url, redis_user=user, redis_password_file=password_file(tmp_path, user))
        client = command_client(settings)
        clients.append(client)
        return Scripts(client, KEYS)

    yield as_user
    for client in clients:
        await client.aclose()


async def test_a_job_lives_its_whole_life_under_the_users_that_have_to_do_with_it(scripts_as: As) -> None:
    trainer, worker, ops = scripts_as("trainer"), scripts_as("worker"), scripts_as("ops")
    group, single = a_group(members=2), a_unit(prompt="e0-i1")
    incarnation = await trainer.connect_run("run1", nonce="n", ttl_s=60.0)
    accepted = await trainer.accept("run1", incarnation, a_template(), "t", b"template", [group, single], max_waiting=100, window=100)
    assert accepted == [Accepted.NEW, Accepted.NEW]

    await trainer.cancel("job", jobs_of(group)[:1], "not needed")
    held = await carry(worker, to=Stage.EVAL)
    hands = ManualWorker(worker, Stage.EVAL)
    assert await hands.renew(*held) == (True, ["1", "1"])
    await hands.settle(*held)

    reader = ops.run_script.client
    reader.response_callbacks.clear()
    results = await ask(reader, "XRANGE", KEYS.results("run1"), "-", "+")
    entries = {dict(zip(fields[::2], fields[1::2], strict=True))[b"job"].decode(): entry.decode() for entry, fields in results}
    assert sorted(entries) == sorted(jobs_of(group) + jobs_of(single))
    await trainer.ack("run1", incarnation, [(entries[single.id], "job", single.id)])
    assert await ask(reader, "XLEN", KEYS.results("run1")) == 2


async def test_who_may_only_look_sees_it_all_and_is_told_what_it_may_not(
    scripts_as: As, shared_server: PrivateServer, tmp_path: Path
) -> None:
    trainer, ops = scripts_as("trainer"), scripts_as("ops")
    await trainer.connect_run("run1", nonce="n", ttl_s=60.0)
    client = ops.run_script.client
    settings = QueueSettings(redis_url=shared_server.url, redis_user="ops", redis_password_file=password_file(tmp_path, "ops"))

    assert (await look_at_run(client, KEYS, "run1")) is not None
    assert (await report_on(client, settings, KEYS, "run1")).look.name == "run1"
    with pytest.raises(BrokerMisused, match="this user may not"):
        await ops.cancel("run", ["run1"], "user")
    with pytest.raises(BrokerMisused, match="this user may not"):
        await InferencePool(client, "rs", lease_s=30.0).attach("run1", [Server("unix:/s")])


def commands_of_scripts() -> set[str]:
    """Every command that a script calls, containers with their subcommand."""
    found = set()
    for script in files("pipeline.scripts").iterdir():
        if script.name.endswith(".lua"):
            for name, word in re.findall(r"call\(\s*'([A-Za-z]+)'(?:\s*,\s*'([A-Z]+)')?", script.read_text(encoding="utf-8")):
                found.add(f"{name.upper()}|{word}" if name.upper() in ("XGROUP", "XINFO") else name.upper())
    return found


@pytest.mark.one_server
def test_every_command_that_scripts_call_is_allowed_to_who_runs_scripts(make_server: Callable[..., PrivateServer]) -> None:
    commands = commands_of_scripts()
    assert len(commands) > 30
    with redis.Redis.from_url(make_server().url) as admin:
        for role in roles("rs"):
            tell(admin, "ACL", "SETUSER", role.name, "on", "nopass", *role.rules)
        for user in ("trainer", "worker", "supervisor"):
            exempt = ONLY_OF_WORKERS if user == "trainer" else frozenset()
            denied = [name for name in sorted(commands - exempt) if not may_run(admin, user, name)]
            assert denied == [], f"{user} needs more rules in ops/redis/users.py"


def may_run(admin: redis.Redis, user: str, name: str) -> bool:
    """Asks the server whether a user may run a command on keys of ours, with as many words as it wants."""
    words = name.split("|")
    (facts,) = tell(admin, "COMMAND", "INFO", name.lower()).values()
    key = KEYS.key("s:results:run1")
    answer = tell(admin, "ACL", "DRYRUN", user, *words, *[key] * (abs(facts["arity"]) - len(words)))
    return bool(answer in (b"OK", "OK", True))

"""The drill: a copy of a Redis while jobs run, its loss, and another one in its place (ADR 29, decision 7)."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, aclosing
from pathlib import Path

import pytest

from ops.redis.backup import AOF_FOLDER, INDEX, backup, read_backup, restore
from ops.redis.users import acl_directives, make_passwords, password_file, roles
from pipeline.embedded.server_config import Directive
from pipeline.errors import BrokerError, BrokerMisused, InvalidRequest
from pipeline.keys import Keys
from pipeline.redis_client import ask, command_client
from pipeline.settings import QueueSettings
from pipeline.testing import PrivateServer, ServerKind, wait_until
from tests.integration.pipeline.crew import Crew, HeldWork, passes
from tests.redis_sets import ClusterSet

KEYS = Keys.of_shard("rs", 0)
AOF: tuple[Directive, ...] = (("appendonly", "yes"), ("repl-diskless-sync-delay", "0"))
Start = Callable[[], PrivateServer]


@pytest.fixture
def server(make_server: Callable[..., PrivateServer]) -> PrivateServer:
    """The server that is copied and lost."""
    return make_server(persistence="always", extra=AOF)


@pytest.fixture
def not_started(server_kind: ServerKind) -> Iterator[PrivateServer]:
    """The server that comes in its place; its data directory is there and empty."""
    server = PrivateServer(server_kind, persistence="always", extra=AOF)
    yield server
    if server.is_running:
        server.kill()
    shutil.rmtree(server.folder, ignore_errors=True)


@pytest.fixture
async def crew(server: PrivateServer) -> AsyncIterator[Crew]:
    settings = QueueSettings(redis_url=server.url, lease_s=1.0, retry_backoff_s=0.02)
    async with aclosing(command_client(settings)) as client:
        crew = Crew(settings, client)
        await crew.connect()
        yield crew
        await crew.leave()


async def test_jobs_go_on_in_another_server_from_where_they_were_when_it_was_copied(
    crew: Crew, server: PrivateServer, not_started: PrivateServer, tmp_path: Path
) -> None:
    """Waiting, running and ended ones. What the old server accepted after the copy is what its loss costs; its trainer sends that again."""
    first = await crew.add(8)
    work = HeldWork()
    crew.start_stages(work, slots=2)
    await wait_until(lambda: len(work.running) == 2, "two jobs run")
    backup(crew.settings, tmp_path / "copy")
    later = await crew.add(2, start=8)
    units = crew.units
    await crew.leave()
    server.kill()

    restore(tmp_path / "copy", not_started.folder)
    not_started.start()
    async with aclosing(command_client(crew.settings.model_copy(update={"redis_url": not_started.url}))) as client:
        after = Crew(crew.settings.model_copy(update={"redis_url": not_started.url}), client)
        missing = await after.audit.all_ended("run1", units)
        assert sorted(line.split()[0] for line in missing if line.endswith(" is gone")) == sorted(later)
        after.incarnation = crew.incarnation
        await after.accept(*units)
        after.start_stages(passes)
        results = await after.results(10, timeout_s=40)
        assert sorted(record["job"] for record in results) == sorted(first + later)
        assert await after.audit.all_ended("run1", units) == []
        await after.leave()


async def test_a_copy_is_whole_or_is_none(crew: Crew, not_started: PrivateServer, tmp_path: Path) -> None:
    await crew.add(1)
    copy = tmp_path / "copy"
    made = backup(crew.settings, copy)
    assert read_backup(copy) == made
    assert all((copy / server.file).stat().st_mode & 0o077 == 0 for server in made.servers)
    with pytest.raises(InvalidRequest, match="not empty"):
        backup(crew.settings, copy)

    file = copy / made.servers[0].file
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(InvalidRequest, match="SHA-256 differs"):
        restore(copy, not_started.folder)
    assert not (not_started.folder / AOF_FOLDER).exists()

    (copy / INDEX).unlink()
    with pytest.raises(InvalidRequest, match="was not finished"):
        restore(copy, not_started.folder)


async def test_nothing_is_laid_over_data(crew: Crew, server: PrivateServer, tmp_path: Path) -> None:
    backup(crew.settings, tmp_path / "copy")
    with pytest.raises(InvalidRequest, match="holds data already"):
        restore(tmp_path / "copy", server.folder)


async def test_a_copy_needs_the_user_for_it_and_that_one_may_nothing_else(crew: Crew, server: PrivateServer, tmp_path: Path) -> None:
    for _, *words in acl_directives(roles("rs"), make_passwords(tmp_path, roles("rs"))):
        if words[0] != "default":
            await ask(crew.client, "ACL", "SETUSER", *words)

    def as_user(user: str) -> QueueSettings:
        return crew.settings.model_copy(update={"redis_user": user, "redis_password_file": password_file(tmp_path, user)})

    backup(as_user("replica"), tmp_path / "copy")
    with pytest.raises(BrokerMisused):
        backup(as_user("ops"), tmp_path / "other")
    async with aclosing(command_client(as_user("replica"))) as client:
        with pytest.raises(BrokerMisused):
            await ask(client, "HGETALL", KEYS.meta)


def test_a_server_that_is_not_there_leaves_no_copy(tmp_path: Path) -> None:
    with pytest.raises(BrokerError):
        backup(QueueSettings(redis_url=f"unix://{tmp_path}/nobody"), tmp_path / "copy")
    with pytest.raises(InvalidRequest, match="was not finished"):
        read_backup(tmp_path / "copy")


@pytest.mark.one_server
async def test_of_a_cluster_each_master_is_copied(server_kind: ServerKind, servers: ExitStack, tmp_path: Path) -> None:
    cluster = ClusterSet(server_kind, servers)
    settings = QueueSettings(redis_url=cluster.url, shards=8)
    async with aclosing(command_client(settings)) as client:
        for shard in range(8):
            await ask(client, "SET", Keys.of_shard("rs", shard).key("x"), shard, "EX", 600)

    made = backup(settings, tmp_path / "copy")

    assert [server.slots for server in made.servers] == [((0, 5461),), ((5462, 10922),), ((10923, 16383),)]
    with pytest.raises(InvalidRequest, match="say which, 0 to 2"):
        restore(tmp_path / "copy", tmp_path / "data")
    found = 0
    for number in range(3):
        restore(tmp_path / "copy", tmp_path / f"data{number}", server=number)
        base = next((tmp_path / f"data{number}" / AOF_FOLDER).glob("*.base.rdb")).read_bytes()
        found += sum(Keys.of_shard("rs", shard).key("x").encode() in base for shard in range(8))
    assert found == 8

"""What `doctor` says of a Redis and of the rights of its user, on real servers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ops.doctor import server
from ops.doctor.examine import examine, exit_code
from ops.doctor.finding import Finding, Grade
from ops.redis.users import roles
from pipeline.redis_client import AsyncClient, ask, command_client
from pipeline.settings import QueueSettings
from pipeline.testing import PrivateServer
from tests.secret_words import a_secret

pytestmark = pytest.mark.one_server
MakeServer = Callable[..., PrivateServer]


async def of_rights(settings: QueueSettings) -> Finding:
    client = command_client(settings)
    try:
        (finding,) = [finding async for finding in server.rights(client, settings)]
    finally:
        await client.aclose()
    return finding


async def a_user(admin: AsyncClient, settings: QueueSettings, folder: Path, name: str, *rules: str) -> QueueSettings:
    word = a_secret("doctor")
    await ask(admin, "ACL SETUSER", name, "reset", "on", f">{word}", *rules)
    file = folder / f"{name}.password"
    file.write_text(f"{word}\n")
    return settings.model_copy(update={"redis_user": name, "redis_password_file": file})


async def test_a_server_that_may_lose_what_it_accepted_is_said(make_server: MakeServer) -> None:
    settings = QueueSettings(redis_url=make_server(extra=(("maxmemory-policy", "allkeys-lru"),)).url)
    client = command_client(settings)
    found = {finding.check: finding async for finding in server.version_and_settings(client)}
    await client.aclose()

    assert {check for check, finding in found.items() if finding.grade is Grade.FAIL} == {"redis.noeviction"}
    assert {check for check, finding in found.items() if finding.grade is Grade.WARN} == {"redis.memory", "redis.aof"}
    assert all(finding.do for finding in found.values() if finding.grade is not Grade.OK)


async def test_the_users_that_are_made_for_each_role_have_its_rights_and_a_narrower_one_has_not(
    make_server: MakeServer, tmp_path: Path
) -> None:
    settings = QueueSettings(redis_url=make_server().url)
    admin = command_client(settings)
    found = {}
    for role in roles("rs"):
        found[role.name] = (await of_rights(await a_user(admin, settings, tmp_path, role.name, *role.rules))).grade
    foreign = {name: found.pop(name) for name in [*found] if name not in server.QUEUE_USERS}
    worker = next(role for role in roles("rs") if role.name == "worker")
    narrow = await of_rights(await a_user(admin, settings, tmp_path, "worker", *worker.rules, "-xreadgroup", "-@scripting"))
    keys_before = await ask(admin, "DBSIZE")
    await admin.aclose()

    assert found == dict.fromkeys(server.QUEUE_USERS, Grade.OK)
    assert set(foreign.values()) <= {Grade.FAIL}, foreign
    assert narrow.grade is Grade.FAIL
    assert "may not EVALSHA, XREADGROUP on keys" in narrow.what
    assert keys_before == 0, "nothing was changed"


async def test_what_was_made_with_other_shards_is_said(settings: QueueSettings, client: AsyncClient) -> None:
    from pipeline.layout import check_layout

    await check_layout(client, settings)
    (same,) = [finding async for finding in server.layout(client, settings)]
    (other,) = [finding async for finding in server.layout(client, settings.model_copy(update={"shards": 2}))]

    assert (same.grade, other.grade) == (Grade.OK, Grade.FAIL)
    assert "ROLLSTREAM_SHARDS=1" in other.do


@pytest.mark.slow
async def test_without_redis_the_machine_is_examined_all_the_same(make_server: MakeServer) -> None:
    gone = make_server()
    gone.kill()

    found = await examine(QueueSettings(redis_url=gone.url), config=None, key_file=None)

    assert exit_code(found) == 3
    assert {"redis", "versions.python", "limits.files", "folders.scratch"} <= {finding.check for finding in found}
    assert any(finding.check.startswith("sandboxes") for finding in found)

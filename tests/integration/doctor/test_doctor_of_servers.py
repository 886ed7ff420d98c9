"""What `doctor` says of the inference servers of the runs, asked from here."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.doctor import serving
from ops.doctor.finding import Grade
from pipeline.inference_pool import InferencePool
from pipeline.inference_pool.records import Server
from pipeline.redis_client import AsyncClient
from pipeline.scripts import Scripts
from pipeline.settings import QueueSettings
from workers.llm.scripted import ScriptedServer, ServerOptions

pytestmark = pytest.mark.one_server


async def test_each_server_is_asked_for_wire_version_and_logprobs(
    tmp_path: Path, settings: QueueSettings, client: AsyncClient, scripts: Scripts
) -> None:
    await scripts.connect_run("run1", nonce="t", ttl_s=3600)
    async with ScriptedServer(ServerOptions(), socket_path=tmp_path / "s") as server:
        await InferencePool(client, settings.namespace, lease_s=30.0).attach("run1", [Server(server.url), Server("http://127.0.0.1:1")])
        found = [finding async for finding in serving.servers(client, settings, None)]

    said = {finding.check.removeprefix("servers."): finding for finding in found}
    assert said["http://127.0.0.1:1"].grade is Grade.FAIL
    assert "rollstream llm list --run run1" in said["http://127.0.0.1:1"].do
    there = said[server.url]
    assert there.grade in (Grade.OK, Grade.NOTE)
    assert "wire generate" in there.what
    assert "logprobs" in there.what


async def test_no_server_at_all_is_a_note(settings: QueueSettings, client: AsyncClient) -> None:
    (finding,) = [finding async for finding in serving.servers(client, settings, None)]

    assert finding.grade is Grade.NOTE

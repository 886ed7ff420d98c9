"""A password changes while processes run: the file is read at each new connection, and nothing is restarted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from pipeline.redis_client import ask, command_client, reader_client, thread_client
from pipeline.settings import QueueSettings
from pipeline.testing import PrivateServer
from tests.integration.pipeline.crew import Crew, passes
from tests.secret_words import a_secret


@pytest.mark.one_server
async def test_jobs_run_through_a_change_of_the_password(make_server: Callable[..., PrivateServer], tmp_path: Path) -> None:
    """As the how-to says: the new one beside the old, the file, the old one away. Then every connection is cut."""
    server, file = make_server(), tmp_path / "worker.password"
    first, second = a_secret("first"), a_secret("second")
    file.write_text(f"{first}\n")
    async with aclosing(command_client(QueueSettings(redis_url=server.url))) as admin:
        await ask(admin, "ACL", "SETUSER", "worker", "on", f">{first}", "~*", "&*", "+@all")
        settings = QueueSettings(redis_url=server.url, redis_user="worker", redis_password_file=file, lease_s=2.0)
        async with (
            aclosing(command_client(settings)) as client,
            aclosing(reader_client(settings, block_s=0.1)) as reader,
        ):
            crew = Crew(settings, client)
            await crew.connect()
            await crew.add(4)
            crew.start_stages(passes)
            await crew.results(4, timeout_s=40)
            assert await ask(reader, "PING") == b"PONG"

            await ask(admin, "ACL", "SETUSER", "worker", f">{second}")
            file.write_text(f"{second}\n")
            await ask(admin, "ACL", "SETUSER", "worker", f"<{first}")
            await ask(admin, "CLIENT", "KILL", "USER", "worker")

            await crew.add(4, start=4)
            await crew.results(8, timeout_s=40)
            assert await crew.audit.all_ended("run1", crew.units) == []
            assert await ask(reader, "PING") == b"PONG"
            with thread_client(settings) as thread:
                assert thread.ping()
            await crew.leave()

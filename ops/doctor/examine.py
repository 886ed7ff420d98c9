"""All checks, side by side. One that raises is a finding; none is waited for longer than `PATIENCE_S`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

from ops.doctor import machine, server, serving
from ops.doctor.finding import Finding, Grade, fail, note
from ops.status.look import explained
from ops.status.reach import reached, settings_of_server
from ops.status.trouble import Unreached
from ops.status.verdict import one_line
from pipeline.errors import RollstreamError
from pipeline.folders import Folders
from pipeline.logs import redact_text
from pipeline.redis_address import take_out_credentials
from pipeline.redis_client import AsyncClient
from pipeline.settings import QueueSettings
from workers.sandbox.service.settings import SandboxSettings

PATIENCE_S = 5.0
SANDBOX_PATIENCE_S = 60.0
"""A whole sandbox of each backend is made."""
EXIT_UNREACHED = 3
Check = Callable[[], Iterable[Finding]] | Callable[[], AsyncIterator[Finding]]


def exit_code(findings: Iterable[Finding]) -> int:
    """0 = nothing is wrong, 1 = something will hurt, 2 = something does not work, 3 = Redis is not reached."""
    found = list(findings)
    if any(finding.check == "redis" and finding.grade is Grade.FAIL for finding in found):
        return EXIT_UNREACHED
    grades = {finding.grade for finding in found}
    return 2 if Grade.FAIL in grades else 1 if Grade.WARN in grades else 0


async def examine(settings: QueueSettings, *, config: Path | None, key_file: Path | None) -> list[Finding]:
    """Everything that can be looked at from here."""
    here: dict[str, Check] = {
        "versions": machine.versions,
        "limits": machine.own_limits,
        "kernel": machine.kernel,
        "folders": lambda: machine.folders(Folders.from_environment()),
        "network": lambda: machine.network(os.environ),
    }
    boxes = _guarded("sandboxes", lambda: serving.sandboxes(SandboxSettings.load(config)), SANDBOX_PATIENCE_S)
    machine_findings = await asyncio.gather(*(_guarded(name, check) for name, check in here.items()), boxes, _redis(settings, key_file))
    return [finding for part in machine_findings for finding in part]


async def _redis(settings: QueueSettings, key_file: Path | None) -> list[Finding]:
    told = list[Finding]()
    if take_out_credentials(settings.redis_url).password:
        what = "there is a password in redis_url, where environments are dumped and files are shown"
        told.append(note("redis.address", what, "put it into a file of mode 600, and name that in redis_password_file"))
    try:
        found = settings_of_server(settings)
        async with reached(found) as client:
            return [*told, *(finding for part in await asyncio.gather(*_of_server(client, found, key_file)) for finding in part)]
    except Unreached as error:
        trouble = (await explained(error, settings)).trouble
        do = "mend what it says, or ROLLSTREAM_REDIS_URL and its password file: rollstream config show --origin"
        return [*told, fail("redis", f"{trouble.cause}: {one_line(trouble.what)}", do)]


def _of_server(client: AsyncClient, settings: QueueSettings, key_file: Path | None) -> list[asyncio.Task[list[Finding]]]:
    checks: dict[str, Check] = {
        "redis.settings": lambda: server.version_and_settings(client),
        "clock": lambda: server.clock(client),
        "redis.layout": lambda: server.layout(client, settings),
        "redis.set_up": lambda: server.set_up(client, settings),
        "redis.rights": lambda: server.rights(client, settings),
        "servers": lambda: serving.servers(client, settings, key_file),
    }
    return [asyncio.ensure_future(_guarded(name, check)) for name, check in checks.items()]


async def _guarded(name: str, check: Check, patience_s: float = PATIENCE_S) -> list[Finding]:
    found: list[Finding] = []
    try:
        async with asyncio.timeout(patience_s):
            answer = check()
            if isinstance(answer, AsyncIterator):
                found += [finding async for finding in answer]
            else:
                found += await asyncio.to_thread(list, answer)
    except TimeoutError:
        found.append(fail(name, f"no answer within {patience_s:g} s", "try again when the machine is less busy"))
    except (RollstreamError, OSError, ValueError) as error:
        found.append(fail(name, redact_text(f"{type(error).__name__}: {error}"), "mend what it says"))
    return found

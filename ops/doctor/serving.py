"""What this node can serve: sandboxes by each backend, and the inference servers of the runs as they are reached from here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from ops.doctor.finding import Finding, fail, note, ok, warn
from pipeline.engines.errors import ModelError
from pipeline.errors import RollstreamError
from pipeline.inference_pool import InferencePool
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask
from pipeline.settings import QueueSettings
from workers.llm.backend import Caps
from workers.llm.connect import connect_backend
from workers.sandbox.choice import choose_backend
from workers.sandbox.service.settings import SandboxSettings

MOST_SERVERS = 32


async def sandboxes(settings: SandboxSettings) -> AsyncIterator[Finding]:
    """Makes, enters and ends a sandbox of each backend."""
    do = "docs/how-to/sandboxes.md says what each backend needs"
    try:
        choice = await choose_backend(
            settings.backend,
            scratch_dir=settings.scratch,
            run_dir=settings.run,
            accept_untrusted=settings.accept_untrusted,
            every=True,
            network=settings.network,
            entry=settings.entry,
        )
    except (RollstreamError, OSError) as error:
        yield fail("sandboxes", str(error), do)
        return
    for name, probe in choice.probes.items():
        if probe.works:
            yield ok(f"sandboxes.{name}", f"works: {', '.join(sorted(word.value for word in probe.isolation)) or 'no class'}")
        else:
            yield note(f"sandboxes.{name}", f"does not work here: {probe.why}", do)
    if choice.backend is None:
        yield warn("sandboxes", f"none of what sandbox.backend = {settings.backend} allows works here: tasks that need one get no node", do)


async def servers(client: AsyncClient, settings: QueueSettings, key_file: Path | None) -> AsyncIterator[Finding]:
    """Asks each server that a run has."""
    found: dict[str, tuple[str, str]] = {}
    for shard in range(settings.shards):
        for name in await ask(client, "ZRANGE", Keys.of_shard(settings.namespace, shard).runs, 0, -1):
            state = await InferencePool(client, settings.namespace, lease_s=1.0).state(name.decode())
            found |= {server.url: (state.run, server.model) for server in state.servers}
    if not found:
        yield note("servers", "no run has an inference server", "rollstream llm add --run RUN URL")
    try:
        key = await asyncio.to_thread(_key_in, key_file)
    except OSError as error:
        yield fail("servers.key", f"{key_file}: {error.strerror}", "mend worker.model_key_file")
        return
    asked = list(found.items())[:MOST_SERVERS]
    for finding in await asyncio.gather(*(_server(url, run, model, key) for url, (run, model) in asked)):
        yield finding


def _key_in(file: Path | None) -> str:
    return file.read_text(encoding="utf-8").strip() if file is not None else ""


async def _server(url: str, run: str, model: str, key: str) -> Finding:
    check = f"servers.{url}"
    try:
        async with asyncio.timeout(4.0), connect_backend(url, model=model, api_key=key) as backend:
            caps = await backend.probe()
    except (ModelError, OSError, TimeoutError) as error:
        return fail(check, f"of run {run}: {str(error) or 'no answer within 4 s'}", f"rollstream llm list --run {run}")
    return _of_caps(check, run, caps)


def _of_caps(check: str, run: str, caps: Caps) -> Finding:
    what = (
        f"of run {run}: {caps.kind} {caps.server_version}, wire {caps.endpoint}, model {caps.model}, logprobs {caps.logprobs_mode}, "
        f"{'says' if caps.reports_version else 'does not say'} its weights' version"
    )
    if caps.logprobs_mode == "raw":
        return note(check, what, "raw logprobs fit a temperature of 1 alone: start vLLM with --logprobs-mode processed_logprobs")
    return ok(check, what)

"""The inference servers of each run, and which job calls which.

The heap is in Redis, under a tag of its own (`{<namespace>:pool}`), so that all workers of a fleet see one load:

    servers:<run>           hash   url -> `<state> <model> <version>`; state is `up` or `draining` · trainer, ops; a week from each call
    as:<run>:<url>          zset   <job>:<attempt> -> when the assignment runs out, ms · RUN workers; gone two leases after the last

Invariants:
  1. A server holds one run's policy: a job is only ever given a server that its own run attached.
  2. Load is the number of live leases. A process that dies takes its load with it after one lease; nothing drifts.
  3. A job keeps its server while that is up (its prefix cache is there); the assignment is by (job, attempt), so asking twice changes
     nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts.runner import Arg, ScriptRunner


@dataclass(frozen=True, slots=True)
class Server:
    """One inference server of a run."""

    url: str
    model: str
    version: str
    """Label of the weights it holds, `<incarnation>.<number>`; empty while unknown."""
    state: str = "up"


@dataclass(frozen=True, slots=True)
class Assignment:
    """A job's lease on a server."""

    run: str
    server: str
    version: str
    holder: str


class InferencePool:
    """The pool as workers and trainers see it."""

    def __init__(self, client: AsyncClient, namespace: str, *, lease_s: float) -> None:
        self._client = client
        self._keys = Keys(f"{{{namespace}:pool}}")
        self._script = ScriptRunner(client, self._keys)
        self._lease_ms = int(lease_s * 1000)

    async def attach(self, run: str, servers: Sequence[Server], *, ttl_s: float) -> None:
        """Adds servers to a run, or changes what is said of them."""
        words: list[Arg] = []
        for server in servers:
            words += [server.url, f"{server.state} {server.model} {server.version}"]
        await self._script("pool_attach", run, int(ttl_s * 1000), *words)

    async def detach(self, run: str, urls: Sequence[str]) -> None:
        """Takes servers from a run; running calls end by themselves."""
        await ask(self._client, "HDEL", self._keys.key("servers", run), *urls)

    async def servers(self, run: str) -> list[Server]:
        """The servers of a run."""
        found = await ask(self._client, "HGETALL", self._keys.key("servers", run))
        servers = []
        for url, line in found.items():
            state, model, version = line.decode().split(" ", 2)
            servers.append(Server(url.decode(), model, version, state))
        return sorted(servers, key=lambda server: server.url)

    async def load(self, run: str) -> dict[str, int]:
        """Live assignments a server."""
        return {
            server.url: int(await ask(self._client, "ZCARD", self._keys.key("as", run, server.url))) for server in await self.servers(run)
        }

    async def assign(
        self, run: str, model: str, job: str, attempt: int, *, avoid: Sequence[str] = (), pin: int | None = None
    ) -> Assignment | None:
        """The server this attempt calls; None when no server of that run and model is up.

        Args:
            avoid: servers that just failed. The least loaded one is often the one that everybody has fled from.
            pin: number of the one server it may have, among those attached and sorted by address (modulo their count).
        """
        holder = f"{job}:{attempt}"
        reply = await self._script("pool_assign", run, model, holder, self._lease_ms, "" if pin is None else pin, *avoid)
        if not reply:
            return None
        return Assignment(run, _text(reply[0]), _text(reply[1]), holder)

    async def renew(self, assignments: Sequence[Assignment]) -> list[bool]:
        """Renews leases; False for each that ran out or whose server is not up."""
        args: list[Arg] = [self._lease_ms]
        for a in assignments:
            args += [a.run, a.server, a.holder]
        return [word == 1 for word in await self._script("pool_renew", *args)]

    async def release(self, *assignments: Assignment) -> None:
        """Ends assignments; does nothing to those that had ended."""
        by_run: dict[str, list[Arg]] = {}
        for a in assignments:
            by_run.setdefault(a.run, []).extend((a.server, a.holder))
        for run, words in by_run.items():
            await self._script("pool_release", run, *words)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)

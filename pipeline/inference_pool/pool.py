"""The pool as workers, trainers and people call it. Every change is one script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, get_args

from pipeline.inference_pool.labels import AllowedLabels
from pipeline.inference_pool.records import (
    Assignment,
    BeginRefusal,
    Begun,
    Call,
    EndedCall,
    NoServer,
    PoolState,
    Server,
    ServerTaken,
    Sign,
    Wanted,
)
from pipeline.inference_pool.state import read_state
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask, redis_now_ms
from pipeline.scripts.replies import text
from pipeline.scripts.runner import Arg, ScriptRunner

LAX = 1250
"""Chosen by `rollstream bench routing`."""
MOST_WHY = 200
"""Characters of an error that are kept for people."""
MAX_BATCH = 64
"""Jobs or calls a script."""
_REFUSALS: tuple[str, ...] = get_args(BeginRefusal)


class InferencePool:
    """The inference servers of all runs of a namespace.

    Args:
        lease_s: of assignments; load and calls in flight of a process that died go with it.
        lax: room for members of a group at a server that has some: thousandths of the mean load, and one more.
    """

    def __init__(self, client: AsyncClient, namespace: str, *, lease_s: float, lax: int = LAX) -> None:
        self._client = client
        self._keys = Keys.of_pool(namespace)
        self._script = ScriptRunner(client, self._keys)
        self._lease_ms = int(lease_s * 1000)
        self._lax = lax

    # ---- servers

    async def attach(self, run: str, servers: Sequence[Server], *, after_update: bool = False) -> int:
        """Adds servers to a run, or changes what is said of them; one that drains is up again.

        Args:
            after_update: no server is called before the run's first weight update.

        Returns:
            How many are new.

        Raises:
            ServerTaken: an address holds another run's policy; none was added.
        """
        words: list[Arg] = []
        for server in servers:
            words += [server.url, server.model, server.control, int(server.shared), server.version]
        reply = await self._script("pool_attach", run, int(after_update), *words)
        if reply[0] == b"taken":
            raise ServerTaken(text(reply[1]), run, text(reply[2]), is_shared=reply[3] == b"shared")
        return int(cast(int, reply[1]))

    async def detach(self, run: str, urls: Sequence[str]) -> list[str]:
        """Takes servers from a run and answers which it had; running calls end by themselves, their jobs go elsewhere."""
        return [text(url) for url in await self._script("pool_detach", run, *urls)]

    async def drain(self, run: str, urls: Sequence[str]) -> list[str]:
        """Servers get no new jobs and keep those that they have; answers which of them the run has."""
        return [text(url) for url in await self._script("pool_drain", run, "draining", *urls)]

    async def state(self, run: str) -> PoolState:
        """All that is known of a run: its servers, its pause, what it allows."""
        return await read_state(self._client, self._keys, run)

    async def load(self, run: str) -> dict[str, int]:
        """Live assignments a server."""
        return {server.url: server.jobs for server in (await self.state(run)).servers}

    async def sign(self, run: str) -> Sign:
        """Whether something changed that calls of the run may wait for. Cheap: asked again and again while somebody waits."""
        now_ms = await redis_now_ms(self._client)
        fields = ("rev", "pause", "pause.until", "pause.mode", "pause.why")
        rev, pause, until_ms, mode, why = await ask(self._client, "HMGET", self._keys.pool_run(run), *fields)
        is_paused = pause is not None and int(until_ms or 0) > now_ms
        return Sign(int(rev or 0), is_paused, is_paused and mode != b"keep" and why != b"away")

    async def silent_s(self, run: str, urls: Sequence[str]) -> dict[str, float]:
        """For how many seconds those servers of `urls` that are down have answered no look."""
        now_ms = await redis_now_ms(self._client)
        found: dict[str, float] = {}
        for url in urls:
            alive, failing_ms = await ask(self._client, "HMGET", self._keys.pool_server(run, url), "alive", "failing")
            if alive == b"0" and failing_ms is not None:
                found[url] = (now_ms - int(failing_ms)) / 1000
        return found

    # ---- assignments

    async def assign(
        self, run: str, model: str, job: str, attempt: int, *, group: str = "", avoid: Sequence[str] = (), pin: int | None = None
    ) -> Assignment | None:
        """The server that this attempt calls; None when there is none for it. See `assign_all`."""
        (found,) = await self.assign_all(run, [Wanted(job=job, attempt=attempt, model=model, group=group, pin=pin)], avoid=avoid)
        return found if isinstance(found, Assignment) else None

    async def assign_all(self, run: str, wanted: Sequence[Wanted], *, avoid: Sequence[str] = ()) -> list[Assignment | NoServer]:
        """The servers that attempts of a run call, or why there is none. Asking again changes nothing.

        Args:
            wanted: at most `MAX_BATCH`.
            avoid: servers that just failed the asker. The least loaded one is often the one that everybody has fled from.
        """
        words: list[Arg] = []
        for one in wanted:
            words += [one.holder, one.model, one.group, "" if one.pin is None else one.pin]
        reply = await self._script("pool_assign", run, self._lease_ms, self._lax, len(avoid), *avoid, *words)
        pairs = zip(wanted, reply[::2], reply[1::2], strict=True)
        return [Assignment(run, text(url), text(word), one.holder) if url else cast(NoServer, text(word)) for one, url, word in pairs]

    async def renew(self, assignments: Sequence[Assignment]) -> list[bool]:
        """Renews leases; False for each that ran out."""
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

    # ---- calls

    async def begin_calls(self, run: str, calls: Sequence[Call]) -> list[Begun | BeginRefusal]:
        """Calls of one run are to go out: each may, or why not."""
        words: list[Arg] = []
        for one in calls:
            words += [one.assignment.server, one.assignment.holder, one.id]
        lowest, highest, *reply = await self._script("pool_begin_call", run, self._lease_ms, *words)
        allowed = AllowedLabels(text(lowest), text(highest))
        begun: list[Begun | BeginRefusal] = []
        for word, version in zip(map(text, reply[::2]), map(text, reply[1::2]), strict=True):
            if word in _REFUSALS:
                begun.append(cast(BeginRefusal, word))
            else:
                begun.append(Begun(version, AllowedLabels() if word == "shared" else allowed))
        return begun

    async def end_calls(self, run: str, ended: Sequence[EndedCall]) -> AllowedLabels:
        """Calls of one run have ended, whatever came; answers what the run allows now."""
        words: list[Arg] = []
        for one in ended:
            a = one.call.assignment
            words += [a.server, a.holder, one.call.id, int(one.rerouted), one.lost_tokens]
        lowest, highest = await self._script("pool_end_call", run, *words)
        return AllowedLabels(text(lowest), text(highest))

    async def report_refused(self, run: str, url: str, why: str) -> None:
        """A worker could not connect: a keeper looks at once, and needs one failed look to take the server for down."""
        await self._script("pool_report", run, url, "refused", why[:MOST_WHY], "")

    async def report_label(self, run: str, url: str, label: str, began: AllowedLabels) -> None:
        """An answer bore a label that the run did not allow: its server is unsynced from now on."""
        await self._script("pool_report", run, url, "label", label, began.lowest)

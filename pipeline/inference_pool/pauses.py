"""The pause of a run, as its trainer takes, holds and ends it (docs/adr/0013-weight-updates.md). One typed function a script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.errors import RollstreamError, StaleIncarnation
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient
from pipeline.scripts.replies import text, whole
from pipeline.scripts.runner import Arg, ScriptRunner

PauseWhy = Literal["update", "leaving", "away"]
"""`leaving`: engines are about to be away, and calls in flight there end; keepers still look."""
STOPPED_A_CALL = 64
"""Servers a call of `pool_stop_calls`."""


class PauseHeld(RollstreamError):
    """Another update of the same trainer holds the pause of the run.

    Args:
        held_s: since when; None = that was not asked.
        left_s: until its lease is over.
        incarnation: of its holder; 0 = the same as of who asks.
    """

    def __init__(self, run: str, why: str, held_s: float | None = None, *, left_s: float = 0.0, incarnation: int = 0) -> None:
        what = "its engines are away" if why in ("leaving", "away") else "its weights are being updated"
        since = "" if held_s is None else f" since {held_s:.1f} s"
        super().__init__(f"run {run!r} is paused{since}, {what}: one at a time; end that first")
        self.run = run
        self.why = why
        self.left_s = left_s
        self.incarnation = incarnation


class PauseLost(RollstreamError):
    """The lease on the pause ran out, or another trainer took it: nothing may be labelled any more."""

    def __init__(self, run: str, holder: str) -> None:
        who = f"{holder} has it now" if holder else "nobody has it, and calls may have begun since"
        super().__init__(
            f"the pause of run {run!r} is lost: {who}. Servers that this update changed stay unsynced until the next one loads them"
        )
        self.run = run
        self.holder = holder


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedServer:
    """A server of a run that is paused."""

    url: str
    model: str
    kind: str
    control: str
    is_draining: bool
    label: str
    started: str


class PoolPauses:
    """These scripts on the pool."""

    def __init__(self, client: AsyncClient, namespace: str) -> None:
        self._script = ScriptRunner(client, Keys.of_pool(namespace))

    async def take(
        self, run: str, incarnation: int, holder: str, *, why: PauseWhy, mode: str, to: str, lease_s: float
    ) -> list[PausedServer]:
        """From now on no call of the run begins. The same holder again may say what else it is for.

        Returns:
            The servers that hold its policy.

        Raises:
            PauseHeld: another holder has it. That of an earlier incarnation renews it no more, and has it until its lease is over.
            StaleIncarnation
        """
        reply = await self._script("pool_pause", run, incarnation, holder, why, mode, to, int(lease_s * 1000))
        if reply[0] == b"stale":
            raise StaleIncarnation(run, incarnation, text(reply[1]))
        if reply[0] == b"held":
            held_s, left_s, by = whole(reply[2]) / 1000, whole(reply[3]) / 1000, whole(reply[4])
            raise PauseHeld(run, text(reply[1]), held_s, left_s=left_s, incarnation=by)
        words = list(map(text, reply[1:]))
        return [
            PausedServer(url=url, model=model, kind=kind, control=control, is_draining=state == "draining", label=label, started=started)
            for url, model, kind, control, state, label, started in zip(*(words[at::7] for at in range(7)), strict=True)
        ]

    async def hold(
        self, run: str, holder: str, labels: Mapping[str, str], *, lease_s: float, starts: Mapping[str, str] | None = None
    ) -> None:
        """Renews the lease, and says which labels servers were given.

        Args:
            starts: names the start of each server that has its label, where that says so; another start is not believed with it.

        Raises:
            PauseLost
        """
        reply = await self._script("pool_hold", run, holder, int(lease_s * 1000), *_words(labels, starts or {}))
        if reply[0] != b"ok":
            raise PauseLost(run, text(reply[1]))

    async def resume(
        self,
        run: str,
        holder: str,
        done: str,
        *,
        label: str = "",
        labels: Mapping[str, str] | None = None,
        starts: Mapping[str, str] | None = None,
        stays: bool = False,
    ) -> None:
        """Ends the pause, and with it what it was for. Repeating it with the same `done` changes nothing.

        Args:
            done: names what is done.
            label: what the run allows from now on; empty = as it is.
            labels: of its servers.
            starts: see `hold`.
            stays: the pause goes on for what else it is for.

        Raises:
            PauseLost
        """
        reply = await self._script("pool_resume", run, holder, done, label, int(stays), *_words(labels or {}, starts or {}))
        if reply[0] == b"lost":
            raise PauseLost(run, text(reply[1]))

    async def stop_calls(self, run: str, urls: Sequence[str], *, abort: bool) -> dict[str, tuple[int, int]]:
        """By server: calls in flight, and aborts that it has not taken yet. With `abort` keepers are asked to end those in flight."""
        found: dict[str, tuple[int, int]] = {}
        for at in range(0, len(urls), STOPPED_A_CALL):
            part = urls[at : at + STOPPED_A_CALL]
            reply = [whole(word) for word in await self._script("pool_stop_calls", run, int(abort), *part)]
            found.update(zip(part, zip(reply[::2], reply[1::2], strict=True), strict=True))
        return found


def _words(labels: Mapping[str, str], starts: Mapping[str, str]) -> list[Arg]:
    return [word for url, label in labels.items() for word in (url, label, starts.get(url, ""))]

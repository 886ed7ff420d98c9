"""Weight updates and absences of one client: one at a time, and an update inside an absence as part of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Literal

from pipeline.errors import InvalidRequest
from pipeline.inference_pool.pauses import PauseHeld
from trainer_client.engines_away import AWAY_MODES, AwayMode, away
from trainer_client.run_pause import RunPause
from trainer_client.servers_to_load import ServersToLoad
from trainer_client.weight_update import MODES, UpdateMode, update_weights


class Updates:
    """What `Run.weight_update` and `Run.engines_away` share.

    Args:
        new_pause: makes a pause of the run that is not taken yet.
        check_number: raises when the run cannot have this version now.
        set_version: makes it the run's.
        drop: takes servers from the run.
        api_key: of the engines.
    """

    def __init__(
        self,
        run: str,
        *,
        new_pause: Callable[[], RunPause],
        check_number: Callable[[int], None],
        set_version: Callable[[int], Awaitable[None]],
        drop: Callable[[Sequence[str]], Awaitable[object]],
        api_key: Callable[[], str],
    ) -> None:
        self._run = run
        self._new_pause = new_pause
        self._check_number = check_number
        self._set_version = set_version
        self._drop = drop
        self._api_key = api_key
        self._away: RunPause | None = None
        """The pause of engines that are away now."""
        self._busy: Literal["", "update", "away"] = ""

    def update(self, number: int, mode: UpdateMode) -> AbstractAsyncContextManager[ServersToLoad]:
        """See `Run.weight_update`."""
        if mode not in MODES:
            raise InvalidRequest(f"expected {', '.join(MODES)}, got {mode!r}", field="mode")
        return self._updating(number, mode)

    def leave(self, mode: AwayMode, *, weights_kept: bool) -> AbstractAsyncContextManager[None]:
        """See `Run.engines_away`."""
        if mode not in AWAY_MODES:
            raise InvalidRequest(f"expected {' or '.join(AWAY_MODES)}, got {mode!r}", field="mode")
        return self._leaving(mode, weights_kept)

    @asynccontextmanager
    async def _updating(self, number: int, mode: UpdateMode) -> AsyncIterator[ServersToLoad]:
        self._check_number(number)
        if self._busy and (self._busy == "update" or self._away is None):
            raise PauseHeld(self._run, self._busy)
        before, self._busy = self._busy, "update"
        try:
            async with update_weights(
                self._away or self._new_pause(),
                number=number,
                mode=mode,
                api_key=self._api_key(),
                is_inside=self._away is not None,
                set_version=self._set_version,
                drop=self._drop,
            ) as servers:
                yield servers
        finally:
            self._busy = before

    @asynccontextmanager
    async def _leaving(self, mode: AwayMode, weights_kept: bool) -> AsyncIterator[None]:
        if self._busy:
            raise PauseHeld(self._run, self._busy)
        self._busy, pause = "away", self._new_pause()
        try:
            async with away(pause, mode=mode, weights_kept=weights_kept, api_key=self._api_key()):
                self._away = pause
                try:
                    yield
                finally:
                    self._away = None
        finally:
            self._busy = ""

"""What is asked of an engine beside tokens: stop and go on, which weights it holds, how busy it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from pipeline.engines.errors import ModelError

EngineKind = Literal["vllm", "sglang"]
PauseMode = Literal["keep", "abort", "wait"]
"""`keep`: calls in flight freeze; `abort`: they return what they have; `wait`: they finish first."""
HEALTH_TIMEOUT_S = 5.0
"""For a look at a server whose kind is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """One look at a server."""

    alive: bool
    paused: bool = False
    tells_pause: bool = True
    """Whether it says that it is paused; where it does not, `paused` is False."""
    version: str = ""
    """Label of its weights; empty when it does not say."""
    running: int = 0
    waiting: int = 0
    kv_used: float = -1.0
    """Share of the KV cache in use, 0 to 1; -1 = it does not say."""
    started: str = ""
    """Names this start of the server: another one after a restart. Empty when it does not say."""
    kind: EngineKind | Literal[""] = ""
    """Which server it is; empty when that is not known."""
    detail: str = ""
    """Why it is not alive."""


class EngineControl(Protocol):
    """An engine's control. All calls raise `errors.ModelError` and nothing else, `CancelledError` aside."""

    async def pause(self, mode: PauseMode) -> None:
        """Stop sampling. With `keep` and `wait` no token is lost. The prefix cache is cleared.

        Raises:
            Unsupported: the server has no pause.
        """
        ...

    async def resume(self) -> None:
        """Sample again."""
        ...

    async def set_version(self, version: str) -> bool:
        """Label the weights that are loaded now; False where the server keeps no label."""
        ...

    async def version(self) -> str:
        """The label; empty when the server does not report one."""
        ...

    async def reset_cache(self) -> bool:
        """Forget cached prefixes; False when running calls hold them."""
        ...

    async def abort(self, names: Sequence[str]) -> bool:
        """End calls by the names that their requests gave them; False on a server that has no route for it.

        It needs no token sampled, so it works on a server of which nothing is known and whose engine stands. One that has no such call says
        yes, too.
        """
        ...

    async def health(self) -> Health:
        """One look; an unreachable server is an answer, not an error."""
        ...


async def looked(look: Awaitable[Health], *, kind: EngineKind | Literal[""], within_s: float) -> Health:
    """A look whose end is an answer, whatever it is: also an error, and no answer in time."""
    try:
        async with asyncio.timeout(within_s):
            return await look
    except TimeoutError:
        return Health(alive=False, kind=kind, detail=f"no answer within {within_s:g} s")
    except ModelError as error:
        return Health(alive=False, kind=kind, detail=str(error))

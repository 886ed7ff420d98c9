"""An environment of `verifiers` (0.1), turned inside out: it asks a model; what it asks is the observation, what it is told the action.

Its own `rollout` runs, with a client of ours in the place of a server: so single turns, several turns, their stop conditions and whatever
an environment overrides are its own. When it ends, its rubric scores, and that is the reward of the last step. The seed is the row of its
data set.

Refused, since it could not be shown as one dialogue that only grows, or not judged alone: tools, prompts with several user messages or
with images, prompts that are not the one before and what was said on it, rewards that compare the members of a group.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from workers.graders.gym.refusals import BadWorld, NotInstalled

Info = dict[str, Any]  # as of `reset` and `step`
ASKED_OF = "the policy"


class VerifiersEnv:
    """`reset` and `step` of one that `verifiers.load_environment` makes.

    Raises:
        BadWorld, NotInstalled
    """

    def __init__(self, environment: str, options: Mapping[str, Any]) -> None:
        # `datasets` makes an empty folder; Python would look for a place by writing a file, which this process may not
        tempfile.tempdir = tempfile.tempdir or os.environ.get("TMPDIR") or "/tmp"
        try:
            self._library: Any = importlib.import_module("verifiers")
        except ModuleNotFoundError as missing:
            raise NotInstalled(f"verifiers environments need the package {missing.name}") from missing
        if not hasattr(self._library, "load_environment"):
            version = getattr(self._library, "__version__", "this version")
            raise BadWorld(f"verifiers {version} has no load_environment; version 0.1 has")
        self._env: Any = self._library.load_environment(environment, **options)
        if self._env.tool_defs or isinstance(self._env, self._library.ToolEnv):
            raise BadWorld(f"{environment} has tools of its own, which are not served")
        if self._env.requires_group_rollouts:
            raise BadWorld(f"{environment} has rewards that compare the members of a group")
        self._loop = asyncio.new_event_loop()
        self._rollout: asyncio.Task[Any] | None = None
        self._asked: asyncio.Queue[Sequence[Any]] = asyncio.Queue()
        self._told: asyncio.Queue[str] = asyncio.Queue()
        self._seen: list[Any] = []

    def reset(self, *, seed: int) -> tuple[str, Info]:
        """Row `seed` of its data set."""
        rows = self._env.get_dataset()
        if not 0 <= seed < len(rows):
            raise BadWorld(f"row {seed} of {len(rows)}: the seed is the row of the data set")
        self._end()
        client = _client_of(self._library, self._asked, self._told)
        self._rollout = self._loop.create_task(self._env.rollout(rows[seed], client, ASKED_OF), name="rollout")
        prompt = self._loop.run_until_complete(self._until_asked())
        if prompt is None:
            raise BadWorld(f"the rollout ended before it asked anything: {_error_in(self._rollout.result())}")
        system, *asked = prompt if prompt[0].role == "system" else [None, *prompt]
        if len(asked) != 1 or asked[0].role != "user":
            raise BadWorld(
                f"a prompt of {', '.join(message.role for message in prompt)}; a system message and one of the user can be shown"
            )
        self._seen = list(prompt)
        return _text(asked[0]), {"system": "" if system is None else _text(system)}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """What the environment says on a message; when it ends, the rubric's reward."""
        assert self._rollout is not None, "reset comes first"
        self._told.put_nowait(action)
        prompt = self._loop.run_until_complete(self._until_asked())
        if prompt is not None:
            before, new = prompt[: len(self._seen)], prompt[len(self._seen) :]
            if _shown(before) != _shown(self._seen) or len(new) < 2 or new[0].role != "assistant" or _text(new[0]) != action:
                raise BadWorld("its prompt is not the one before and what was said on it")
            if any(message.role != "user" for message in new[1:]):
                raise BadWorld(f"it answers with messages of {', '.join(message.role for message in new[1:])}")
            self._seen = list(prompt)
            return "\n\n".join(_text(message) for message in new[1:]), 0.0, False, False, {}
        state = self._rollout.result()
        if state.get("error") is not None:
            raise RuntimeError(f"the rollout failed: {_error_in(state)}")
        self._loop.run_until_complete(self._env.rubric.score_rollout(state))
        final = state.get("final_env_response") or ()
        text = "\n\n".join(_text(message) for message in final) if not isinstance(final, str) else final
        return text, float(state["reward"]), True, False, {"metrics": dict(state["metrics"] or {})}

    def close(self) -> None:
        """Ends the rollout."""
        self._end()
        self._loop.close()

    async def _until_asked(self) -> Sequence[Any] | None:
        """What the environment asks its model next; None when it asks nothing any more."""
        assert self._rollout is not None
        asks = asyncio.ensure_future(self._asked.get())
        await asyncio.wait((asks, self._rollout), return_when=asyncio.FIRST_COMPLETED)
        if asks.done():
            return asks.result()
        asks.cancel()
        return None

    def _end(self) -> None:
        if self._rollout is not None:
            self._rollout.cancel()
            self._loop.run_until_complete(asyncio.gather(self._rollout, return_exceptions=True))
        self._asked, self._told = asyncio.Queue(), asyncio.Queue()


def _client_of(library: Any, asked: asyncio.Queue[Sequence[Any]], told: asyncio.Queue[str]) -> Any:
    """A client of the library's own kind, behind which nobody is but us."""
    clients, types = importlib.import_module("verifiers.clients.client"), importlib.import_module("verifiers.types")

    class Ours(clients.Client):  # type: ignore[misc, name-defined]  # the base is known at run time alone
        def setup_client(self, config: object) -> None:
            return None

        async def close(self) -> None:
            return None

        async def get_response(self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **more: Any) -> Any:
            asked.put_nowait(prompt)
            said = await told.get()
            message = types.ResponseMessage(content=said, finish_reason="stop", is_truncated=False)
            return types.Response(id="1", created=int(time.time()), model=model, message=message)

        async def to_native_tool(self, tool: Any) -> Any:
            raise NotImplementedError("nothing is sent anywhere")

        async def to_native_prompt(self, messages: Any) -> Any:
            raise NotImplementedError("nothing is sent anywhere")

        async def get_native_response(self, *arguments: Any, **more: Any) -> Any:
            raise NotImplementedError("nothing is sent anywhere")

        async def raise_from_native_response(self, response: Any) -> None:
            raise NotImplementedError("nothing is sent anywhere")

        async def from_native_response(self, response: Any) -> Any:
            raise NotImplementedError("nothing is sent anywhere")

    return Ours(None)


def _text(message: Any) -> str:
    if not isinstance(message.content, str):
        raise BadWorld(f"a message of {type(message.content).__name__}, expected a text")
    return message.content


def _shown(messages: Sequence[Any]) -> list[tuple[str, str]]:
    return [(message.role, _text(message)) for message in messages]


def _error_in(state: Any) -> str:
    return repr(state.get("error"))[:300]

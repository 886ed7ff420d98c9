"""Nothing on the token path contacts anybody but the inference server on the loopback."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

PROGRAM = textwrap.dedent(
    """
    import sys

    asked = []

    def watch(event, args):
        if event == "socket.connect":
            address = args[1]
            asked.append(address)
            if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1"):
                raise OSError(f"the network is closed: {address}")
        elif event == "socket.getaddrinfo":
            if args[0] not in ("127.0.0.1", "localhost", "::1", None):
                raise OSError(f"the network is closed: {args[0]}")

    sys.addaudithook(watch)

    import asyncio
    from pipeline.messages import ChatMessage
    from pipeline.testing.builders import a_job
    from workers.agent import ChatMLRenderer, TrajectoryRecorder, compare, run_agent
    from workers.llm import connect_backend
    from workers.llm.scripted import Problem, ScriptedServer
    from workers.tools.base import ToolSet

    async def gate():
        pass

    async def main():
        async with ScriptedServer(problems=[Problem("What is 2 + 2?", "4")]) as server, connect_backend(server.url) as client:
            renderer = ChatMLRenderer(server.tokenizer)
            assert (await compare(renderer, client)).in_a_word == "same"
            end = await run_agent(
                a_job(),
                [ChatMessage(role="user", content="What is 2 + 2?")],
                backend=client,
                renderer=renderer,
                tools=ToolSet(),
                recorder=TrajectoryRecorder(),
                gate=gate,
            )
            print(end.stop, len(asked) > 0)

    asyncio.run(main())
    """
)


@pytest.mark.slow
def test_a_turn_runs_with_the_network_closed_but_for_the_loopback() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}

    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=50, env=environment, check=False)

    assert done.stderr == ""
    assert done.stdout.split() in (["finished", "True"], ["tokens", "True"])

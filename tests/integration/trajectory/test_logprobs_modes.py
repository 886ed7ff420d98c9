"""Each turn says of which distribution its logprobs are, and combinations that bias a trainer's ratio are refused: on every wire, and when
another server is behind the address."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from pipeline.engines import InvalidResponse
from pipeline.errors import InvalidRequest
from pipeline.messages import Sampling
from pipeline.testing.wait import wait_until
from tests.recorded_trajectories import CUT_OFF, PROBLEMS, record
from workers.agent.invariants import faults_of
from workers.llm import GenRequest, GenResult, HttpBackend, connect_backend
from workers.llm.backend import Caps, LogprobsMode
from workers.llm.scripted import ScriptedServer, ServerOptions

WIRES = {
    "generate-0.32": ServerOptions(wire="0.32"),
    "generate-0.31": ServerOptions(wire="0.31"),
    "completions-0.33": ServerOptions(wire="0.33", scale_out=False),
    "sglang-0.5.10": ServerOptions(wire="sglang-0.5.10"),
    "sglang-0.5": ServerOptions(wire="sglang-0.5"),
}
RATIO_IS_RIGHT: dict[tuple[LogprobsMode, Sampling], bool] = {
    ("raw", Sampling()): True,
    ("raw", Sampling(temperature=0.7)): False,
    ("raw", Sampling(presence_penalty=0.5)): False,
    ("raw", Sampling(frequency_penalty=0.5)): False,
    ("raw", Sampling(repetition_penalty=1.1)): False,
    ("raw", Sampling(top_p=0.9)): False,
    ("processed", Sampling()): True,
    ("processed", Sampling(temperature=0.7)): True,
    ("processed", Sampling(temperature=0.0)): False,
    ("processed", Sampling(top_p=0.9)): False,
    ("processed", Sampling(top_k=20)): False,
    ("processed", Sampling(min_p=0.05)): False,
}


def mode_of(options: ServerOptions, mode: LogprobsMode) -> LogprobsMode:
    """What a server calls that: SGLang's logprobs follow the temperature and never the truncation."""
    return replace(options, logprobs_mode=mode).logprobs_mode


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(("mode", "sampling"), RATIO_IS_RIGHT, ids=str)
async def test_a_combination_that_biases_the_ratio_is_refused_unless_the_job_says_so(
    wire: str, mode: LogprobsMode, sampling: Sampling
) -> None:
    options = replace(WIRES[wire], logprobs_mode=mode)
    async with ScriptedServer(options, PROBLEMS) as server, connect_backend(server.url) as backend:
        if not RATIO_IS_RIGHT[mode, sampling]:
            with pytest.raises(InvalidRequest, match="logprobs would not be of the distribution sampled from"):
                await record(backend, sampling=sampling, exact=True)
        trajectory = await record(backend, sampling=sampling, exact=RATIO_IS_RIGHT[mode, sampling])

    assert faults_of(trajectory) == []
    for turn in trajectory.turns:
        assert turn.logprobs_mode == mode_of(options, mode)
        assert replace(turn.sampling, max_tokens=sampling.max_tokens) == sampling


# ---- a server that is started again, in another mode


@dataclass
class Address:
    """One address, and the server that is there now."""

    url: str
    stack: AsyncExitStack
    server: ScriptedServer
    port: int

    async def restart(self, mode: LogprobsMode) -> None:
        """Another server of the same kind, in that mode."""
        options = replace(self.server.options, logprobs_mode=mode)
        await self.server.die()
        self.server = await self.stack.enter_async_context(ScriptedServer(options, PROBLEMS, port=self.port))


@asynccontextmanager
async def an_address(options: ServerOptions) -> AsyncIterator[tuple[Address, HttpBackend]]:
    """A server, and a client that thinks it may be up again at once."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(ScriptedServer(options, PROBLEMS))
        address = Address(server.url, stack, server, int(server.url.rpartition(":")[2]))
        backend = await stack.enter_async_context(connect_backend(server.url, fastest_restart_s=0.0))
        yield address, backend


def a_request(name: str) -> GenRequest:
    """A few tokens."""
    return GenRequest(request_id=name, prompt_ids=[5, 6, 7], sampling=Sampling(), max_tokens=4, seed=0)


SILENT = "sglang-0.5.10"
"""Does not say when it was started."""


@pytest.mark.parametrize("wire", [wire for wire in WIRES if wire != SILENT])
async def test_an_answer_of_a_server_that_was_started_again_is_not_believed_and_the_next_has_its_mode(wire: str) -> None:
    """The restart falls between two calls: no connection breaks, the next call makes a new one. What the server was before says nothing."""
    async with an_address(WIRES[wire]) as (address, backend):
        assert (await backend.generate(a_request("one"), timeout_s=10)).logprobs_mode == mode_of(WIRES[wire], "processed")

        await address.restart("raw")

        with pytest.raises(InvalidResponse, match="was started again"):
            await backend.generate(a_request("two"), timeout_s=10)
        assert (await backend.generate(a_request("three"), timeout_s=10)).logprobs_mode == "raw"


async def test_a_server_that_does_not_say_when_it_was_started_is_asked_anew_behind_a_new_connection() -> None:
    async with an_address(WIRES[SILENT]) as (address, backend):
        assert (await backend.generate(a_request("one"), timeout_s=10)).logprobs_mode == "scaled"

        await address.restart("raw")
        await backend.generate(a_request("two"), timeout_s=10)

        assert (await backend.generate(a_request("three"), timeout_s=10)).logprobs_mode == "raw"


async def test_a_new_connection_to_the_same_server_costs_nothing_but_a_look() -> None:
    async with an_address(ServerOptions()) as (address, backend):
        await backend.generate(a_request("one"), timeout_s=10)
        for transport in address.server.connections:
            transport.close()
        await wait_until(lambda: not address.server.connections, "idle connections are closed")

        await backend.generate(a_request("two"), timeout_s=10)

    assert [body["request_id"] for _, body in address.server.requests if not body["request_id"].startswith("probe")] == ["one", "two"]
    assert sum(body["request_id"].startswith("probe") for _, body in address.server.requests) == 1


class Restarting:
    """A way to a server that is started again, in another mode, before its second call."""

    def __init__(self, address: Address, backend: HttpBackend, mode: LogprobsMode) -> None:
        self._address, self._backend, self._mode = address, backend, mode
        self._calls = 0

    async def probe(self) -> Caps:
        return await self._backend.probe()

    async def generate(self, request: GenRequest, *, timeout_s: float) -> GenResult:
        self._calls += 1
        if self._calls == 2:
            await self._address.restart(self._mode)
        return await self._backend.generate(request, timeout_s=timeout_s)

    async def abort(self, request_id: str) -> None:
        await self._backend.abort(request_id)


WARM = Sampling(temperature=0.7, max_tokens=12)


async def test_a_trajectory_whose_server_became_raw_is_refused_before_a_raw_token_is_recorded() -> None:
    """The mode was probed once, at the start of the job: later turns bore it though another server answered, and their ratio was wrong."""
    async with an_address(ServerOptions(logprobs_mode="processed")) as (address, backend):
        with pytest.raises(InvalidRequest, match="the server reports raw logprobs, from before temperature"):
            await record(Restarting(address, backend, "raw"), sampling=WARM, settings=CUT_OFF, exact=True)


async def test_each_turn_bears_the_mode_of_the_server_that_answered_it() -> None:
    async with an_address(ServerOptions(logprobs_mode="processed")) as (address, backend):
        trajectory = await record(Restarting(address, backend, "raw"), sampling=WARM, settings=CUT_OFF)

    assert [turn.logprobs_mode for turn in trajectory.turns] == ["processed", *["raw"] * (len(trajectory.turns) - 1)]
    assert len(trajectory.turns) > 1
    assert faults_of(trajectory) == []

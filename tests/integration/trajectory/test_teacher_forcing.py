"""Recorded logprobs are what the server's weights give: recomputed on every wire, in both modes, under any sampling."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from pipeline.engines import Refused
from pipeline.messages import Sampling
from pipeline.testing.wait import wait_until
from tests.recorded_trajectories import CUT_OFF, PROBLEMS, record, several
from workers.agent.invariants import faults_of
from workers.llm import HttpBackend, connect_backend
from workers.llm.backend import LogprobsMode
from workers.llm.logprob_distance import TOLERANCES, beyond, summary_of
from workers.llm.scoring_plan import holds
from workers.llm.scripted import ScriptedServer, ServerOptions
from workers.llm.teacher_forcing import TeacherForcing, VersionMoved, distances

WIRES: dict[str, tuple[ServerOptions, tuple[LogprobsMode, ...]]] = {
    "generate-0.32": (ServerOptions(wire="0.32"), ("raw", "processed")),
    "generate-0.31": (ServerOptions(wire="0.31"), ("raw", "processed")),
    "completions-0.33": (ServerOptions(wire="0.33", scale_out=False), ("raw", "processed")),
    "sglang-0.5": (ServerOptions(wire="sglang-0.5"), ("raw", "scaled")),
}
"""What can be asked, and the modes that its engine has."""
PLAIN = Sampling()
WARM = Sampling(temperature=0.7, top_p=0.9)
"""What a recomputation must apply; top-k and min-p beside it."""
SAMPLINGS = {
    "plain": PLAIN,
    "warm": WARM,
    "top-k": Sampling(temperature=1.3, top_k=5),
    "min-p": Sampling(min_p=0.1),
    "greedy": Sampling(temperature=0.0),
    "penalties": Sampling(presence_penalty=0.5),
}


@asynccontextmanager
async def a_server(options: ServerOptions | None = None) -> AsyncIterator[tuple[ScriptedServer, HttpBackend, TeacherForcing]]:
    """A server, the agent's way to it, and ours; both have asked it what it can do."""
    async with (
        ScriptedServer(options, PROBLEMS) as server,
        connect_backend(server.url) as backend,
        TeacherForcing(server.url) as forcing,
    ):
        await backend.probe()
        await forcing.caps()
        yield server, backend, forcing


@pytest.mark.parametrize(("wire", "mode"), [(wire, mode) for wire, (_, modes) in WIRES.items() for mode in modes])
@pytest.mark.parametrize("sampling", ["plain", "warm", "top-k", "min-p", "greedy"])
async def test_what_was_recorded_is_what_the_server_gives_again(wire: str, mode: LogprobsMode, sampling: str) -> None:
    async with a_server(replace(WIRES[wire][0], logprobs_mode=mode)) as (_, backend, forcing):
        short = replace(SAMPLINGS[sampling], max_tokens=24)
        for trajectory in await several(backend, 2, sampling=short, settings=CUT_OFF):
            assert faults_of(trajectory) == []

            found = distances(trajectory, recomputed := await forcing.recompute(trajectory))

            assert not recomputed.skipped
            assert len(found.all_D) == sum(int(s.sampled_mask.sum()) for s in trajectory.segments)
            assert len(found.first_D) == len(found.last_D) == len(trajectory.turns)
            assert summary_of(found.all_D).max_abs < 1e-5
            assert beyond(found, TOLERANCES["fp32"]) == []


async def test_a_turn_without_its_temperature_would_be_told() -> None:
    """That the test above can fail: logprobs recorded at 0.7, said to be of 1.0, are beyond the tolerance."""
    async with a_server() as (_, backend, forcing):
        trajectory = await record(backend, sampling=Sampling(temperature=0.7))
        lied = replace(trajectory, turns=tuple(replace(turn, sampling=PLAIN) for turn in trajectory.turns))

        told = beyond(distances(lied, await forcing.recompute(lied)), TOLERANCES["bf16"])

    assert any("mean |d|" in line for line in told)
    assert any("signed mean" in line for line in told)


async def test_only_tokens_of_the_weights_that_the_server_holds_are_compared() -> None:
    async with a_server() as (_, backend, forcing):
        await backend.control.set_version("swe/1.4")
        old = await record(backend)
        old = replace(
            old,
            segments=tuple(replace(s, versions=tuple(replace(v, version="1.4") for v in s.versions)) for s in old.segments),
        )
        assert not (await forcing.recompute(old)).skipped

        await backend.control.set_version("swe/1.5")
        again = await forcing.recompute(old)

    sampled = sum(int(s.sampled_mask.sum()) for s in old.segments)
    assert again.skipped == {"another version": sampled}
    assert len(distances(old, again).all_D) == 0


async def test_a_cache_that_outlived_its_weights_is_found() -> None:
    """A trajectory goes on over keys and values of older weights, under the new label: its tokens are of neither. A recomputation uses no
    cache, so it sees that."""
    async with a_server() as (server, backend, forcing):
        server.engine.load("old")
        question = PROBLEMS[1].question
        await record(backend, question=question)
        server.engine.load("new")  # and no flush: prompts of the same salt find what the old weights computed

        trajectory = await record(backend, question=question)

        told = beyond(distances(trajectory, await forcing.recompute(trajectory)), TOLERANCES["bf16"])
        server.engine.cache.clear()
        clean = await record(backend, question=question)
        assert beyond(distances(clean, await forcing.recompute(clean)), TOLERANCES["fp32"]) == []
    assert told


async def test_penalties_in_processed_mode_are_not_comparable_and_counted() -> None:
    async with a_server() as (_, backend, forcing):
        trajectory = await record(backend, sampling=SAMPLINGS["penalties"])

        skipped = (await forcing.recompute(trajectory)).skipped

    assert skipped == {"processed with penalties": sum(int(s.sampled_mask.sum()) for s in trajectory.segments)}


async def test_processed_logprobs_cannot_be_asked_of_a_server_in_raw_mode() -> None:
    async with ScriptedServer(ServerOptions(), PROBLEMS) as server, connect_backend(server.url) as backend:
        trajectory = await record(backend, sampling=WARM)
    async with ScriptedServer(ServerOptions(logprobs_mode="raw"), PROBLEMS) as raw, TeacherForcing(raw.url) as forcing:
        skipped = (await forcing.recompute(trajectory)).skipped

    assert [*skipped] == ["processed, and the server says raw ones"]


async def test_weights_that_change_while_they_are_asked_for_are_told() -> None:
    async with a_server() as (server, backend, forcing):
        trajectory = await record(backend)
        await backend.control.pause("keep")
        asking = asyncio.create_task(forcing.recompute(trajectory))
        await wait_until(lambda: bool(server.engine.request_ids()), "the server was asked")

        server.engine.set_version("1.1")
        await backend.control.resume()

        with pytest.raises(VersionMoved, match=r"had weights 'default' before and '1\.1' after"):
            await asking


async def test_a_server_without_answers_is_an_error_and_not_a_distance() -> None:
    async with a_server() as (_, backend, forcing):
        trajectory = await record(backend)
        far = replace(trajectory.segments[0], token_ids=np.where(trajectory.segments[0].sampled_mask == 1, 999_999, 0).astype(np.uint32))
        with pytest.raises(Refused, match="out of vocabulary"):
            await forcing.recompute(replace(trajectory, segments=(far, *trajectory.segments[1:])))


def test_an_engines_label_may_have_its_run_in_front() -> None:
    assert holds("swe/1.5", "1.5")
    assert holds("1.5", "1.5")
    assert not holds("swe/11.5", "1.5")
    assert not holds("default", "1.5")
    assert not holds("", "")

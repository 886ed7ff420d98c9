"""Whole trajectories of the agent on a real server: the record keeps its promises, and its logprobs are those of the server's weights.

What the agent recorded is saved as files and checked by `rollstream trajectory check --server`, as a person would. The bounds are those of
`--precision`: two computations of one distribution in bf16 differ by some hundredths of a nat, since a token sampled in a batch is computed
in other shapes than one in a prompt; in fp32 they agree to a thousandth.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from pipeline.codec import encode
from pipeline.engines import Exchange
from pipeline.messages import Sampling, Trajectory
from pipeline.testing.wait import wait_until
from pipeline.trajectory_file import SUFFIX, record_of, write
from tests.recorded_trajectories import CUT_OFF, several
from tests.vllm_server import REAL, VllmServer, serving
from workers.llm import HttpBackend, connect_backend
from workers.llm.tokenizer import load

TRAJECTORIES = 32
SAMPLINGS = {
    "T=1": Sampling(max_tokens=40),
    "T=0.7, top-p 0.9": Sampling(temperature=0.7, top_p=0.9, max_tokens=40),
}


@pytest.fixture(scope="module")
def fp32_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """The same model, computed in single precision."""
    with serving(tmp_path_factory.mktemp("vllm-fp32"), "--dtype", "float32") as server:
        yield server


def save(folder: Path, trajectories: Sequence[Trajectory]) -> None:
    """Files as `rollstream trajectory save` writes them."""
    folder.mkdir()
    for number, trajectory in enumerate(trajectories):
        name = f"run1.{number}"
        write(folder / (name + SUFFIX), record_of(name, encode(trajectory), {"job": name}))


async def check(folder: Path, trajectories: Sequence[Trajectory], server: VllmServer, *options: str) -> dict[str, Any]:
    """What the command finds, as its JSON."""
    save(folder, trajectories)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ops.cli", "trajectory", "check", str(folder), "--server", server.url, "--json", *options),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    found: dict[str, Any] = orjson.loads(out)
    assert found["fine"] is (process.returncode == 0)
    print(options, {name: found["logprobs"][name] for name in ("all", "first", "last")}, found["logprobs"]["skipped"])
    return found


async def recorded(client: HttpBackend, server: VllmServer, sampling: Sampling) -> list[Trajectory]:
    """What the agent makes of the server, with several turns each where the model lets it."""
    found = await several(client, TRAJECTORIES, sampling=sampling, settings=CUT_OFF, tokenizer=load(server.folder))
    assert sum(len(trajectory.turns) > 1 for trajectory in found) >= TRAJECTORIES // 2
    return found


def block_size(metrics: object) -> int:
    """Tokens of one block of the server's prefix cache."""
    told = re.search(r'vllm:cache_config_info\{[^}]*\bblock_size="(\d+)"', str(metrics))
    assert told is not None
    return int(told[1])


def prefix_hits(trajectories: Sequence[Trajectory], block: int) -> tuple[int, int]:
    """Tokens that later turns found in the prefix cache, and those that they could have: the whole blocks of what the turn before had
    computed. The last sampled token is not among them, since nothing was asked that comes after it."""
    hits = possible = 0
    for trajectory in trajectories:
        for before, turn in itertools.pairwise(trajectory.turns):
            if before.segment == turn.segment:
                hits += turn.cached_tokens
                possible += (before.end - 1) // block * block
    return hits, possible


def marked(request: pytest.FixtureRequest, precision: str) -> VllmServer:
    """The server of a precision."""
    server: VllmServer = request.getfixturevalue("vllm_server" if precision == "bf16" else "fp32_server")
    return server


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("precision", [pytest.param(name, marks=REAL) for name in ("bf16", "fp32")])
async def test_trajectories_of_a_real_server_pass_the_check(
    precision: str, sampling: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server = marked(request, precision)
    async with connect_backend(server.url) as client, Exchange(server.url) as http:
        trajectories = await recorded(client, server, SAMPLINGS[sampling])
        block = block_size(await http.get("/metrics", parse=False))

    hits, possible = prefix_hits(trajectories, block)
    print(f"cached tokens of later turns: {hits:,} of {possible:,} possible, blocks of {block}")
    assert hits > 0.9 * possible > 0
    found = await check(tmp_path / "saved", trajectories, server, "--precision", precision)

    assert found["complaints"] == []
    assert found["broken"] == 0
    assert found["logprobs"]["skipped"] == {}
    assert found["logprobs"]["all"]["tokens"] == sum(record["sampled"] for record in found["records"]) > 1000
    assert found["logprobs"]["first"]["tokens"] == sum(record["turns"] for record in found["records"])
    assert all(bool(record["biased"]) is ("top-p" in sampling) for record in found["records"])


@pytest.mark.parametrize("precision", [pytest.param("bf16", marks=REAL)])
async def test_trajectories_across_an_update_are_of_the_weights_that_their_spans_name(
    precision: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Weights change while calls are in flight, which go on: each token has the logprob of the weights its span names, so what is left out
    when the new ones are asked is what the old ones explain."""
    server = marked(request, precision)
    async with connect_backend(server.url) as client, Exchange(server.url) as http:

        async def load_weights(folder: Path, version: str) -> None:
            await client.control.pause("keep")
            await http.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}, parse=False)
            await client.control.set_version(version)
            await client.control.resume()

        async def is_under_way() -> bool:
            return (await client.control.health()).running >= 4

        try:
            await client.control.set_version("1.4")
            running = asyncio.create_task(recorded(client, server, Sampling(max_tokens=120)))
            await wait_until(is_under_way, "calls are in flight")
            await load_weights(server.other_weights, "1.5")
            trajectories = await running

            new = await check(tmp_path / "new", trajectories, server)
            await load_weights(server.folder, "1.4")
            old = await check(tmp_path / "old", trajectories, server)
        finally:
            await load_weights(server.folder, "default")

    assert new["complaints"] == old["complaints"] == []
    assert any({"1.4", "1.5"} <= set(record["versions"]) for record in new["records"])
    for found, others in ((new, old), (old, new)):
        assert found["logprobs"]["skipped"] == {"another version": others["logprobs"]["all"]["tokens"]}


@pytest.mark.parametrize("precision", [pytest.param("bf16", marks=REAL)])
async def test_a_record_of_other_weights_is_found_out(precision: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """That the tests above can fail: weights under a label that is not theirs."""
    server = marked(request, precision)
    async with connect_backend(server.url) as client, Exchange(server.url) as http:
        trajectories = await recorded(client, server, SAMPLINGS["T=1"])
        try:
            await http.post(
                "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(server.other_weights)}}, parse=False
            )
            await client.control.reset_cache()
            found = await check(tmp_path / "saved", trajectories, server)
        finally:
            await http.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(server.folder)}}, parse=False)
            await client.control.reset_cache()

    assert not found["fine"]
    assert any("mean |d|" in complaint for complaint in found["complaints"])

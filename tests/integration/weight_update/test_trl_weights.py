"""The weight transfer that TRL's asynchronous trainer is given: pause, send and resume are one update of the run's servers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pipeline.settings import QueueSettings
from tests.integration.weight_update.engines import Engines
from tests.integration.weight_update.loading import load
from trainer_client import connect_blocking
from trainer_client.adapters.trl_worker import TrlWeights

pytestmark = pytest.mark.one_server


async def test_a_transfer_labels_the_servers_and_one_that_fails_leaves_them_without(settings: QueueSettings, engines: Engines) -> None:
    """Named as TRL calls them, from a thread of its own; the next transfer mends what a failed one left."""
    url = await engines.start("one")
    pushed: list[str] = []

    def push(servers: Any, tensors: Any) -> None:
        pushed.extend(name for name, _ in tensors)
        for server in servers:
            asyncio.run(load(server.url, "weights"))

    def refuse(servers: Any, tensors: Any) -> None:
        raise RuntimeError("no route to the engines")

    def transfer(weights: TrlWeights, *names: str) -> None:
        weights.pause()
        weights.send_weights((name, None) for name in names)
        weights.resume()

    def train() -> None:
        with connect_blocking(settings, run="run1") as run:
            run.servers.attach([url], control="trainer")
            weights = TrlWeights(run, push)
            weights.init_weight_transfer()
            transfer(weights, "a", "b")
            assert run.policy_version == f"{run.incarnation}.1"
            assert not run.servers.why_not()
            with pytest.raises(RuntimeError, match="no route"):
                transfer(TrlWeights(run, refuse))
            assert run.policy_version == f"{run.incarnation}.1"
            assert run.servers.why_not()
            transfer(weights, "c")
            assert run.policy_version == f"{run.incarnation}.2"
            assert not run.servers.why_not()
            weights.destroy()

    await asyncio.to_thread(train)
    assert pushed == ["a", "b", "c"]

"""`wait_replicas`: what a script answered is on a replica, also what an earlier call wrote whose reply was lost (ADR 29, decision 2)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, aclosing
from dataclasses import dataclass

import pytest

from pipeline import codec
from pipeline.errors import BrokerUnreachable
from pipeline.keys import Keys
from pipeline.redis_client import ask, command_client
from pipeline.scripts import Accepted, Scripts
from pipeline.settings import QueueSettings
from pipeline.testing import ServerKind, a_template, a_unit, wait_in_thread
from tests.redis_sets import Node, free_ports

KEYS = Keys.of_shard("rs", 0)


@dataclass
class Pair:
    """A master and its replica, and the scripts of a client that waits for the replica."""

    master: Node
    replica: Node
    scripts: Scripts
    hasty: Scripts
    """Of a client that does not wait."""

    async def accept(self, scripts: Scripts, prompt: str = "e0-i1") -> Accepted:
        """One job; what became of it."""
        template = a_template()
        incarnation = await scripts.connect_run("run1", nonce="n", ttl_s=3600)
        (done,) = await scripts.accept(
            "run1", incarnation, template, "t", codec.encode(template), [a_unit(prompt=prompt)], max_waiting=100, window=100
        )
        return done


@pytest.fixture
async def pair(server_kind: ServerKind, servers: ExitStack) -> AsyncIterator[Pair]:
    ports = free_ports(2)
    master = servers.enter_context(Node(server_kind, ports[0]))
    replica = servers.enter_context(Node(server_kind, ports[1], ("replicaof", "127.0.0.1", str(ports[0]))))
    wait_in_thread(lambda: replica.is_in_sync, "the replica has its data")
    settings = QueueSettings(redis_url=f"redis://127.0.0.1:{master.port}", wait_replicas=1)
    async with (
        aclosing(command_client(settings)) as client,
        aclosing(command_client(settings.model_copy(update={"wait_replicas": 0}))) as hasty,
    ):
        yield Pair(master, replica, Scripts(client, KEYS), Scripts(hasty, KEYS))


async def test_what_was_accepted_is_on_the_replica(pair: Pair) -> None:
    assert await pair.accept(pair.scripts) is Accepted.NEW

    assert pair.replica.tell("HGET", KEYS.job(a_unit(prompt="e0-i1").id), "st") in ("waiting", "ready")


async def test_while_no_replica_has_it_a_call_ends_as_an_outage_and_may_be_made_again(pair: Pair) -> None:
    await pair.accept(pair.scripts)
    pair.replica.freeze()
    with pytest.raises(BrokerUnreachable, match="0 of 1 replicas"):
        await pair.scripts.run_script("touch_run", "run1", 1, tries=1)

    pair.replica.thaw()

    assert await pair.accept(pair.scripts, "e0-i2") is Accepted.NEW


async def test_a_call_that_is_known_waits_for_what_the_first_one_wrote(pair: Pair) -> None:
    """The reply to the first was lost with its connection. The second writes nothing, and WAIT of a connection that wrote nothing is true
    at once: somebody would be told that a thing is safe which no replica has."""
    layout = (1, 1, "0" * 12)
    pair.replica.freeze()
    await pair.hasty.run_script("check_layout", *layout)
    with pytest.raises(BrokerUnreachable, match="0 of 1 replicas"):
        await pair.scripts.run_script("check_layout", *layout, tries=1)

    pair.replica.thaw()
    await pair.scripts.run_script("check_layout", *layout)

    assert pair.replica.tell("HGET", KEYS.meta, "fleet") == "0" * 12


async def test_waiting_leaves_nothing_and_goes_on_above_the_memory_bound(pair: Pair) -> None:
    """Drained is what is there: scripts that settle may go over the bound, and so may the wait for their replicas."""
    await pair.accept(pair.scripts)
    before = await ask(pair.scripts.run_script.client, "HKEYS", KEYS.meta)
    pair.master.tell("CONFIG", "SET", "maxmemory", "1")

    await pair.scripts.connect_run("run1", nonce="other", ttl_s=3600)

    assert await ask(pair.scripts.run_script.client, "HKEYS", KEYS.meta) == before

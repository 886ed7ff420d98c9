"""Several servers of a test that stand together: a master and a replica that Sentinels watch, and a Cluster. Real, on ports of loopback.

A Cluster begins with its map written down, as after a restart: nobody has to meet, vote or hand out slots before the test can begin.
"""

from __future__ import annotations

import secrets
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from pipeline.embedded.server_config import Directive, render
from pipeline.redis_slots import SLOTS, slot_of
from pipeline.testing import PrivateServer, ServerKind, wait_in_thread

MASTER = "rollstream"
PATIENT_MS = 30_000
"""Without an answer for so long a server counts as dead: longer than a busy machine stalls, where a test does not wait for it."""
REPLICATES_AT_ONCE: tuple[Directive, ...] = (
    ("repl-diskless-sync", "yes"),
    ("repl-diskless-sync-delay", "0"),
    ("repl-ping-replica-period", "1"),
    ("min-replicas-to-write", "0"),
)


def free_ports(count: int) -> list[int]:
    """Ports that are free now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def tell(port: int, *words: str | int, **options: Any) -> Any:
    """One command to the server at a port, as its administrator. Any: replies have the shape of their command, options are redis-py's."""
    with redis.Redis(
        host="127.0.0.1", port=port, retry=Retry(NoBackoff(), 0), socket_timeout=5, decode_responses=True, protocol=2, **options
    ) as client:
        return cast(Any, client).execute_command(*words)


class Node(PrivateServer):
    """A server that listens on a port of loopback too."""

    def __init__(self, kind: ServerKind, port: int, *extra: Directive) -> None:
        self.port = port
        place: tuple[Directive, ...] = (("bind", "127.0.0.1"), ("port", str(port)))
        super().__init__(kind, extra=(*place, *REPLICATES_AT_ONCE, *extra))

    def tell(self, *words: str | int) -> Any:
        """One command, as its administrator."""
        return tell(self.port, *words)

    def info(self, field: str) -> str:
        """One field of INFO REPLICATION; empty when it does not say, or does not answer."""
        with suppress(redis.RedisError, OSError):
            return str(dict(self.tell("INFO", "replication")).get(field, ""))
        return ""

    @property
    def is_master(self) -> bool:
        """Whether it says so."""
        return self.info("role") == "master"

    @property
    def is_in_sync(self) -> bool:
        """Whether it is a replica that has its master's data."""
        return self.info("master_link_status") == "up"


class SentinelSet:
    """A master and a replica, and three Sentinels.

    Attributes:
        master: at first.
        replica: at first.
    """

    def __init__(
        self,
        kind: ServerKind,
        stack: ExitStack,
        *extra: Directive,
        dead_after_ms: int = PATIENT_MS,
        of_sentinels: Sequence[Directive] = (),
    ) -> None:
        ports = free_ports(5)
        self.master = stack.enter_context(Node(kind, ports[0], *extra))
        self.replica = stack.enter_context(Node(kind, ports[1], ("replicaof", "127.0.0.1", str(ports[0])), *extra))
        wait_in_thread(lambda: self.replica.is_in_sync, "the replica has its data")
        self.sentinels = ports[2:]
        ids = {port: secrets.token_hex(20) for port in self.sentinels}
        for port, own_id in ids.items():
            stack.enter_context(sentinel(kind, port, self.master, self.replica, ids, own_id, dead_after_ms, of_sentinels))

    @property
    def url(self) -> str:
        """For `QueueSettings.redis_url`."""
        return "redis+sentinel://" + ",".join(f"127.0.0.1:{port}" for port in self.sentinels) + f"/{MASTER}/0"

    def leads_to(self, node: Node) -> bool:
        """Whether every Sentinel names it, and it is a master."""
        named = [int(tell(port, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER)[1]) for port in self.sentinels]
        return set(named) == {node.port} and node.is_master

    def hand_over(self) -> None:
        """Lets a Sentinel make the replica the master, though the master lives."""
        tell(self.sentinels[0], "SENTINEL", "FAILOVER", MASTER)

    def promote(self) -> None:
        """The same when the master is dead, without waiting until it counts as dead."""
        wait_in_thread(self._begin_failover, "a Sentinel takes the failover on")

    def cut_off(self) -> None:
        """The replica hears nothing more of the master. (One that is frozen finds what was sent meanwhile in its socket.)"""
        self.master.tell("ACL", "SETUSER", "default", "-psync", "-sync")
        self.master.tell("CLIENT", "KILL", "TYPE", "replica")
        wait_in_thread(lambda: not self.replica.is_in_sync, "the replica has lost its master")

    def is_level(self) -> bool:
        """Whether the replica has all that the master wrote."""
        return self.replica.info("slave_repl_offset") == self.master.info("master_repl_offset") != ""

    def _begin_failover(self) -> bool:
        with suppress(redis.ResponseError):  # NOGOODSLAVE: it has not heard of the replica since that froze; INPROG: it is at it
            self.hand_over()
            return True
        return self.replica.is_master


@contextmanager
def sentinel(
    kind: ServerKind,
    port: int,
    master: Node,
    replica: Node,
    others: Mapping[int, str],
    own_id: str,
    dead_after_ms: int,
    extra: Sequence[Directive] = (),
) -> Iterator[None]:
    """A Sentinel at a port, which knows all others already. It writes its configuration, so that is a file of its own."""
    config, log = master.folder / f"sentinel-{port}.conf", master.folder / f"sentinel-{port}.log"
    directives: list[Directive] = [
        ("bind", "127.0.0.1"),
        ("port", str(port)),
        ("dir", str(master.folder)),
        ("sentinel", "myid", own_id),
        ("sentinel", "monitor", MASTER, "127.0.0.1", str(master.port), "2"),
        ("sentinel", "down-after-milliseconds", MASTER, str(dead_after_ms)),
        ("sentinel", "failover-timeout", MASTER, "3000"),
        ("sentinel", "known-replica", MASTER, "127.0.0.1", str(replica.port)),
        *(("sentinel", "known-sentinel", MASTER, "127.0.0.1", str(other), name) for other, name in others.items() if other != port),
        *extra,
    ]
    config.write_text(render(directives))
    with log.open("wb") as sink:
        process = subprocess.Popen([kind.binary, config, "--sentinel"], stdout=sink, stderr=sink, stdin=subprocess.DEVNULL)
    try:
        wait_in_thread(lambda: answers(port), "the Sentinel answers")
        yield
    finally:
        process.kill()
        process.wait()


class ClusterSet:
    """Masters, each with a replica, and the slots spread over them.

    Attributes:
        masters: at first, in the order of their slots.
        replicas: at first, each beside its master.
    """

    def __init__(self, kind: ServerKind, stack: ExitStack, *extra: Directive, masters: int = 3, dead_after_ms: int = PATIENT_MS) -> None:
        ports = free_ports(4 * masters)
        nodes = [
            Node(
                kind,
                ports[2 * number],
                ("cluster-enabled", "yes"),
                ("cluster-port", str(ports[2 * number + 1])),
                ("cluster-node-timeout", str(dead_after_ms)),
                ("cluster-replica-validity-factor", "0"),
                ("cluster-require-full-coverage", "no"),
                ("cluster-allow-replica-migration", "no"),
                *extra,
            )
            for number in range(2 * masters)
        ]
        self.ids = {node.port: secrets.token_hex(20) for node in nodes}
        self.masters, self.replicas = nodes[:masters], nodes[masters:]
        for node in nodes:
            (node.folder / "nodes.conf").write_text(self._map(node, dict(zip(ports[::2], ports[1::2], strict=True))))
            stack.enter_context(node)
        wait_in_thread(lambda: all(replica.is_in_sync for replica in self.replicas), "the replicas have their data", timeout_s=20)
        wait_in_thread(lambda: all("cluster_state:ok" in self._state(node) for node in nodes), "the Cluster stands", timeout_s=20)

    @property
    def url(self) -> str:
        """For `QueueSettings.redis_url`: two of its nodes."""
        return f"redis+cluster://127.0.0.1:{self.masters[0].port},127.0.0.1:{self.masters[1].port}"

    @property
    def nodes(self) -> Sequence[Node]:
        """All of them."""
        return (*self.masters, *self.replicas)

    def master_of(self, key: str) -> Node:
        """Who had the slot of a key at first."""
        number, _ = divmod(slot_of(key) * len(self.masters), SLOTS)
        return self.masters[number]

    def replica_of(self, master: Node) -> Node:
        """The replica that a master had at first."""
        return self.replicas[self.masters.index(master)]

    def take_over(self, master: Node) -> None:
        """Lets the replica of a dead master have its slots, without waiting until that counts as dead."""
        replica = self.replica_of(master)
        replica.tell("CLUSTER", "FAILOVER", "TAKEOVER")
        wait_in_thread(lambda: replica.is_master, "the replica is the master")

    def cut_off(self, master: Node) -> None:
        """The replica of a master hears nothing more of it."""
        master.tell("ACL", "SETUSER", "default", "-psync", "-sync")
        master.tell("CLIENT", "KILL", "TYPE", "replica")
        wait_in_thread(lambda: not self.replica_of(master).is_in_sync, "the replica has lost its master")

    def begin_move(self, key: str, source: Node, target: Node) -> None:
        """The slot of a key is about to be moved."""
        target.tell("CLUSTER", "SETSLOT", slot_of(key), "IMPORTING", self.ids[source.port])
        source.tell("CLUSTER", "SETSLOT", slot_of(key), "MIGRATING", self.ids[target.port])

    def move_keys(self, source: Node, target: Node, key: str, *, only: Sequence[str] = ()) -> None:
        """Keys of the slot of a key go over, one after the other; all of them by default."""
        while keys := only or source.tell("CLUSTER", "GETKEYSINSLOT", slot_of(key), 10):
            for each in keys:
                source.tell("MIGRATE", "127.0.0.1", target.port, each, 0, 5000)
            if only:
                return

    def end_move(self, key: str, target: Node) -> None:
        """The slot is the target's."""
        for node in (target, *(node for node in self.masters if node is not target)):
            node.tell("CLUSTER", "SETSLOT", slot_of(key), "NODE", self.ids[target.port])

    def move_key_by_key(self, key: str, *, to: Node) -> None:
        """The slot of a key goes to another master, as `redis-cli --cluster reshard` moves it."""
        source = self.master_of(key)
        self.begin_move(key, source, to)
        self.move_keys(source, to, key)
        self.end_move(key, to)

    @property
    def moves_in_one_step(self) -> bool:
        """Whether the servers know how to."""
        return any("MIGRATESLOTS" in line for line in self.masters[0].tell("CLUSTER", "HELP"))

    def move_in_one_step(self, key: str, *, to: Node) -> None:
        """The slot of a key goes to another master while that copies it."""
        source, slot = self.master_of(key), slot_of(key)
        source.tell("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", self.ids[to.port])
        wait_in_thread(lambda: _holder(source, slot) == to.port, "the slot is the target's", timeout_s=30)

    def _map(self, of: Node, bus: dict[int, int]) -> str:
        lines, count = [], len(self.masters)
        for number, node in enumerate(self.nodes):
            master = self.masters[number % count]
            place = f"{self.ids[node.port]} 127.0.0.1:{node.port}@{bus[node.port]}"
            flags = ("myself," if node is of else "") + ("master" if node is master else "slave")
            first, last = _slots(number % count, count)
            slots = f" {first}-{last}" if node is master else ""
            lines.append(f"{place} {flags} {'-' if node is master else self.ids[master.port]} 0 0 {number % count + 1} connected{slots}")
        return "\n".join((*lines, f"vars currentEpoch {count} lastVoteEpoch 0", ""))

    @staticmethod
    def _state(node: Node) -> str:
        with suppress(redis.RedisError, OSError):
            return str(node.tell("CLUSTER", "INFO"))
        return ""


def _slots(number: int, count: int) -> tuple[int, int]:
    """First and last slot of one of `count` masters."""
    return -(-number * SLOTS // count), -(-(number + 1) * SLOTS // count) - 1


def _holder(asked: Node, slot: int) -> int:
    """The port of the master of a slot, as one node knows it."""
    return next((int(master[1]) for first, last, master, *_ in asked.tell("CLUSTER", "SLOTS") if first <= slot <= last), 0)


def answers(port: int) -> bool:
    """Whether there is a server."""
    with suppress(redis.RedisError, OSError):
        return bool(tell(port, "PING"))
    return False


__all__ = ["MASTER", "ClusterSet", "Node", "SentinelSet", "free_ports", "tell"]

"""Clients of a Cluster: each command goes to the node that has its key (docs/adr/0029-redis-beyond-one-box.md, decision 5).

Invariants:
  1. A command is sent to one node at a time, and again only when a node said that it did nothing (MOVED). Whatever else went wrong is the
     caller's to judge, as with one server.
  2. A script never runs on a slot that is being moved (`redis_slots.guarded`), and ASK is never followed: to the caller that is an outage.
  3. After a node did not answer, the map is read anew before the next command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast

import redis
import redis.asyncio
from redis.asyncio.client import Pipeline
from redis.exceptions import AskError, ClusterDownError, MovedError, TryAgainError

from pipeline.redis_address import Node
from pipeline.redis_slots import SlotMap, guarded, key_of, slot_of, unread_map

MOVES = 5
"""A command follows so many MOVED: the map is right after one, unless slots move while it looks."""
ASK_TIMEOUT_S = 1.0
"""For one node to tell its map; there are others."""
_LOST = (redis.ConnectionError, redis.TimeoutError, OSError, ClusterDownError)
"""Errors after which the map is not to be trusted. MASTERDOWN is a kind of CLUSTERDOWN here."""


class ClusterRedis(redis.asyncio.Redis):
    """An async client of a Cluster.

    Args:
        seeds: nodes to ask first.
        node_client: makes the client of one node.
        home: the key whose node is asked what is about no key.
    """

    def __init__(self, seeds: Iterable[Node], node_client: Callable[[Node], redis.asyncio.Redis], *, home: str) -> None:
        super().__init__()
        self._slots = SlotMap(seeds)
        self._node_client = node_client
        self._home = slot_of(home)
        self._clients: dict[Node, redis.asyncio.Redis] = {}
        self._reading = asyncio.Lock()

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """One command, and its reply as the client of the node gives it.

        Raises:
            redis.ConnectionError: nobody serves the slot, or tells who does.
            redis.exceptions.TryAgainError: its slot is being moved.
        """
        slot, words = self.slot(args), guarded(args)
        for _ in range(MOVES):
            node = await self.owner(slot)
            try:
                return await cast(Any, self.of_node(node)).execute_command(*words, **options)
            except MovedError as error:
                self.follow(slot, node, error)
            except AskError as error:
                raise TryAgainError(f"TRYAGAIN slot {slot} is being moved") from error
            except _LOST:
                self._slots.mistrust(node)
                raise
        raise redis.ConnectionError(f"slot {slot} was moved {MOVES} times while a command looked for it")

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        """Commands to be sent together, to each node its own. Without a transaction: there is none across nodes."""
        if transaction:
            raise NotImplementedError("scripts are the transactions: pipeline(transaction=False)")
        return _ClusterPipe(self)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Ends the connections to all nodes."""
        clients = list(self._clients.values())
        self._clients.clear()
        for client in clients:
            await client.aclose()
        await super().aclose(close_connection_pool)

    # ---- for its pipelines

    def slot(self, words: tuple[Any, ...]) -> int:
        """The slot that decides where a command goes."""
        key = key_of(words)
        return self._home if key is None else slot_of(key)

    async def owner(self, slot: int) -> Node:
        """The node of a slot.

        Raises:
            redis.ConnectionError: nobody serves it, or tells who does.
        """
        if self._slots.is_stale:
            await self._read_map()
        return self._slots.owner(slot)

    def of_node(self, node: Node) -> redis.asyncio.Redis:
        """The client of one node."""
        if node not in self._clients:
            self._clients[node] = self._node_client(node)
        return self._clients[node]

    def follow(self, slot: int, node: Node, error: MovedError) -> None:
        """Takes the word of a node that a slot is another's."""
        self._slots.moved(slot, (error.host or node[0], error.port))

    def mistrust(self, node: Node) -> None:
        """A node did not answer."""
        self._slots.mistrust(node)

    async def _read_map(self) -> None:
        async with self._reading:
            reasons: dict[Node, Exception] = {}
            for node in self._slots.nodes if self._slots.is_stale else ():
                try:
                    async with asyncio.timeout(ASK_TIMEOUT_S):
                        self._slots.learn(await cast(Any, self.of_node(node)).execute_command("CLUSTER", "SLOTS"), node)
                    return
                except redis.AuthenticationError:
                    raise
                except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
                    reasons[node] = error
            if self._slots.is_stale:
                raise unread_map(reasons)


class _ClusterPipe(Pipeline):
    """Commands that go to their nodes together, one pipeline a node. What was moved meanwhile is sent again, alone."""

    def __init__(self, cluster: ClusterRedis) -> None:
        super().__init__(cluster.connection_pool, cluster.response_callbacks, transaction=False, shard_hint=None)
        self._cluster = cluster

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """All replies, in order; an error in its place, or raised when it was asked so."""
        commands = [(words, dict(options)) for words, options in self.command_stack]
        await cast(Any, self).reset()
        places: dict[Node, list[int]] = {}
        for place, (words, _) in enumerate(commands):
            places.setdefault(await self._cluster.owner(self._cluster.slot(words)), []).append(place)
        replies: list[Any] = [None] * len(commands)
        for node, mine in places.items():
            pipe = self._cluster.of_node(node).pipeline(transaction=False)
            for place in mine:
                cast(Any, pipe).execute_command(*guarded(commands[place][0]), **commands[place][1])
            try:
                answers = await pipe.execute(raise_on_error=False)
            except _LOST:
                self._cluster.mistrust(node)
                raise
            for place, answer in zip(mine, answers, strict=True):
                replies[place] = await self._again(*commands[place]) if isinstance(answer, AskError) else answer
        if raise_on_error:
            for reply in replies:
                if isinstance(reply, Exception):
                    raise reply
        return replies

    async def _again(self, words: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Of a command that its node sent away: the answer of who has its key, or its refusal."""
        try:
            return await self._cluster.execute_command(*words, **options)
        except redis.ResponseError as error:
            return error


class ThreadClusterRedis(redis.Redis):
    """The same for one thread.

    Args:
        seeds: nodes to ask first.
        node_client: makes the client of one node.
        home: the key whose node is asked what is about no key.
    """

    def __init__(self, seeds: Iterable[Node], node_client: Callable[[Node], redis.Redis], *, home: str) -> None:
        super().__init__()
        self._slots = SlotMap(seeds)
        self._node_client = node_client
        self._home = slot_of(home)
        self._clients: dict[Node, redis.Redis] = {}

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """As `ClusterRedis.execute_command`."""
        key, words = key_of(args), guarded(args)
        slot = self._home if key is None else slot_of(key)
        for _ in range(MOVES):
            if self._slots.is_stale:
                self._read_map()
            node = self._slots.owner(slot)
            try:
                return cast(Any, self.of_node(node)).execute_command(*words, **options)
            except MovedError as error:
                self._slots.moved(slot, (error.host or node[0], error.port))
            except AskError as error:
                raise TryAgainError(f"TRYAGAIN slot {slot} is being moved") from error
            except _LOST:
                self._slots.mistrust(node)
                raise
        raise redis.ConnectionError(f"slot {slot} was moved {MOVES} times while a command looked for it")

    def close(self) -> None:
        """Ends the connections to all nodes."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        super().close()

    def home(self) -> Node:
        """The node of what is about no key.

        Raises:
            redis.ConnectionError: no node tells.
        """
        self._read_map()
        return self._slots.owner(self._home)

    def masters(self) -> dict[Node, list[tuple[int, int]]]:
        """Each master, with first and last of its ranges of slots.

        Raises:
            redis.ConnectionError: no node tells.
        """
        self._read_map()
        return self._slots.masters()

    def of_node(self, node: Node) -> redis.Redis:
        """The client of one node."""
        if node not in self._clients:
            self._clients[node] = self._node_client(node)
        return self._clients[node]

    def _read_map(self) -> None:
        reasons: dict[Node, Exception] = {}
        for node in self._slots.nodes:
            try:
                self._slots.learn(cast(Any, self.of_node(node)).execute_command("CLUSTER", "SLOTS"), node)
                return
            except redis.AuthenticationError:
                raise
            except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
                reasons[node] = error
        raise unread_map(reasons)

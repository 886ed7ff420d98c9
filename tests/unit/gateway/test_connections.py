"""Which connection gives way when one more comes than may be open; without sockets, and with a clock that stands still."""

from __future__ import annotations

import asyncio

from ops.gateway.connections import QUIET_PART, Connections

HEAD_S = 40.0
QUIET_S = HEAD_S / QUIET_PART


class Wire(asyncio.Transport):
    """A connection of which is seen what was written, and whether it was ended."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.ended = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def write_eof(self) -> None:
        self.ended = True

    def abort(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return self.ended


class Bound:
    """Connections at a bound of three."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.connections = Connections(asyncio.Protocol, most=3, head_s=HEAD_S, clock=lambda: self.now_s)

    def come(self) -> Wire:
        """One more connects."""
        wire = Wire()
        self.connections().connection_made(wire)
        return wire

    def later(self, seconds: float) -> None:
        self.now_s += seconds


async def test_the_one_that_was_quiet_for_the_longest_time_gives_way_and_none_that_is_served() -> None:
    """Whoever opened connections and sent nothing kept everybody out, a quarter of a minute at a time and without a token."""
    bound = Bound()
    served, first, second = bound.come(), bound.come(), bound.come()
    bound.connections.request_began(served)
    bound.later(QUIET_S)
    new = bound.come()
    bound.later(QUIET_S)
    newer = bound.come()

    assert [wire.ended for wire in (served, first, second, new, newer)] == [False, True, True, False, False]
    assert (len(bound.connections.open), bound.connections.gave_way, bound.connections.refused) == (3, 2, 0)
    bound.connections.abort()


async def test_where_none_is_quiet_for_long_the_new_one_is_told() -> None:
    """An answer that ended makes its connection quiet from then on, not from its beginning."""
    bound = Bound()
    wires = [bound.come() for _ in range(3)]
    for wire in wires:
        bound.connections.request_began(wire)
    bound.later(10 * QUIET_S)
    bound.connections.request_ended(wires[0])
    bound.later(QUIET_S / 2)
    refused = bound.come()
    bound.later(QUIET_S / 2)
    taken = bound.come()

    assert b"503 Service Unavailable" in refused.written
    assert b"3 connections are open" in refused.written
    assert [wire.ended for wire in (*wires, taken)] == [True, False, False, False]
    assert (bound.connections.gave_way, bound.connections.refused) == (1, 1)
    bound.connections.abort()

"""A log that a model's program has written is printed whole, and neither a bomb nor a terminal's master."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable

import pytest

from ops.job.log import BadLog, for_a_terminal, unpacked

LOG = b"".join(b"test_%d PASSED\n" % number for number in range(40_000))
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zlib": zlib.compress,
    "xz": lzma.compress,
    "bzip2": bz2.compress,
    "plain": lambda content: content,
}


@pytest.mark.parametrize("packer", list(PACKERS))
def test_a_log_comes_out_whole_however_it_was_packed(packer: str) -> None:
    pieces = list(unpacked(PACKERS[packer](LOG), most_bytes=len(LOG)))

    assert b"".join(pieces) == LOG
    assert max(map(len, pieces)) <= 1 << 20


@pytest.mark.parametrize("packer", ["gzip", "zlib", "xz", "bzip2"])
def test_a_bomb_costs_its_bound(packer: str) -> None:
    """A few kilobytes that hold 8 MiB: no more than the bound is ever made of them."""
    bomb = PACKERS[packer](bytes(8 << 20))
    given: list[int] = []

    with pytest.raises(BadLog, match="beyond 3,000,000 bytes, the bound"):
        given.extend(map(len, unpacked(bomb, most_bytes=3_000_000)))

    assert sum(given) == 3_000_000


@pytest.mark.parametrize("packer", ["gzip", "zlib", "xz", "bzip2"])
def test_what_is_cut_gives_what_there_is_and_says_so(packer: str) -> None:
    packed = PACKERS[packer](LOG)
    given: list[bytes] = []

    with pytest.raises(BadLog, match="it is cut"):
        given.extend(unpacked(packed[: len(packed) * 3 // 4], most_bytes=1 << 30))

    assert LOG.startswith(b"".join(given))


def test_what_is_damaged_is_said() -> None:
    packed = bytearray(gzip.compress(LOG))
    packed[20:40] = bytes(20)

    with pytest.raises(BadLog, match="it is damaged"):
        list(unpacked(bytes(packed), most_bytes=1 << 30))


def test_several_archives_in_a_row_are_one_log() -> None:
    assert b"".join(unpacked(gzip.compress(b"first\n") + gzip.compress(b"second\n") + bytes(3), most_bytes=99)) == b"first\nsecond\n"
    with pytest.raises(BadLog, match="4 bytes that are no archive"):
        list(unpacked(gzip.compress(b"first\n") + b"more", most_bytes=99))


def test_a_terminal_obeys_nothing_of_it() -> None:
    """Also what is cut in the middle by the end of a piece: an escape sequence, a letter of several bytes."""
    pieces = [b"\x1b", b"]0;title\x07 \xe2", b"\x82\xac\tx\r\n\xff\n", b"no end"]

    lines = list(for_a_terminal(pieces))

    assert lines == [r"\x1b]0;title\x07 €    x\r" + "\n", r"\xff" + "\n", "no end\n"]

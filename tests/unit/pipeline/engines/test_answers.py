"""Where an answer ends is read in one way only, however its bytes come; any doubt makes it none."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engines.answers import MOST_HEAD_BYTES, MOST_LINE_BYTES, AnswerReader, Malformed, Received, TooLong

MOST = 1000
BODIES = st.binary(max_size=60)


def read(data: bytes, cuts: list[int] | None = None, most_bytes: int = MOST) -> Received | None:
    """The answer in `data`, whose pieces end at these places; the connection ends behind it."""
    reader = AnswerReader(most_bytes)
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts or [])})
    received = None
    for start, end in pairwise(places):
        assert received is None, "it ends with its last byte"
        received = reader.feed(data[start:end])
    return received or reader.end()


def chunked(body: bytes, size: int, trailer: bytes = b"") -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x;name=1\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"000\r\n" + trailer + b"\r\n"


@given(BODIES, st.lists(st.integers(0, 500)), st.booleans())
def test_an_answer_of_a_known_length_is_read_whatever_pieces_it_comes_in(body: bytes, cuts: list[int], goes_before: bool) -> None:
    data = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX-Two: a\r\nx-two: b\r\n\r\n%b" % (len(body), body)

    received = read(b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n" * goes_before + data, cuts)

    assert received == Received(200, {"content-length": str(len(body)), "x-two": "a, b"}, body, keeps=True)


@given(BODIES, st.integers(1, 70), st.lists(st.integers(0, 500)), st.sampled_from([b"", b"x: y\r\n", b"x: y\r\nz: \r\n"]))
def test_an_answer_in_chunks_is_read_whatever_pieces_it_comes_in(body: bytes, size: int, cuts: list[int], trailer: bytes) -> None:
    received = read(b"HTTP/1.1 503 \r\nTransfer-Encoding: Chunked\r\n\r\n" + chunked(body, size, trailer), cuts)

    assert received == Received(503, {"transfer-encoding": "Chunked"}, body, keeps=True)


@given(BODIES, st.lists(st.integers(0, 500)))
def test_an_answer_that_ends_with_its_connection_is_read_to_there(body: bytes, cuts: list[int]) -> None:
    assert read(b"HTTP/1.1 200 OK\r\n\r\n" + body, cuts) == Received(200, {}, body, keeps=False)


@pytest.mark.parametrize(
    "cut_off",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n",
    ],
)
def test_an_answer_that_was_cut_off_is_none(cut_off: bytes) -> None:
    assert read(cut_off) is None


@pytest.mark.parametrize("status", [204, 304])
def test_some_answers_have_no_body_whatever_they_say(status: int) -> None:
    received = read(b"HTTP/1.1 %d x\r\ncontent-length: 5\r\n\r\n" % status)

    assert received is not None
    assert (received.content, received.keeps) == (b"", True)


@pytest.mark.parametrize(
    ("head", "keeps"),
    [
        (b"HTTP/1.1 200 OK\r\n", True),
        (b"HTTP/1.1 200 OK\r\nconnection: x, Close\r\n", False),
        (b"HTTP/1.0 200 OK\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\n", True),
    ],
)
def test_a_server_says_whether_its_connection_goes_on(head: bytes, keeps: bool) -> None:
    received = read(head + b"content-length: 1\r\n\r\nx")

    assert received is not None
    assert received.keeps == keeps


@pytest.mark.parametrize("body", [b"content-length: 1\r\n\r\nx", b"transfer-encoding: chunked\r\n\r\n" + chunked(b"x", 1)])
def test_what_comes_behind_an_answer_is_no_part_of_another(body: bytes) -> None:
    """A connection with bytes nobody asked for would hand one job the tokens of the next."""
    received = read(b"HTTP/1.1 200 OK\r\n" + body + b"HTTP/1.1 200 OK\r\n")

    assert received is not None
    assert (received.content, received.keeps) == (b"x", False)


@pytest.mark.parametrize(
    "answer",
    [
        b"200 OK\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 99 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nupgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nname : space\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: b\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: b\nc: d\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: \0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1_0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: \xb2\r\n\r\nxx",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0x1\r\nx\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nxy\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1" * (MOST_LINE_BYTES + 1),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n" + b"x" * (MOST_LINE_BYTES + 1),
        b"HTTP/1.1 200 OK\r\na: " + b"x" * MOST_HEAD_BYTES + b"\r\n\r\n",
        b"x" * (MOST_HEAD_BYTES + 1),
    ],
)
def test_what_is_not_written_by_the_rules_is_no_answer(answer: bytes) -> None:
    with pytest.raises(Malformed):
        read(answer)


@pytest.mark.parametrize(
    "answer",
    [
        b"content-length: 999999999999999999\r\n\r\n",
        b"transfer-encoding: chunked\r\n\r\nfffffffffffffff\r\n",
        b"transfer-encoding: chunked\r\n\r\n" + chunked(b"x" * (MOST + 1), 100),
        b"\r\n" + b"x" * (MOST + 1),
    ],
)
def test_an_answer_above_its_bound_is_refused_before_it_is_there(answer: bytes) -> None:
    with pytest.raises(TooLong):
        read(b"HTTP/1.1 200 OK\r\n" + answer)


def test_an_answer_at_its_bound_is_taken() -> None:
    for body in (
        b"content-length: %d\r\n\r\n" % MOST + b"x" * MOST,
        b"transfer-encoding: chunked\r\n\r\n" + chunked(b"x" * MOST, 7),
        b"\r\n" + b"x" * MOST,
    ):
        received = read(b"HTTP/1.1 200 OK\r\n" + body)
        assert received is not None
        assert received.content == b"x" * MOST

"""What clients may send that mean harm, or are merely broken: each gets its refusal, the others go on, and nothing grows."""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import orjson
import pytest

from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask
from pipeline.settings import QueueSettings
from pipeline.testing import wait_until
from tests.integration.gateway.service import RUN, Service, code_of, gateway, raw, read_text

pytestmark = pytest.mark.one_server


def head(path: str, *lines: str) -> bytes:
    return "\r\n".join((f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *lines, "", "")).encode()


async def test_bodies_that_are_none(queue: QueueSettings, tmp_path: Path) -> None:
    """Too large by its word, by its bytes, by what it would become; too deep, broken, not an object."""
    async with gateway(queue, tmp_path, max_body_bytes=4096, max_bodies_bytes=4096) as service:
        client, session = service.client, service.client.session

        async def sent(body: bytes, **headers: str) -> int:
            async with session.post(service.url + "/jobs", data=body, headers={"Content-Type": "application/json", **headers}) as answer:
                assert set(orjson.loads(await answer.read())) >= {"detail", "error"}
                return answer.status

        async def endless() -> int:
            chunk = b"1000\r\n" + b"a" * 4096 + b"\r\n"
            return code_of(await raw(service, head("/jobs", "Transfer-Encoding: chunked"), chunk, chunk, chunk))

        found = {
            "said": code_of(await raw(service, head("/jobs", "Content-Length: 999999999"), b"{")),
            "chunked": await endless(),
            "bomb": await sent(zlib.compress(b"a" * 10_000_000), **{"Content-Encoding": "deflate"}),
            "deep": await sent(b'{"task":"math","prompt":' + b"[" * 2000 + b"]" * 2000 + b"}"),
            "nested": await sent(b'{"task":"math","prompt":{"a":' + b'{"a":' * 60 + b"1" + b"}" * 60 + b"}}"),
            "broken": await sent(b'{"task": '),
            "list": await sent(b"[1]"),
            "no utf-8": await sent(b'{"task": "\xff\xfe"}'),
            "big number": await sent(b'{"task":"math","prompt":{"n":' + b"9" * 400 + b"}}"),
            "no http": code_of(await raw(service, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n")),
            "long head": code_of(await raw(service, b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")),
            "smuggled": code_of(
                await raw(
                    service, head("/jobs", "Content-Length: 4", "Transfer-Encoding: chunked"), b"0\r\n\r\nGET /steps HTTP/1.1\r\n\r\n"
                )
            ),
        }
        health = await client.get("/healthz")
        metrics = await read_text(service, "/metrics")

    assert found == {
        "said": 413,
        "chunked": 413,
        "bomb": 415,
        "deep": 400,
        "nested": 422,
        "broken": 400,
        "list": 400,
        "no utf-8": 400,
        "big number": 400,
        "no http": 400,
        "long head": 400,
        "smuggled": 400,
    }
    assert health.status == 200
    assert 'rollstream_gateway_now{what="body_bytes_free"} 4096.0' in metrics  # all of the budget is there again


HOST = b"Host: 127.0.0.1\r\n"
POST = b"POST /jobs HTTP/1.1\r\nContent-Type: application/json\r\n" + HOST


CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
NO_HTTP = {
    "no request line": (b"\x00\xff secret-4711\r\n\r\n", "expected a first line such as GET /status"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", "without TLS: use http://"),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "expected a request of HTTP/1.1"),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", "Missing 'Host' header"),
    "many headers": (b"GET / HTTP/1.1\r\n" + HOST + b"X: secret-4711\r\n" * 1000 + b"\r\n", "headers"),
    "long header": (b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"secret-4711" * 1000 + b"\r\n\r\n", "is too long"),
    "bytes in a path": (b"GET /\xff\xfe HTTP/1.1\r\n" + HOST + b"\r\n", "expected a path such as"),
    "broken address": (b"GET http://[::1 HTTP/1.1\r\n" + HOST + b"\r\n", "expected a path such as"),
    "no chunk": (CHUNKED + b"secret-4711\r\n\r\n", "in chunk size"),
    "no second chunk": (CHUNKED + b"1\r\n{\r\nzz\r\n", "in chunk size"),
    "two lengths": (POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}", "Duplicate Content-Length"),
    "two ends": (POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "Content-Length"),
    "blank before colon": (POST + b"Content-Length : 2\r\n\r\n{}", "Invalid header field char"),
    "other coding": (POST + b"Transfer-Encoding: chunked, identity\r\n\r\n1\r\n{\r\n0\r\n\r\n", "HTTP/1.1"),
    "expectation": (POST + b"Expect: miracles\r\nContent-Length: 2\r\n\r\n{}", "Expect but 100-continue"),
    "expectation of no route": (b"GET /nowhere HTTP/1.1\r\n" + HOST + b"Expect: miracles\r\n\r\n", "Expect but 100-continue"),
}


@pytest.mark.parametrize("what", NO_HTTP)
async def test_what_is_no_http_is_refused_as_everything_else_is(service: Service, what: str) -> None:
    """aiohttp answered these itself, in plain text with a copy of what came. The connection ends behind the one answer, so nothing that was
    smuggled behind is read as a request; others are served."""
    sent, sentence = NO_HTTP[what]
    answer = await raw(service, sent + b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n", until_closed=True)
    start, _, body = answer.partition(b"\r\n\r\n")
    refusal = orjson.loads(body)  # one answer, and nothing behind it
    health = await service.client.get("/healthz")

    expected = (417, "refused") if what.startswith("expectation") else (400, "not_http")
    assert (code_of(answer), refusal["error"]) == expected
    assert set(refusal) == {"detail", "error"}
    assert sentence in refusal["detail"]
    assert b"application/json" in start
    assert b"secret-4711" not in answer
    assert len(answer) < 1024
    assert health.status == 200


async def test_heads_and_bodies_that_do_not_come_to_their_end(queue: QueueSettings, tmp_path: Path) -> None:
    """Also on a connection that has carried a request before, and on one that sends nothing."""
    async with gateway(queue, tmp_path, body_s=0.2, head_s=0.2) as service:
        body = await raw(service, head("/jobs", "Content-Length: 100"), b"{")
        first_head, silence = await raw(service, b"POST /jobs HT"), await raw(service)
        second_head = await both(service, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"GET /hea")

    assert [code_of(answer) for answer in (body, first_head, silence)] == [408, 408, 408]
    assert b'"error":"slow_body"' in body
    assert [code_of(answer) for answer in second_head] == [200, 408]


async def both(service: Service, first: bytes, second: bytes) -> tuple[bytes, bytes]:
    """The answers to two requests on one connection, the second sent when the first is answered."""
    where = urlsplit(service.url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    writer.write(first)
    answers = [await asyncio.wait_for(reader.read(4096), 10)]
    writer.write(second)
    answers.append(await asyncio.wait_for(reader.read(4096), 10))
    writer.close()
    return answers[0], answers[1]


async def test_a_thousand_idle_connections_keep_nobody_out(queue: QueueSettings, tmp_path: Path) -> None:
    """Among them a client is served; beyond the bound one is told so; those that are served stay, and what is closed makes room."""
    async with gateway(queue, tmp_path, max_connections=1010, head_s=60.0) as service:
        client = service.client
        await client.get("/healthz")  # this connection stands
        where = urlsplit(service.url)
        idle = await asyncio.gather(*(asyncio.open_connection(where.hostname, where.port) for _ in range(1000)))
        among = await client.get("/healthz")
        more = await asyncio.gather(*(asyncio.open_connection(where.hostname, where.port) for _ in range(20)))
        told = [await asyncio.wait_for(reader.read(4096), 10) for reader, _ in more[-5:]]
        told += [await raw(service, head("/jobs", "Content-Length: 2"), b"{}") for _ in range(3)]  # who sends at once is told, too
        after = await client.get("/healthz")
        for _, writer in (*idle, *more):
            writer.close()
        await wait_until(lambda: made_room(service), "new connections are taken again")

    assert (among.status, after.status) == (200, 200)
    assert {code_of(one) for one in told} == {503}
    assert b"1010 connections are open" in told[0]


async def made_room(service: Service) -> bool:
    return code_of(await raw(service, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")) == 200


async def test_a_reader_of_events_that_never_reads_is_cut_off(
    queue: QueueSettings, tmp_path: Path, client: AsyncClient, keys: Keys
) -> None:
    """Its buffers fill; then its time is over and its place is free. Meanwhile one reader more than may be is told so."""
    path = tmp_path / "gw.sock"
    async with gateway(queue, tmp_path, write_s=0.5, max_streams=1, socket=path) as service:
        for number in range(60):  # more than the buffers of a connection hold
            ended = {"kind": "job", "job": f"{RUN}.j-{number}", "run": RUN, "task": "math", "out": "ok", "why": "x" * 20_000}
            await ask(client, "XADD", keys.results(RUN), "*", *(part for pair in ended.items() for part in pair))
        await ask(client, "EXPIRE", keys.results(RUN), 60)
        reader, writer = await asyncio.open_unix_connection(str(path), limit=64)
        writer.write(b"GET /events?from=0 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")

        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session:

            async def status() -> int:
                async with session.get("http://gateway/events") as stream:
                    return stream.status

            async def is_taken() -> bool:
                return await status() == 503

            async def is_free() -> bool:
                return await status() == 200

            await wait_until(is_taken, "the one place is taken")
            await wait_until(is_free, "it is free again")
            async with session.get("http://gateway/healthz") as health:
                assert health.status == 200
        assert not service.task.done()
        assert not reader.at_eof()  # it has not read what it was sent
        writer.close()

"""A server that is broken, or lies: every answer ends as one of our errors, and costs no more memory than an answer may."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from pipeline.engines.errors import InvalidResponse, Refused, Retryable
from pipeline.engines.exchange import LONGEST_RETRY_AFTER_S, MAX_LOOK_BYTES, Exchange

BOUND = 1024 * 1024


async def endless(request: web.Request) -> web.StreamResponse:
    """Never stops by itself."""
    response = web.StreamResponse()
    await response.prepare(request)
    try:
        while True:
            await response.write(b" " * 65_536)
    except ConnectionResetError:
        return response


async def packed(_: web.Request) -> web.Response:
    return web.Response(body=gzip.compress(b"[" + b" " * (64 * BOUND) + b"]"), headers={"content-encoding": "gzip"})


async def long(_: web.Request) -> web.Response:
    return web.Response(text="x" * (MAX_LOOK_BYTES + 1))


async def elsewhere(_: web.Request) -> web.Response:
    raise web.HTTPTemporaryRedirect("/taken")


async def taken(_: web.Request) -> web.Response:
    return web.json_response({"stolen": True})


async def busy_for_ever(_: web.Request) -> web.Response:
    return web.Response(status=503, headers={"retry-after": "9" * 400})


@pytest.fixture
async def exchange() -> AsyncIterator[Exchange]:
    """Connections to a server with these routes."""
    app = web.Application()
    for route in (endless, packed, elsewhere, taken, busy_for_ever):
        app.router.add_route("*", f"/{route.__name__}", route)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    exchange = Exchange(f"http://{host}:{port}", "a key", max_answer_bytes=BOUND)
    exchange.open()
    yield exchange
    await exchange.close()
    await runner.cleanup()


async def test_an_answer_without_end_is_cut_off(exchange: Exchange) -> None:
    """It was read whole before it was looked at: a server that lost its mind took the worker's memory, and every job of it, along."""
    with pytest.raises(InvalidResponse, match="too_long"):
        await exchange.get("/endless")


async def test_what_a_look_reads_is_short() -> None:
    """A metrics page of 50 MB kept each worker that looked for seconds, so that the leases of its own jobs ran out meanwhile."""
    app = web.Application()
    app.router.add_get("/long", long)
    app.router.add_post("/long", long)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        async with Exchange(f"http://{host}:{port}") as exchange:
            with pytest.raises(InvalidResponse, match="too_long"):
                await exchange.get("/long", parse=False)
            assert len(str(await exchange.post("/long", parse=False))) == MAX_LOOK_BYTES + 1, "tokens may be more"
    finally:
        await runner.cleanup()


async def test_a_packed_answer_is_not_unpacked(exchange: Exchange) -> None:
    """64 MiB in some kilobytes."""
    with pytest.raises(InvalidResponse, match="json"):
        await exchange.get("/packed")


async def test_a_redirect_is_not_followed(exchange: Exchange) -> None:
    """Prompts and the key would have gone wherever the server said."""
    with pytest.raises(Refused) as refused:
        await exchange.post("/elsewhere", {"prompt": "secret"})

    assert refused.value.status == 307


async def test_a_pause_without_end_is_shortened(exchange: Exchange) -> None:
    with pytest.raises(Retryable) as busy:
        await exchange.get("/busy_for_ever")

    assert busy.value.retry_after_s == LONGEST_RETRY_AFTER_S

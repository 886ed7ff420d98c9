"""An echo that is exact is compared as it came; any other is read, so that the difference can be named."""

from __future__ import annotations

import json

import orjson
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engines.exchange import SAME, Exchange, _without_echo

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=30)
NAME = "prompt_token_ids"


@given(IDS, IDS, st.booleans())
def test_only_an_exact_echo_is_taken_out(sent: list[int], echoed: list[int], compact: bool) -> None:
    answer = {"text": f'"{NAME}":{sent}', "before": sent, NAME: echoed, "after": [1]}
    content = orjson.dumps(answer) if compact else json.dumps(answer).encode()

    read = orjson.loads(_without_echo(content, NAME, orjson.dumps(sent)))

    assert read[NAME] == (SAME if compact and echoed == sent else echoed)
    assert {name: value for name, value in read.items() if name != NAME} == {"text": answer["text"], "before": sent, "after": [1]}


@given(IDS)
def test_an_echo_that_goes_on_or_stops_early_is_another(sent: list[int]) -> None:
    for echoed in ([*sent, 7], sent[:-1] if sent else [0], [*sent[:-1], 3_000_000_001]):
        assert orjson.loads(_without_echo(orjson.dumps({NAME: echoed}), NAME, orjson.dumps(sent)))[NAME] == echoed


async def test_over_http_what_a_server_repeats_comes_as_the_same(unused_tcp_port: int) -> None:
    async def repeat(request: web.Request) -> web.Response:
        ids = orjson.loads(await request.read())["ids"]
        return web.Response(body=orjson.dumps({"choices": [{NAME: ids}], "other": ids}))

    app = web.Application()
    app.router.add_post("/repeat", repeat)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()
    try:
        async with Exchange(f"http://127.0.0.1:{unused_tcp_port}") as http:
            same = await http.post("/repeat", {"ids": [5, 6]}, echo=(NAME, (5, 6)))
            other = await http.post("/repeat", {"ids": [5, 6]}, echo=(NAME, [5]))
    finally:
        await runner.cleanup()

    assert same == {"choices": [{NAME: SAME}], "other": [5, 6]}
    assert other == {"choices": [{NAME: [5, 6]}], "other": [5, 6]}

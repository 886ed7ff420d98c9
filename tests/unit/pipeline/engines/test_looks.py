"""A look at a server costs little: it happens each second at each server, from somewhere in the fleet."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from pipeline.engines import Exchange, InvalidResponse, SglangControl, Unsupported, VllmControl, connect_control, engine_kind
from pipeline.engines.metrics import samples_of

PAGE = """# HELP vllm:num_requests_running Number of requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m{}"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_running_by_reason{engine="0"} 9.0
vllm:num_requests_waiting{engine="0"} 2.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:e2e_request_latency_seconds_bucket{le="+Inf"} 12.0
vllm:generation_tokens_total NaN
process_start_time_seconds 1.79603e+09
"""


@dataclass
class Plain:
    """A server that answers what it is given and counts what it is asked."""

    answers: dict[str, object]
    asked: Counter[str] = field(default_factory=Counter)
    url: str = ""

    async def answer(self, request: web.Request) -> web.Response:
        """JSON for what is no text; a number is a status; 404 for what it was not given."""
        self.asked[request.path] += 1
        match self.answers.get(request.path):
            case None:
                raise web.HTTPNotFound
            case int(status):
                return web.Response(status=status)
            case str(text):
                return web.Response(text=text)
            case other:
                return web.json_response(other)


@pytest.fixture
async def plain() -> AsyncIterator[Plain]:
    """Made by the test: what it answers."""
    server = Plain({})
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield server
    await runner.cleanup()


def test_a_page_of_metrics_is_read_by_name_and_label() -> None:
    names = ("vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:generation_tokens_total", "vllm:nothing")

    samples = samples_of(PAGE, names)

    assert samples == {
        "vllm:num_requests_running": [3.0, 4.0],
        "vllm:kv_cache_usage_perc": [0.25, 0.75],
        "vllm:generation_tokens_total": [],
        "vllm:nothing": [],
    }
    assert samples_of({"no": "page"}, ("a",)) == {"a": []}


async def test_a_look_at_vllm_adds_its_engines_up_and_takes_the_fullest_cache(plain: Plain) -> None:
    plain.answers = {"/health": "", "/metrics": PAGE, "/is_paused": {"is_paused": True}, "/weight_info": {"weight_version": "r/1.2"}}
    async with Exchange(plain.url) as http:
        health = await VllmControl(http).health()

    assert (health.running, health.waiting, health.kv_used, health.started) == (7, 2, 0.75, "1796030000.000")
    assert (health.alive, health.paused, health.version, health.kind) == (True, True, "r/1.2", "vllm")
    assert sum(plain.asked.values()) == 4


async def test_routes_that_are_not_there_are_not_asked_for_each_time(plain: Plain) -> None:
    plain.answers = {"/health": "", "/metrics": PAGE}
    async with Exchange(plain.url) as http:
        control = VllmControl(http)
        looks = [await control.health() for _ in range(5)]

    assert all(look.alive for look in looks)
    assert plain.asked == {"/health": 5, "/metrics": 5, "/is_paused": 1, "/weight_info": 1}


async def test_a_look_at_sglang_never_takes_its_health_route(plain: Plain) -> None:
    """That one samples a token, takes a second at least and fails while the server is paused."""
    plain.answers = {
        "/model_info": {"model_path": "/m", "weight_version": "r/1.2"},
        "/ready": 503,
        "/v1/loads": {
            "loads": [{"num_running_reqs": 3, "num_waiting_reqs": 1, "token_usage": 0.5}, {"num_running_reqs": 4, "token_usage": 0.7}]
        },
    }
    async with Exchange(plain.url) as http:
        control = SglangControl(http)
        health = [await control.health() for _ in range(5)][-1]

    assert (health.alive, health.paused, health.version, health.running, health.waiting, health.kv_used) == (True, True, "r/1.2", 7, 1, 0.7)
    assert plain.asked == {"/model_info": 5, "/ready": 5, "/v1/loads": 5, "/server_info": plain.asked["/server_info"]}
    assert plain.asked["/server_info"] <= 2  # over new connections only


async def test_an_older_sglang_is_looked_at_by_what_it_has(plain: Plain) -> None:
    page = 'sglang:num_running_reqs{tp_rank="0"} 2.0\nsglang:num_queue_reqs{tp_rank="0"} 1.0\nsglang:token_usage{tp_rank="0"} 0.1\n'
    plain.answers = {"/get_model_info": {"model_path": "/m"}, "/metrics": page}
    async with Exchange(plain.url) as http:
        control = connect_control(http)
        health = await control.health()
        again = await control.health()
        with pytest.raises(Unsupported, match="keep calls in flight"):
            await control.pause("keep")  # it has a pause that takes no mode, and aborts

    assert health == again
    assert (health.alive, health.kind, health.version, health.running, health.waiting, health.kv_used) == (True, "sglang", "", 2, 1, 0.1)
    assert plain.asked["/pause_generation"] == 0


async def test_a_server_that_says_little_is_looked_at_all_the_same(plain: Plain) -> None:
    plain.answers = {"/model_info": {"model_path": "/m", "weight_version": "default"}}
    async with Exchange(plain.url) as http:
        health = await SglangControl(http).health()

    assert (health.alive, health.running, health.kv_used) == (True, 0, -1.0)


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ({"/version": {"version": "0.32.0"}, "/v1/models": {"data": []}}, "vllm"),
        ({"/v1/models": {"data": []}}, "vllm"),
        ({"/model_info": {"model_path": "/m"}, "/v1/models": {"data": []}}, "sglang"),
        ({"/get_model_info": {"model_path": "/m"}, "/v1/models": {"data": []}}, "sglang"),
    ],
)
async def test_the_kind_is_found_by_asking(plain: Plain, answers: dict[str, object], kind: str) -> None:
    plain.answers = answers
    async with Exchange(plain.url) as http:
        assert await engine_kind(http) == kind


@pytest.mark.parametrize(
    "answers", [{}, {"/version": {"app": "1"}}, {"/version": "<html>", "/model_info": "<html>", "/v1/models": "<html>"}]
)
async def test_what_is_no_engine_is_told(plain: Plain, answers: dict[str, object]) -> None:
    plain.answers = answers
    async with Exchange(plain.url) as http:
        with pytest.raises(InvalidResponse):
            await engine_kind(http)
        health = await connect_control(http).health()

    assert (health.alive, bool(health.detail)) == (False, True)

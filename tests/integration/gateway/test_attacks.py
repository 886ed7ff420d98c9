"""What somebody tries who wants in, wants others out, or wants to read what is not his: with paths, bodies, ids and open streams."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from pipeline.settings import QueueSettings
from pipeline.testing import wait_until
from tests.integration.gateway.service import Service, code_of, gateway, raw, read_text
from tests.secret_words import a_secret

pytestmark = pytest.mark.one_server

READ, TRAINER = a_secret("read"), a_secret("trainer")


def request(method: str, path: str, *lines: str, body: bytes = b"") -> bytes:
    """A request as it is written, with its path as it is."""
    length = (f"Content-Length: {len(body)}",) if body else ()
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close", *length, *lines, "", "")).encode() + body


PATHS = [
    *("/start", "/%73tart", "/st%61rt", "//start", "/./start", "/x/../start", "/jobs/../start", "/jobs/%2e%2e/start", "/start/", "/START"),
    *("/start;x", "/start%00", "/start%3F", "/start?role=trainer", "http://127.0.0.1/start", "http://other.example/start"),
]


async def test_no_spelling_of_a_path_goes_round_its_role(queue: QueueSettings, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a role may is looked up by the route that is called. A token is in no log, wherever a client puts it."""
    files = {}
    for role, token in (("read", READ), ("trainer", TRAINER)):
        files[f"{role}_token_file"] = tmp_path / role
        files[f"{role}_token_file"].write_text(token + "\n")
        files[f"{role}_token_file"].chmod(0o600)
    async with gateway(queue, tmp_path, **files) as service:
        codes = {path: code_of(await raw(service, request("POST", path, f"Authorization: Bearer {READ}"))) for path in PATHS}
        twice = code_of(await raw(service, request("POST", "/start", f"Authorization: Bearer {READ}", f"Authorization: Bearer {TRAINER}")))
        elsewhere = [
            await raw(service, request("GET", f"/steps?token={TRAINER}")),
            await raw(service, request("GET", f"/jobs/{TRAINER}", f"X-Token: {TRAINER}")),
            await raw(service, request("GET", f"/{TRAINER}", f"Authorization: {TRAINER}")),
            await raw(service, b"GET /%s HTTP/x\r\nAuthorization: Bearer %s\r\n\r\n" % (TRAINER.encode(), TRAINER.encode())),
        ]
        headers = {"Authorization": f"Bearer {READ}"}
        async with service.client.session.get(service.url + "/metrics", headers=headers) as answer:
            metrics = await answer.text()
    written = capsys.readouterr()

    assert set(codes.values()) <= {400, 403, 404, 405}, codes
    assert twice in (400, 403)
    assert [code_of(one) for one in elsewhere] == [401, 401, 401, 400]
    assert 'what="is_started"} 0.0' in metrics
    assert TRAINER not in written.out + written.err


async def test_a_body_is_never_read_as_the_next_request(service: Service) -> None:
    """Neither one that nobody read because its request was refused, nor one that a route has no use for: where it was not read the
    connection ends, and only behind one that was comes the next request."""
    hidden = b"POST /start HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    answers = []
    for method, path in (("POST", "/nowhere"), ("PUT", "/jobs"), ("POST", "/jobs"), ("GET", "/healthz"), ("GET", "/steps")):
        first = request(method, path, body=hidden).replace(b"Connection: close", b"Connection: keep-alive")
        answers.append(await raw(service, first + request("GET", "/healthz"), until_closed=True))
    metrics = await read_text(service, "/metrics")

    assert [answer.count(b"HTTP/1.1 ") for answer in answers] == [1, 1, 2, 1, 1]
    assert [code_of(answer) for answer in answers] == [404, 405, 415, 200, 200]
    assert 'what="is_started"} 0.0' in metrics


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (b"[" * 900 + b"12345678901234567890" + b"]" * 900, 422),
        (b"[" * 100_000 + b"]" * 100_000, 400),
        (b'{"a":' * 900 + b"1" + b"}" * 900, 422),
        (b'"\\ud800"', 400),
        (b"9" * 5000, 400),
        (b"1e999999", 400),
        (b"-" * 1000, 400),
    ],
    ids=["deep and long", "deeper", "maps", "half a character", "digits", "exponent", "signs"],
)  # fmt: skip
async def test_values_that_break_readers_are_refused(service: Service, value: bytes, code: int) -> None:
    """Two readers see some of them, the second of which counts its depth by itself."""
    body = b'{"task": "math", "prompt": {"question": ' + value + b"}}"
    answers = [
        code_of(await raw(service, request("POST", path, "Content-Type: application/json", body=sent)))
        for path, sent in (
            ("/jobs", body),
            ("/prompts", b'{"prompts": [{"id": "a", "data": ' + body + b"}]}"),
        )
    ]

    assert answers == [code, code]
    assert (await service.client.get("/healthz")).status == 200


NAMES = ["%ED%A0%80", "%FF%FE", "%00", "%E2%80%AE%0d%0a", "%F0%9F%92%A9" * 40, "..%2f..", "gate.x", "a" * 513, "%u0041", "%", "x.0.1"]


@pytest.mark.parametrize("name", NAMES)
async def test_a_name_of_a_job_may_be_any_text(service: Service, name: str) -> None:
    """Half characters, bytes that are no text, controls, what turns text around, broken escapes: nobody knows such a job, and says so."""
    answers = [
        await raw(service, request(method, f"/jobs/{name}{tail}"), until_closed=True)
        for method, tail in (("GET", ""), ("GET", "/trajectory"), ("DELETE", ""), ("PUT", ""))
    ]

    assert [code_of(answer) for answer in answers] in ([404, 404, 404, 405], [422, 422, 422, 405])
    assert all(b'"error":"' in answer for answer in answers)


async def test_streams_that_many_open_are_bounded_and_cost_nobody_else(queue: QueueSettings, tmp_path: Path) -> None:
    """Of 300 at once three are given; the others are told; when the three end there is room again, and nothing is left of any."""
    async with gateway(queue, tmp_path, max_streams=3) as service:
        url, connector = service.url + "/events", aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            opened = await asyncio.gather(*(session.get(url) for _ in range(300)))
            among = await service.client.get("/healthz")
            statuses = sorted(stream.status for stream in opened)
            for stream in opened:
                stream.close()

        async def none_is_left() -> bool:
            return 'what="event_readers"} 0.0' in await read_text(service, "/metrics")

        await wait_until(none_is_left, "their places are free")
        async with service.client.session.get(url) as stream:
            again = stream.status

    assert statuses == [200] * 3 + [503] * 297
    assert (among.status, again) == (200, 200)

"""What somebody met who used the gateway from its pages alone, and one who meant harm with requests that look like others."""

from __future__ import annotations

from io import BytesIO
from urllib.parse import quote

import orjson
import pytest
from yarl import URL

from pipeline.scripts import Scripts
from pipeline.supervisor.loop import Supervisor
from tests.integration.gateway.service import Service, instance
from tests.integration.trainer_client.conftest import pump, supervisor
from tests.integration.trainer_client.pump import Pump, pumping

pytestmark = pytest.mark.one_server
__all__ = ["pump", "supervisor"]  # fixtures of the trainer client's tests

STEP = {"task": "math", "groups": 1, "n": 2, "ahead": 0}


async def test_prompts_that_come_after_the_end_take_it_back(service: Service, pump: Pump, supervisor: Supervisor) -> None:
    """The end of the prompts was the answer for ever after: who fed more and asked again was told that they had ended."""
    client = service.client
    await client.post("/prompts", {"end": True})
    ended, again = await client.post("/steps?wait_s=10", STEP), await client.post("/steps?wait_s=10", STEP)
    await client.post("/prompts", {"prompts": [{"id": f"e0-{number}", "data": {"question": "1", "answer": "2"}} for number in range(4)]})
    step = await client.post("/steps?wait_s=20", STEP)

    assert (ended.status, ended.body["state"], ended.body["index"]) == (200, "ended", 1)
    assert again.body == ended.body  # and it asked for no further step
    assert (step.status, step.body["state"], step.body["index"]) == (200, "complete", 2)


async def test_a_job_is_found_under_the_name_that_its_client_gave_it(service: Service, scripts: Scripts) -> None:
    """Any text may be a `job_id`; `/jobs/` takes the same text, written as paths are. Names of instances have dots."""
    client, session = service.client, service.client.session
    await client.post("/add_llm_server", {"address": "http://127.0.0.1:9/v1"})
    await client.post("/start")
    names = ["django__django-1.2", "../é x/\0", "plain"]

    async def found(name: str) -> tuple[int, str]:
        async with session.get(URL(f"{service.url}/jobs/{quote(name, safe='')}", encoded=True)) as answer:
            return answer.status, orjson.loads(await answer.read()).get("state", "")

    async with pumping(Pump(scripts)):
        ended = [await client.post("/process", {"job_id": name, "instance": instance()}) for name in names]
    seen = [await found(name) for name in names]
    unknown = await client.get("/jobs/another__name-1.3")

    assert [answer.body["job_id"] for answer in ended] == names
    assert seen == [(200, "done")] * 3
    assert (unknown.status, unknown.body["detail"].split(":")[0]) == (404, "no job 'another__name-1.3'")


async def test_few_bytes_do_not_become_many_values(service: Service) -> None:
    """Sixteen million bytes of empty lists held the gateway up for ten seconds and took 800 MB; commas in texts are no values."""
    client, session = service.client, service.client.session

    async def sent(prompt: bytes) -> int:
        body = b'{"task": "math", "prompt": {"question": ' + prompt + b"}}"
        async with session.post(service.url + "/jobs", data=BytesIO(body), headers={"Content-Type": "application/json"}) as answer:
            return answer.status

    lists, pairs = await sent(b"[" + b"[]," * 250_000 + b"1]"), await sent(b"{" + b'"a":1,' * 250_000 + b'"b":1}')
    text = await sent(b'"' + b'\\",' * 250_000 + b'"')

    assert (lists, pairs, text) == (413, 413, 202)
    assert (await client.get("/healthz")).status == 200


async def test_requests_that_pages_of_other_sites_cause_are_refused(service: Service) -> None:
    """Another port of this machine is another site, too; an image or a link sends no origin, and would count as a delivery."""
    client = service.client
    headers = [{"Origin": "http://127.0.0.1:9"}, {"Origin": "http://localhost"}, {"Sec-Fetch-Site": "cross-site"}]
    refused = [await client.post("/start", headers=one) for one in headers]
    own = [await client.get("/steps", headers=one) for one in ({"Origin": service.url}, {"Sec-Fetch-Site": "none"})]

    assert [(answer.status, answer.body["error"]) for answer in refused] == [(403, "foreign_origin")] * 3
    assert [answer.status for answer in own] == [200, 200]


async def test_what_cannot_be_is_said_before_anything_is_done(service: Service) -> None:
    """A position beyond all entries broke a stream with a second answer in it; an index beyond all steps could be acknowledged, and with
    it the whole run; an address with a password stood in the log."""
    client = service.client
    positions = ["18446744073709551615-0", "1-99999999999999999999", "\u0661-\u0661"]
    events = [await client.get("/events", params={"from": position}) for position in positions]
    far = await client.post("/steps?index=9007199254740992", STEP)
    addresses = ["http://user:hunter22@h:1", "http://h:99999", "unix:here.sock", "http://h\0", "http://[::1", "http://h/?key=1"]
    servers = [await client.post("/add_llm_server", {"address": address}) for address in addresses]
    cleared = await client.post("/clear_llm_server")

    assert [answer.status for answer in (*events, far, *servers)] == [422] * 10
    assert "hunter22" not in str(servers[0].body)
    assert cleared.body["addresses"] == []

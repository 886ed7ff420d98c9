"""Who gets in: roles by their tokens, nobody without one, no web page, and no gateway for others without tokens."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from pipeline.errors import InvalidRequest
from pipeline.settings import QueueSettings
from tests.integration.gateway.service import RUN, Answer, Service, gateway, read_text
from tests.secret_words import a_secret
from trainer_client import connect

pytestmark = pytest.mark.one_server

TOKENS = {role: a_secret(role) for role in ("trainer", "ops", "read")}


def write_tokens(folder: Path) -> dict[str, Path]:
    files = {}
    for role, token in TOKENS.items():
        path = folder / f"{role}.token"
        path.write_text(f"# {role}\n{token}\n")
        path.chmod(0o600)
        files[f"{role}_token_file"] = path
    return files


def change(path: Path, text: str | None) -> None:
    """Writes another text, or removes the file."""
    if text is None:
        path.unlink()
    else:
        path.write_text(text)


async def test_each_role_may_what_it_may_and_tokens_are_changed_without_a_restart(
    queue: QueueSettings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = write_tokens(tmp_path)
    calls = (("GET", "/steps"), ("POST", "/start"), ("POST", "/jobs"))
    async with gateway(queue, tmp_path, **files) as service:
        client = service.client

        async def codes(authorization: str | None) -> list[int]:
            headers = {"Authorization": authorization} if authorization else {}
            return [(await client.call(method, path, {} if path == "/jobs" else None, headers=headers)).status for method, path in calls]

        found = {role: await codes(f"Bearer {token}") for role, token in TOKENS.items()}
        found["basic"] = await codes("Basic " + base64.b64encode(f"anybody:{TOKENS['trainer']}".encode()).decode())
        found["nobody"], found["wrong"], found["broken"] = (
            await codes(None),
            await codes("Bearer trainer-0123456789abcdeg"),
            await codes("Basic %%%"),
        )
        health = await client.get("/healthz")
        told = await client.post("/jobs", {}, headers={"Authorization": f"Bearer {TOKENS['read']}"})
        change(files["read_token_file"], "another-0123456789abcdef\n")
        found["old"], found["new"] = await codes(f"Bearer {TOKENS['read']}"), await codes("Bearer another-0123456789abcdef")
        change(files["read_token_file"], None)
        found["lost"] = await codes("Bearer another-0123456789abcdef")

    assert found == {
        "read": [200, 403, 403],
        "ops": [200, 400, 403],  # started already
        "trainer": [200, 200, 422],
        "basic": [200, 400, 422],
        "nobody": [401] * 3,
        "wrong": [401] * 3,
        "broken": [401] * 3,
        "old": [401] * 3,
        "new": [200, 403, 403],
        "lost": [401] * 3,
    }
    assert health.status == 200
    assert told.body["detail"] == "a token of the role 'read' may not do this: it takes one of 'trainer'"
    written = capsys.readouterr()
    assert not any(token in written.out + written.err + str(told) for token in TOKENS.values())


async def test_a_web_page_that_reaches_loopback_gets_nothing_done(service: Service) -> None:
    """A page can send a form to loopback, or come by a name of its own that leads there; it cannot send JSON without being asked first."""
    client, session = service.client, service.client.session
    by_name = await client.post("/start", headers={"Host": "evil.example:8006"})
    by_origin = await client.post("/start", headers={"Origin": "https://evil.example"})
    own = await client.get("/steps", headers={"Origin": service.url})
    async with session.post(service.url + "/jobs", data=b'{"task": "math"}', headers={"Content-Type": "text/plain"}) as form:
        form_status = form.status
    page = await read_text(service, "/docs")
    document = (await client.get("/openapi.json")).body

    assert (by_name.status, by_name.body["error"]) == (403, "foreign_host")
    assert (by_origin.status, by_origin.body["error"]) == (403, "foreign_origin")
    assert (own.status, form_status) == (200, 415)
    assert "http" not in page.replace("https://", "").split("</style>")[1] or "src=" not in page
    assert {"/process", "/jobs/{id}/trajectory", "/steps/{index}/ack"} <= set(document["paths"])
    assert set(document["components"]["schemas"]) >= {"ProcessRequest", "JobRequest", "StepRequest", "SamplingRequest", "Refusal"}


async def test_clients_name_model_servers_of_this_machine_and_of_the_hosts_in_the_settings(queue: QueueSettings, tmp_path: Path) -> None:
    """The role `ops` could send the fleet's prompts and the servers' key to any host, and its workers into any network. What the run has
    already, from whoever may reach Redis, may be named again."""
    files = write_tokens(tmp_path)
    async with connect(queue, run=RUN) as run:
        await run.servers.attach("http://given.example:8000")
    async with gateway(queue, tmp_path, model_hosts=("10.1.0.0/16",), **files) as service:

        async def named(role: str, address: str) -> Answer:
            headers = {"Authorization": f"Bearer {TOKENS[role]}"}
            return await service.client.post("/add_llm_server", {"address": address}, headers=headers)

        taken = [await named("ops", one) for one in ("http://127.0.0.1:8000/v1", "http://10.1.2.3:8000", "http://given.example:8000")]
        refused = [await named(role, "http://collector.example:8000") for role in ("ops", "trainer")]
        metadata = await named("ops", "http://169.254.169.254/v1")
        cleared = await service.client.post("/clear_llm_server", headers={"Authorization": f"Bearer {TOKENS['ops']}"})

    assert [answer.status for answer in taken] == [200, 200, 200]
    assert [(one.status, one.body["error"], one.body["field"]) for one in (*refused, metadata)] == [
        (422, "host_not_allowed", "address")
    ] * 3
    assert "gateway.model_hosts, got 'http://collector.example:8000'" in refused[0].body["detail"]
    assert sorted(cleared.body["addresses"]) == ["http://10.1.2.3:8000", "http://127.0.0.1:8000", "http://given.example:8000"]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"host": "0.0.0.0"}, "trainer_token_file"),
        ({"trainer_token_file": "/nowhere/token"}, "cannot be read"),
        ({"trainer_token_file": "short"}, "at least 16 characters"),
        ({"trainer_token_file": "empty"}, "found none"),
    ],
)
async def test_settings_that_let_anybody_in_are_refused_before_the_run_is_taken(
    queue: QueueSettings, tmp_path: Path, fields: dict[str, object], sentence: str
) -> None:
    (tmp_path / "short").write_text("secret\n")
    (tmp_path / "empty").write_text("# none\n")
    fields = {name: tmp_path / str(value) if value in ("short", "empty") else value for name, value in fields.items()}

    with pytest.raises(InvalidRequest, match=sentence):
        async with gateway(queue, tmp_path, **fields):
            pass


async def test_a_socket_is_its_owner_s_and_an_address_in_use_is_said(queue: QueueSettings, tmp_path: Path) -> None:
    path = tmp_path / "gw.sock"
    async with gateway(queue, tmp_path, socket=path) as service:
        mode = path.stat().st_mode & 0o777
        with pytest.raises(InvalidRequest, match="another process listens there"):
            async with gateway(queue, tmp_path, socket=path, run="other"):
                pass
    left = path.exists()

    assert (service.url, mode, left) == (f"unix:{path}", 0o600, False)

"""No password, token or key in a process list, an environment, a log, an error, a report, a sandbox or Redis; and nothing of what models
are asked, say and do in a log of level info (docs/adr/0033-logs-and-secrets.md). A whole installation is run, and what it left is searched.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager

import aiohttp
import orjson
import pytest
import redis

from ops.node.reading import NodeView, read_node
from pipeline.inference_pool import InferencePool, Server
from pipeline.messages import Outcome
from pipeline.redis_client import AsyncClient, command_client
from pipeline.testing import wait_in_thread, wait_until
from tests.integration.secrets.conftest import Asked, Said, Site
from tests.secret_words import files_with_secrets, masked, words_in
from trainer_client import JobRequest, LimitsRequest, connect
from workers.llm.scripted import PolicyOptions, Problem, ScriptedServer, ServerOptions
from workers.llm.scripted.acts import Act, ScriptedCall

pytestmark = [pytest.mark.timeout(400), pytest.mark.one_server, pytest.mark.slow]

START_S = 120.0
RUN = "discreet"
PROMPT, ANSWER, TOOL = "Zwiebelfisch asks", "Zwiebelfisch answers", "Zwiebelfisch prints"
LOOKS_AROUND = """
import glob, os, re
seen = "\\n".join(f"{name}={value}" for name, value in os.environ.items())
for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
    try:
        seen += open(path, errors="replace").read()
    except OSError:
        pass
print("%s" % "".join(("Zwiebelfisch", " prints")), re.findall("hu" "sh-[a-z-]+-[0-9a-f]{32}", seen), len(seen) > 1000)
"""


def model_of(site: Site) -> ScriptedServer:
    """It knows one problem, and looks around in its sandbox before it answers. Its key is one of the secrets."""
    script = (Act(say=ANSWER, calls=(ScriptedCall("python", {"code": LOOKS_AROUND}),)), Act(say=f"{ANSWER} \\boxed{{7}}"))
    options = ServerOptions(api_key=site.secret("model.key"), policy=PolicyOptions(all_right=1.0, all_wrong=0.0, bad_json_rate=0.0))
    return ScriptedServer(options, [Problem(f"{PROMPT}: what is 3 + 4?", "7", right=script)])


async def until_node(client: AsyncClient, site: Site, is_so: Callable[[NodeView], object], what: str) -> NodeView:
    found: NodeView | None = None

    async def holds() -> bool:
        nonlocal found
        found = await read_node(client, site.queue("ops"), "n1")
        return found is not None and bool(is_so(found))

    await wait_until(holds, what, timeout_s=START_S)
    assert found is not None
    return found


async def told(site: Site, name: str) -> dict[str, str]:
    """The line of JSON that a listener prints when it serves."""

    def line() -> str:
        return next((text for text in site.output(name).read_text().splitlines() if text.startswith("{")), "")

    await wait_until(lambda: bool(line()), f"{name} serves: {masked(site.output(name).read_text())}", timeout_s=START_S)
    found: dict[str, str] = orjson.loads(line())
    return found


async def ask_over_http(url: str, right: str) -> list[int]:
    """Status with the right token, with a wrong one, with none."""
    async with aiohttp.ClientSession() as session:
        found = []
        for headers in ({"Authorization": f"Bearer {right}"}, {"Authorization": "Bearer wrong-0123456789abcdef"}, {}):
            async with session.get(url, headers=headers) as response:
                said = await response.text()
                assert response.status < 500, said
                found.append(response.status)
        return found


async def run_jobs(site: Site, client: AsyncClient, model: ScriptedServer, names: str) -> None:
    """Three, which end well. Their sandboxes see nothing of what is secret."""
    prompt = {"question": f"{PROMPT}: what is 3 + 4?", "answer": "7"}
    limits = LimitsRequest(max_turns=4, max_sampled_tokens=2000)
    requests = [JobRequest(id=f"{names}-{number}", task="math", prompt=prompt, limits=limits) for number in range(3)]
    queue = site.queue("trainer")
    async with connect(queue, run=RUN) as run:
        await InferencePool(client, queue.namespace, lease_s=queue.lease_s).attach(RUN, [Server(model.url, model.options.model)])
        jobs = await run.submit(requests, wait_s=60.0)
        seen = []
        async for result in run.results(jobs, timeout_s=START_S):
            assert result.outcome is Outcome.OK, (result.outcome, result.reason)
            trajectory = await result.trajectory()
            text = str(trajectory)
            seen.append([word in text for word in (PROMPT, ANSWER, f"{TOOL} [] True")])
            assert not words_in(text)
    assert len(seen) == 3


def commands(site: Site) -> list[Asked]:
    """What people look with, also when it does not work."""
    site.secret("wrong.password")
    wrong = {"ROLLSTREAM_REDIS_PASSWORD_FILE": str(site.secrets / "wrong.password")}
    typed = site.secret("typed.password", may_be_in_environments=True)
    in_address = {
        "ROLLSTREAM_REDIS_URL": f"rediss://ops:{typed}@127.0.0.1:{site.port}",
        "ROLLSTREAM_REDIS_USER": "",
        "ROLLSTREAM_REDIS_PASSWORD_FILE": "",
    }
    as_ops = (
        *("status --json", "config show --origin", "top --once --json", "node show n1"),
        *(
            "node logs --level warning",
            f"run show {RUN} --json",
            f"job show {RUN}.p-0 --whole",
            f"queue peek results:{RUN} --bodies --json",
        ),
        *(f"llm list --run {RUN} --json", "dead list", "redis cli --own --json ACL WHOAMI"),
    )
    broken = ("status", "redis cli --own PING")
    return [
        *(Asked("ops", words) for words in as_ops),
        *(Asked("worker", words, wrong) for words in broken),
        *(Asked("ops", words, in_address) for words in ("config show --origin --json", "doctor --all")),
    ]


def redis_words(site: Site) -> set[str]:
    """Secrets in any key of Redis. Values are dumped without compression."""
    with redis.Redis.from_url(site.admin_url, username="admin", password="admin") as admin:
        admin.config_set("rdbcompression", "no")
        return {word for key in admin.scan_iter() for word in words_in(key + (admin.dump(key) or b""))}


async def test_nothing_secret_shows_anywhere_and_nothing_of_dialogues_in_logs(site: Site) -> None:
    (acl,) = site.run(Asked("ops", f"redis acl --folder {site.secrets}"))
    for line in acl.text.splitlines():
        site.administer("ACL", "SETUSER", *line.split(" ")[1:])
    tokens = {role: site.secret(f"{role}.token") for role in ("trainer", "ops", "read", "scrape")}
    files = {f"ROLLSTREAM_GATEWAY_{role.upper()}_TOKEN_FILE": str(site.secrets / f"{role}.token") for role in ("trainer", "ops", "read")}
    async with (
        model_of(site) as model,
        aclosing(command_client(site.queue("ops"))) as ops,
        aclosing(command_client(site.queue("trainer"))) as trainer,
    ):
        site.start(
            *("node", "node", "run", "--node", "n1", "--init", "1", "--run", "2", "--eval", "1", "--grace-s", "20"),
            user="worker",
            ROLLSTREAM_WORKER_MODEL_KEY_FILE=str(site.secrets / "model.key"),
            PYTHONFAULTHANDLER="1",
        )
        site.start("gateway", "gateway", "run", "--port", "0", "--json", user="trainer", **files)
        site.start("metrics", "metrics", "serve", "--port", "0", "--json", "--token-file", str(site.secrets / "scrape.token"), user="ops")
        view = await until_node(ops, site, lambda view: view.state == "up", "the node is up")

        await run_jobs(site, trainer, model, "p")
        with no_log(site):
            await run_jobs(site, trainer, model, "unlogged")
            os.kill(process_of(view, "eval-0"), signal.SIGKILL)
            await until_node(ops, site, lambda view: view.number("crashes") == 1 and process_of(view, "eval-0"), "it runs again")
        os.kill(process_of(view, "run-0"), signal.SIGSEGV)
        crashed = await until_node(ops, site, lambda view: view.number("crashes") == 2, "the crash of a worker is told")
        assert '  File "' in crashed.fields["crash.tail"]
        gateway, metrics = await told(site, "gateway"), await told(site, "metrics")
        assert await ask_over_http(gateway["url"] + "/steps", tokens["read"]) == [200, 401, 401]
        assert await ask_over_http(metrics["url"], tokens["scrape"]) == [200, 401, 401]
        await lock_out(site)
        said = site.run(*commands(site))
        assert [site.end(name) for name in ("gateway", "metrics", "node")] == [0, 0, 0], masked(site.output("node").read_text())

    complain(said)
    assert "there is a password in redis_url" in next(each.text for each in said if each.words == "doctor --all")
    warned = next(each.text for each in said if each.words == "node logs --level warning")
    assert re.search(r"warning n1 launcher  process_crashed .*\n    said:\n", warned)
    assert re.search(r'\|   File "', warned)
    assert files_with_secrets(site.folder, but=(site.secrets,)) == []
    assert redis_words(site) == set()
    logs = [*(site.folder / "scratch/logs").rglob("*.log*"), *(site.folder / "state/logs").rglob("*.log*"), *site.output("").glob("[!c]*")]
    assert "log_written_again" in (site.folder / "scratch/logs/n1/node.log").read_text()
    assert {"node.log", "warnings.log", "run-0.log", "node", "gateway"} <= {path.name for path in logs}
    assert [path for path in logs if "Zwiebelfisch" in path.read_text(errors="replace")] == []


@contextmanager
def no_log(site: Site) -> Iterator[None]:
    """The folder of the node's log is not there, and cannot be made. Work goes on, processes are started again, and it is told."""
    folder, output = site.folder / "scratch/logs/n1", site.output("node")
    away = folder.rename(folder.with_name("away"))
    folder.touch()
    yield
    wait_in_thread(lambda: "log_not_written" in output.read_text(), "it is told that there is no log")
    folder.unlink()
    away.rename(folder)
    wait_in_thread(lambda: "log_written " in output.read_text(), "it is told that there is a log again")


def process_of(view: NodeView, name: str) -> int:
    """Number of one that runs; 0 = none."""
    return next((each.pid for each in view.processes if each.name == name and each.state == "up"), 0)


async def lock_out(site: Site) -> None:
    """The password of the workers is changed under them, and changed back; their log tells of it."""
    right = site.secrets / "worker.password"
    word, log = right.read_text(), site.folder / "scratch/logs/n1/node.log"
    site.secret("worker.password")
    site.administer("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await wait_until(
        lambda: re.search(r"WRONGPASS|invalid username-password", log.read_text()), "the log tells of a wrong password", timeout_s=30
    )
    right.write_text(word)


def complain(said: list[Said]) -> None:
    """Commands that had a right password were answered, and those with a wrong one were told."""
    for each in said:
        assert each.text, each.words
        assert "Traceback" not in each.text, (each.words, masked(each.text))
        assert "Usage:" not in each.text, (each.words, each.text)

"""The commands that the README and the help name."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version

import orjson
import pytest
import redis
from typer.main import get_command
from typer.testing import CliRunner

from ops.cli.app import app
from pipeline.codec import encode
from pipeline.janitor import Janitor
from pipeline.keys import Keys
from pipeline.redis_client import command_client
from pipeline.scripts import Scripts
from pipeline.settings import QueueSettings
from pipeline.testing import PrivateServer, a_template, a_unit
from tests.e2e.conftest import ROOT, Command

STOPPED_IN_IMPORTS = """
import os, signal, sys

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == "ops.cli.app":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
from ops.cli import main
main()
"""


@pytest.mark.parametrize("words", [(), ("worker", "run")], ids=" ".join)
def test_a_command_explains_itself(command: Command, words: tuple[str, ...]) -> None:
    shown = command("ops.cli", *words, "--help")

    assert shown.returncode == 0, shown.stderr
    assert " ".join(("Usage: rollstream", *words)) in shown.stdout  # this is how `ops/launch` starts it


def test_all_commands_explain_themselves() -> None:
    """In this process: each of fifty would be imported for half a second again."""
    found = list(commands_of(get_command(app)))

    for words in found:
        shown = CliRunner().invoke(app, [*words, "--help"])
        assert shown.exit_code == 0, words
        assert " ".join(("rollstream", *words)) in shown.output

    assert {("trajectory", "check"), ("redis", "serve"), ("top",), ("bench",), ("llm", "drain")} < set(found)


def commands_of(command: object, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every noun and verb, by what one types."""
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands_of(inner, (*words, name))


def test_a_job_that_is_not_known_is_said_so(command: Command) -> None:
    shown = command("ops.cli", "job", "show", "nobody.e0-1.0.0")

    assert shown.returncode == 2
    assert "no job 'nobody.e0-1.0.0'" in shown.stderr
    assert "Traceback" not in shown.stderr


@pytest.mark.parametrize("noun", ["job", "run"])
def test_nobody_can_cancel_with_the_reason_of_the_janitor(command: Command, noun: str) -> None:
    """`run list` would say of such a run that its trainer is gone."""
    shown = command("ops.cli", noun, "cancel", "nobody", "--reason", "abandoned")

    assert shown.returncode == 2
    assert "must be one of redundant, stale, user, deadline, overload" in " ".join(shown.stderr.split())


def test_a_redis_that_is_not_there_is_said_so(command: Command, environment: dict[str, str]) -> None:
    environment["ROLLSTREAM_REDIS_URL"] = "unix:///nowhere/redis.sock"

    shown = command("ops.cli", "top", "--once")

    assert shown.returncode == 3
    assert "cannot be reached" in shown.stderr


@pytest.mark.parametrize(
    ("address", "said"), [("localhost:6379", "expected redis://host:port/0"), ("redis://host:port", "the port is no number")]
)
def test_an_address_of_redis_that_is_none_is_said_so(command: Command, environment: dict[str, str], address: str, said: str) -> None:
    environment["ROLLSTREAM_REDIS_URL"] = address

    shown = command("ops.cli", "top", "--once")

    assert (shown.returncode, "Traceback" in shown.stderr) == (2, False)
    assert "queue.redis_url: " in shown.stderr
    assert said in shown.stderr


def test_the_version_is_that_of_the_package(command: Command) -> None:
    assert command("ops.cli", "--version").stdout == f"rollstream {version('rollstream')}\n"


def test_ctrl_c_while_a_command_starts_shows_no_traceback(environment: dict[str, str]) -> None:
    """A second goes by in imports, more on a busy machine: that is when people notice that they mistyped."""
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED_IN_IMPORTS], cwd=ROOT, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    said, complained = process.communicate(timeout=60)

    assert (process.returncode, said, complained) == (130, "", "")


@pytest.mark.one_server
@pytest.mark.usefixtures("with_runs")
def test_what_is_not_there_is_said_and_ends_with_an_exit_code(command: Command) -> None:
    peeked = command("ops.cli", "queue", "peek", "dead")
    mistyped = command("ops.cli", "queue", "peek", "results")
    cancelled = command("ops.cli", "job", "cancel", "first.nobody")
    dropped = command("ops.cli", "llm", "drop", "http://127.0.0.1:1", "--run", "first")
    given = command("ops.cli", "llm", "add", "localhost:8000", "--run", "first")

    assert (peeked.returncode, peeked.stderr) == (1, "nothing in dead\n")
    assert (mistyped.returncode, "no stream 'results'; there are: init" in mistyped.stderr) == (2, True)
    assert (cancelled.returncode, "1 are not known" in cancelled.stdout) == (2, True)
    assert (dropped.returncode, "run first has no server http://127.0.0.1:1" in dropped.stderr) == (1, True)
    assert (given.returncode, "expected http://host:port or unix:/path.sock, got 'localhost:8000'" in given.stderr) == (2, True)


@pytest.mark.one_server
@pytest.mark.usefixtures("with_runs")
def test_servers_are_given_to_one_run_drained_and_cleared(command: Command) -> None:
    def llm(*words: str) -> tuple[int, str, str]:
        done = command("ops.cli", "llm", *words)
        return done.returncode, done.stdout, done.stderr

    assert llm("add", "http://127.0.0.1:1", "unix:/s", "--run", "first")[:2] == (0, "2 servers given to run first\n")
    code, _, said = llm("add", "unix:/s", "--run", "second")
    assert (code, "run first has it. Take it from there" in said) == (2, True)
    code, shown, _ = llm("drain", "unix:/s", "unix:/t", "--run", "first", "--json")
    assert (code, orjson.loads(shown)) == (1, {"run": "first", "done": ["unix:/s"], "unknown": ["unix:/t"]})
    code, shown, _ = llm("list", "--run", "first", "--json")
    assert code == 0
    assert [(server["url"], server["standing"]) for server in orjson.loads(shown)["servers"]] == [
        ("http://127.0.0.1:1", "up"),
        ("unix:/s", "draining"),
    ]
    assert "unix:/s is draining: it keeps 0 jobs" in llm("list", "--run", "first")[1]
    assert llm("clear", "--run", "first")[:2] == (0, "taken from run first: http://127.0.0.1:1, unix:/s\n")
    assert llm("list", "--run", "first")[0] == 1
    assert llm("clear", "--run", "first")[0] == 0, "again, as after a lost reply"


@pytest.mark.one_server
@pytest.mark.usefixtures("with_runs")
def test_a_line_into_a_file_is_not_cut_at_eighty_columns(command: Command, environment: dict[str, str]) -> None:
    del environment["COLUMNS"]

    shown = command("ops.cli", "run", "show", "second").stdout

    assert max(len(line) for line in shown.splitlines()) > 80


def test_a_benchmark_speaks_json(command: Command) -> None:
    shown = command("ops.cli", "bench", "codec", "--json")

    report = orjson.loads(shown.stdout)
    assert report["name"] == "codec"
    assert {"encode_ms", "decode_ms", "size_to_raw_ratio"} <= set(report["metrics"])


def test_the_prompt_speaks_to_the_embedded_server(command: Command) -> None:
    assert command("ops.cli", "top", "--once").returncode == 0  # makes the data folder

    shown = command("ops.cli", "redis", "cli", "--own", "PING")

    assert (shown.returncode, shown.stdout.strip()) == (0, "PONG")


@pytest.fixture
def with_runs(environment: dict[str, str], redis_server: PrivateServer) -> Iterator[None]:
    """A server on which one run was taken by a trainer and one was cancelled."""
    environment["ROLLSTREAM_REDIS_URL"] = redis_server.url
    settings = QueueSettings(redis_url=redis_server.url)

    async def prepare() -> None:
        client = command_client(settings)
        try:
            scripts = Scripts(client, Keys.of_shard(settings.namespace, 0))
            for run in ("first", "second"):
                incarnation = await scripts.connect_run(run, nonce="n", ttl_s=600.0)
                await scripts.accept(
                    run,
                    incarnation,
                    a_template(),
                    "t",
                    encode(a_template()),
                    [a_unit(run, prompt=f"p{i}") for i in range(3)],
                    max_waiting=10,
                    window=1,
                )
        finally:
            await client.aclose()

    asyncio.run(prepare())
    yield
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()


@pytest.mark.one_server
@pytest.mark.usefixtures("with_runs")
def test_runs_are_listed_shown_and_cancelled(command: Command) -> None:
    listed = command("ops.cli", "run", "list", "--json")
    shown = command("ops.cli", "run", "show", "first")
    unsure = command("ops.cli", "run", "cancel", "first")
    cancelled = command("ops.cli", "run", "cancel", "first", "--yes", "--json")
    after = command("ops.cli", "run", "show", "first", "--json")

    assert [run["name"] for run in orjson.loads(listed.stdout)] == ["first", "second"]
    assert "run first  open" in shown.stdout
    assert "why waiting" in shown.stdout
    assert (unsure.returncode, "--yes" in unsure.stderr) == (2, True)  # nobody is there to be asked
    assert orjson.loads(cancelled.stdout) == {"settled": 3, "running": 0, "done": 0, "unknown": 0}
    assert orjson.loads(after.stdout)["state"] == "cancelled (user)"
    states = [line.split()[:2] for line in command("ops.cli", "run", "list").stdout.splitlines()[1:]]
    assert states == [["first", "cancelled"], ["second", "open"]]


@pytest.mark.one_server
@pytest.mark.usefixtures("with_runs")
def test_what_a_run_may_have_is_changed_while_it_goes_on(command: Command) -> None:
    set_it = command("ops.cli", "run", "set", "first", "--weight", "2.5", "--quota", "2", "--pause")
    then = command("ops.cli", "run", "set", "first", "--resume", "--json")
    refused = command("ops.cli", "run", "set", "first", "--weight", "0")

    assert set_it.stdout.strip() == "run first (open, paused): weight 2.5, quota 2 jobs in flight"
    assert orjson.loads(then.stdout) == {"state": "open", "weight": 2.5, "quota": 2, "paused": False}
    assert (refused.returncode, "0.001" in refused.stderr) == (2, True)
    (first, _) = orjson.loads(command("ops.cli", "run", "list", "--json").stdout)
    assert (first["weight"], first["quota"], first["in_flight"]) == (2.5, 2, 2)


@pytest.mark.one_server
@pytest.mark.usefixtures("with_runs")
def test_a_run_whose_trainer_is_gone_is_listed_as_closed(command: Command, redis_server: PrivateServer) -> None:
    keys = Keys.of_shard("rs", 0)
    with redis.Redis.from_url(redis_server.url) as client:
        client.hset(keys.run("first"), "contact", 1)
    asyncio.run(one_janitor_round(QueueSettings(redis_url=redis_server.url)))

    runs = orjson.loads(command("ops.cli", "run", "list", "--json").stdout)

    assert [(run["name"], run["state"]) for run in runs] == [("first", "closed (abandoned)"), ("second", "open")]
    assert (runs[0]["waiting"], runs[0]["in_flight"]) == (0, 0)


async def one_janitor_round(settings: QueueSettings) -> None:
    client, keys = command_client(settings), Keys.of_shard(settings.namespace, 0)
    try:
        await Janitor(client, Scripts(client, keys), keys, settings, "janitor").round(quiet=False)
    finally:
        await client.aclose()


@pytest.mark.one_server
@pytest.mark.usefixtures("with_runs")
def test_a_run_that_nobody_knows_is_said_so(command: Command) -> None:
    for verb in ("show", "cancel", "set"):
        shown = command("ops.cli", "run", verb, "third")

        assert shown.returncode == 2
        assert "no run 'third'" in shown.stderr
        assert "Traceback" not in shown.stderr

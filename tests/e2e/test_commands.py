"""The commands that the README and the help name."""

from __future__ import annotations

import orjson
import pytest

from tests.e2e.conftest import Command

COMMANDS = (
    (),
    ("worker", "run"),
    ("supervisor", "run"),
    ("llm", "add"),
    ("llm", "list"),
    ("llm", "drop"),
    ("job", "show"),
    ("job", "cancel"),
    ("queue", "peek"),
    ("redis", "serve"),
    ("top",),
    ("bench",),
)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(command: Command, words: tuple[str, ...]) -> None:
    shown = command("ops.cli", *words, "--help")

    assert shown.returncode == 0, shown.stderr
    assert "Usage:" in shown.stdout


def test_a_job_that_is_not_known_is_said_so(command: Command) -> None:
    shown = command("ops.cli", "job", "show", "nobody.e0-1.0.0")

    assert shown.returncode == 2
    assert "no job 'nobody.e0-1.0.0'" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_a_redis_that_is_not_there_is_said_so(command: Command, environment: dict[str, str]) -> None:
    environment["ROLLSTREAM_REDIS_URL"] = "unix:///nowhere/redis.sock"

    shown = command("ops.cli", "top", "--once")

    assert shown.returncode == 3
    assert "cannot be reached" in shown.stderr


def test_a_benchmark_speaks_json(command: Command) -> None:
    shown = command("ops.cli", "bench", "codec", "--json")

    report = orjson.loads(shown.stdout)
    assert report["name"] == "codec"
    assert {"encode_ms", "decode_ms", "size_to_raw_ratio"} <= set(report["metrics"])


def test_the_prompt_speaks_to_the_embedded_server(command: Command) -> None:
    assert command("ops.cli", "top", "--once").returncode == 0  # makes the data folder

    shown = command("ops.cli", "redis", "cli", "--own", "PING")

    assert (shown.returncode, shown.stdout.strip()) == (0, "PONG")

"""`rollstream status` and its neighbours as a user runs them: exit codes, JSON, and that looking starts nothing."""

from __future__ import annotations

from pathlib import Path

import orjson

from pipeline.embedded import embedded_data_dir, embedded_redis
from pipeline.folders import Folders
from tests.e2e.conftest import Command


def test_the_embedded_server_is_looked_at_without_being_started(command: Command, environment: dict[str, str], home: Path) -> None:
    before = command("ops.cli", "status")
    folders = Folders.from_environment(environment)
    with embedded_redis(embedded_data_dir(folders), run_dir=folders.run, environ=environment):
        served = command("ops.cli", "status", "--json")
    after = command("ops.cli", "status", "--json")

    assert (before.returncode, served.returncode, after.returncode) == (3, 0, 3), (before.stdout, served.stdout, after.stdout)
    assert before.stdout.startswith("unreachable · redis_unreachable · ")
    assert not any(path.suffix == ".aof" for path in (home / "state").rglob("*"))
    said = orjson.loads(served.stdout)
    assert (said["verdict"], said["cause"], said["causes"]) == ("healthy", "", [])
    assert said["redis"]["fsync"] == "always"
    assert orjson.loads(after.stdout)["cause"] == "redis_unreachable"


def test_a_server_that_is_not_there_is_said_by_each_command_with_its_exit_code(command: Command, environment: dict[str, str]) -> None:
    environment["ROLLSTREAM_REDIS_URL"] = "redis://:hidden@127.0.0.1:1/0"

    words = (("status",), ("dead", "list"), ("config", "show", "queue", "--origin"))
    found = {shown: command("ops.cli", *shown) for shown in words}

    assert [run.returncode for run in found.values()] == [3, 3, 0], {shown: run.stderr for shown, run in found.items()}
    assert not any("hidden" in run.stdout + run.stderr for run in found.values())
    shown = found["config", "show", "queue", "--origin"].stdout
    assert "queue.redis_url = redis://:***@127.0.0.1:1/0  # environment ROLLSTREAM_REDIS_URL" in shown

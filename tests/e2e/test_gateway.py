"""`rollstream gateway run` as a user runs it: it says where it listens, serves, and leaves with its signal."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pipeline.settings import QueueSettings
from tests.e2e.conftest import ROOT


@contextmanager
def running(environment: dict[str, str], queue: QueueSettings, *words: str) -> Iterator[subprocess.Popen[str]]:
    """The command, ended with the block."""
    queue_of_test = {"ROLLSTREAM_REDIS_URL": queue.redis_url, "ROLLSTREAM_NAMESPACE": queue.namespace}
    command = [sys.executable, "-m", "ops.cli", "gateway", "run", *words]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**environment, **queue_of_test},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.one_server
def test_the_command_says_where_it_listens_and_leaves_with_its_signal(environment: dict[str, str], settings: QueueSettings) -> None:
    with running(environment, settings, "--json", "--port", "0", "--run", "e2e") as process:
        assert process.stdout is not None
        line = json.loads(process.stdout.readline())
        with urllib.request.urlopen(line["url"] + "/healthz", timeout=10) as answer:
            health = json.load(answer)
        process.send_signal(signal.SIGTERM)
        code = process.wait(20)

    assert (line["run"], line["incarnation"], line["pid"], line["needs_token"]) == ("e2e", 1, process.pid, False)
    assert health == {"ok": True, "state": "serving"}
    assert code == 0

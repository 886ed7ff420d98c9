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


def ask(url: str, body: object = None) -> dict[str, object]:
    """One call in JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        found: dict[str, object] = json.load(answer)
        return found


@pytest.mark.one_server
def test_a_gateway_that_is_killed_takes_no_job_with_it_and_one_that_is_told_to_leaves(
    environment: dict[str, str], settings: QueueSettings
) -> None:
    """The next process of the run has the job, under the next incarnation."""
    words = ("--json", "--port", "0", "--run", "e2e")
    job = {"id": "one", "task": "math", "prompt": {"question": "1 + 1?", "answer": "2"}}
    with running(environment, settings, *words) as first:
        assert first.stdout is not None
        line = json.loads(first.stdout.readline())
        health, accepted = ask(line["url"] + "/healthz"), ask(line["url"] + "/jobs", job)
        first.kill()
    with running(environment, settings, *words) as second:
        assert second.stdout is not None
        next_line = json.loads(second.stdout.readline())
        found = ask(next_line["url"] + "/jobs/one")
        second.send_signal(signal.SIGTERM)
        code = second.wait(20)

    assert (line["run"], line["incarnation"], line["pid"], line["needs_token"]) == ("e2e", 1, first.pid, False)
    assert (health, accepted["state"]) == ({"ok": True, "state": "serving"}, "accepted")
    assert (next_line["incarnation"], found["job"], found["state"]) == (2, "e2e.one", "ready")
    assert code == 0

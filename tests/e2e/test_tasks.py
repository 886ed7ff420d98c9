"""`rollstream task` and `rollstream eval`, as somebody who brings a data set uses them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import orjson
import pytest

from pipeline.testing import wait_in_thread
from tests.e2e.conftest import ROOT, Command
from tests.e2e.test_demo import processes_of

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def environment(environment: dict[str, str]) -> dict[str, str]:
    """Sandboxes without walls: what runs in them is ours."""
    return {**environment, "ROLLSTREAM_SANDBOX_BACKEND": "process"}


@pytest.fixture
def start(environment: dict[str, str], home: Path) -> Iterator[Start]:
    """Starts a command, and leaves it running."""
    with ExitStack() as stack:

        def begin(*arguments: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, "-m", "ops.cli", *arguments],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield begin
    wait_in_thread(lambda: not processes_of(home), "all that was started has ended", timeout_s=30)


def sandboxes(home: Path) -> list[Path]:
    return list(home.glob("scratch/sandboxes/[0-9a-f]*"))


def test_a_data_set_with_a_wrong_reference_does_not_pass(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    rows = [{"id": "good", "question": "1+1?", "answer": "A"}, {"id": "odd", "question": "1+1?", "answer": "}{"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    done = command("ops.cli", "task", "preflight", "math", "--data", str(file))

    assert done.returncode == 1, done.stdout + done.stderr
    assert "odd: the reference scores" in done.stdout
    assert "math: 2 rows, 1 as they should be, 1 not; 2 references graded" in done.stdout


@pytest.mark.timeout(120)
def test_a_job_is_tried_in_the_foreground_and_leaves_nothing(command: Command, start: Start, home: Path) -> None:
    done = command("ops.cli", "task", "try", "code", "--scripted", "--row", "2", "--json")

    assert done.returncode == 0, done.stderr
    tried = orjson.loads(done.stdout)
    assert tried["grade"]["reward"] in (0.0, 1.0)
    assert tried["trajectory"]["turns"]
    assert any(message["role"] == "tool" for message in tried["trajectory"]["messages"])
    assert not sandboxes(home)


@pytest.mark.timeout(120)
def test_a_preflight_that_is_interrupted_leaves_nothing(start: Start, home: Path) -> None:
    preflight = start("task", "preflight", "code", "--jobs", "2")
    wait_in_thread(lambda: bool(sandboxes(home)), "a sandbox was made", timeout_s=60)

    preflight.send_signal(signal.SIGINT)
    said, _ = preflight.communicate(timeout=60)

    assert preflight.returncode == 130, said
    assert said.strip().endswith("stopped; what was started here has ended")
    assert not sandboxes(home)


@pytest.mark.timeout(180)
def test_a_model_is_evaluated_on_a_file_with_nothing_but_this_command(command: Command, start: Start, home: Path, tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    words = ("--samples", "2", "-k", "1", "-k", "2", "--limit", "4", "--out", str(out), "--preflight", "0", "--json")

    done = command("ops.cli", "eval", "--task", "stem", "--scripted", *words, timeout_s=160)

    assert done.returncode == 0, done.stdout + done.stderr
    found = orjson.loads(done.stdout)
    assert (found["rows"], found["rows_asked"], found["valid"], found["asked"], found["why_invalid"]) == (4, 4, 8, 8, {})
    assert set(found["metrics"]) == {"pass@1", "pass@2", "mean score"}
    assert found["metrics"]["pass@1"]["low"] < found["metrics"]["pass@1"]["value"] < found["metrics"]["pass@1"]["high"]
    header, *rows = [orjson.loads(line) for line in out.read_bytes().splitlines()]
    assert header["header"]["run"] == found["run"]
    assert len({row["row"] for row in rows}) == len(rows) == 4
    assert all(sample["outcome"] == "ok" and sample["grader"].startswith("stem/") for row in rows for sample in row["samples"])


@pytest.mark.timeout(120)
def test_an_evaluation_where_no_sandbox_can_be_made_says_so_before_it_starts_workers(environment: dict[str, str], home: Path) -> None:
    """It said it three times, after the samples were in the queue, below the log of a worker that had ended."""
    nowhere = {**environment, "ROLLSTREAM_SANDBOX_BACKEND": "apptainer", "PATH": str(home)}
    words = ["eval", "--task", "math", "--scripted", "--limit", "1", "--preflight", "0", "--out", str(home / "results.jsonl")]

    done = subprocess.run([sys.executable, "-m", "ops.cli", *words], cwd=ROOT, env=nowhere, capture_output=True, text=True, timeout=110)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("no sandbox backend works here") == 1
    assert "ROLLSTREAM_SANDBOX_BACKEND=process" in done.stderr
    assert "log" not in done.stderr
    assert not processes_of(home)


def test_a_server_that_is_not_there_is_told_in_a_sentence_and_costs_nothing(command: Command, home: Path, tmp_path: Path) -> None:
    """It was the job's failure, with exit code 1."""
    row = tmp_path / "row.jsonl"
    row.write_text(json.dumps({"question": "1+1?", "answer": "2"}) + "\n", encoding="utf-8")

    done = command("ops.cli", "task", "try", "math", "--data", str(row), "--json", "--server", f"unix:{tmp_path}/no.sock")

    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.count("\n") == 1
    assert "unreachable" in done.stderr
    assert not sandboxes(home)

"""The examples and the README's program run, on a small fleet started by the commands that the documents name."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ops.child_processes import ChildEnded, ChildProcesses
from pipeline.testing import wait_in_thread
from tests.e2e.conftest import ROOT
from tests.e2e.documents import blocks
from workers.handlers.registry import ENTRY_POINTS

ARITHMETIC = ROOT / "workers/handlers/math/problems/arithmetic.jsonl"
WORDS = ROOT / "examples/own_task/words.jsonl"
MODEL = (
    "--first-token-ms",
    "5",
    "--per-token-ms",
    "0.5",
    "--mean-steps",
    "2",
    "--tool-rate",
    "0.2",
    "--problems",
    str(ARITHMETIC),
    str(WORDS),
)
DIES_AFTER_STEP_3 = """
import builtins, os, runpy, signal, sys
say = builtins.print
def print(*words, **how):
    say(*words, **how)
    if str(words[0]).startswith("step 3:"):
        os.kill(os.getpid(), signal.SIGKILL)
builtins.print = print
sys.argv = sys.argv[1:]
sys.path.insert(0, "")
runpy.run_path(sys.argv[0], run_name="__main__")
"""
OWN = ("own", "ahead", "small", "large")
"""Models that one run has for itself, since it changes their weights."""
Run = Callable[..., str]

pytestmark = pytest.mark.timeout(120)


def install(project: Path, site: Path) -> None:
    """What an installer leaves of a project of modules: the modules, and metadata with its entry points. No index is asked."""
    described = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    name, version = described["project"]["name"], described["project"]["version"]
    for module in described["tool"]["setuptools"]["py-modules"]:
        shutil.copy(project / f"{module}.py", site)
    metadata = site / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    points = described["project"]["entry-points"][ENTRY_POINTS]
    lines = [f"[{ENTRY_POINTS}]", *(f"{task} = {place}" for task, place in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def fleet() -> Iterator[Run]:
    """A worker a stage, a supervisor, a scripted model and the embedded server, in folders of their own.

    Yields what runs a program beside them: it must end well, and what it printed is returned.
    """
    with TemporaryDirectory(prefix="ex-") as folder:
        home = Path(folder)
        (home / "site").mkdir()
        install(ROOT / "examples/own_task", home / "site")
        folders = {f"ROLLSTREAM_{name.upper()}_DIR": str(home / name) for name in ("run", "data", "scratch", "state")}
        environment = {**folders, "HOME": str(home), "PYTHONPATH": f"{ROOT}:{home / 'site'}"}
        environment |= {"ROLLSTREAM_REDIS_URL": "", "ROLLSTREAM_SANDBOX_BACKEND": "process"}
        with ChildProcesses(home / "logs", environment) as children:
            children.start("model", "workers.llm.scripted", "--socket", str(home / "llm"), *MODEL, str(ARITHMETIC), str(WORDS))
            for name in OWN:
                children.start(name, "workers.llm.scripted", "--socket", str(home / name), *MODEL, str(ARITHMETIC))
            for stage in ("init", "run", "eval"):
                children.start(stage, "ops.cli", "worker", "run", "--stage", stage, "--node", "n1", "--slots", "8", "--grace-s", "1")
            children.start("supervisor", "ops.cli", "supervisor", "run")

            def run(*words: str, expect: int = 0) -> str:
                try:
                    children.check()
                except ChildEnded as ended:
                    pytest.fail(f"{ended}\n{ended.tail}")
                done = subprocess.run(
                    [sys.executable, *words],
                    cwd=ROOT,
                    env={"PATH": "/usr/bin:/bin", **environment},
                    capture_output=True,
                    text=True,
                    timeout=100,
                    check=False,
                )
                assert done.returncode == expect, done.stdout + done.stderr
                return done.stdout

            wait_in_thread(lambda: all((home / name).exists() for name in ("llm", *OWN)), "the models listen", timeout_s=30)
            for name in ("arithmetic", "evals", "words", "mine", "judged", "killed"):
                run("-m", "ops.cli", "llm", "add", "--shared", "--run", name, f"unix:{home / 'llm'}")
            yield run
            assert children.stop_all(grace_s=20) == []  # nobody had to be killed


def test_a_trainer_takes_steps_goes_on_and_goes_back(fleet: Run, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint.json"
    command = ("examples/trainer_loop.py", "--run", "arithmetic", "--groups", "1", "--n", "4", "--checkpoint", str(checkpoint), "--steps")

    first = fleet(*command, "2")
    assert "incarnation 1, next step 1" in first
    taken = re.findall(r"^step (\d): 1 groups, 4 members, reward 0\.\d+, (\d+) tokens in the loss", first, re.MULTILINE)
    assert [index for index, _ in taken] == ["1", "2"]
    older = checkpoint.read_text(encoding="utf-8")
    assert json.loads(older)["rollout"]["next_step"] == 3

    second = fleet(*command, "1")
    assert "incarnation 2, next step 3" in second
    assert "step 3: 1 groups" in second

    checkpoint.write_text(older, encoding="utf-8")
    back = fleet(*command, "1")
    assert "incarnation 3, next step 3" in back
    assert "step 3: 1 groups" in back

    without_a_checkpoint = fleet(*command[:3], "--groups", "1", "--n", "4", "--steps", "1")
    assert "incarnation 4, next step 4" in without_a_checkpoint


@pytest.mark.parametrize("away", [(), ("--away",)], ids=["", "away"])
def test_weights_are_updated_after_each_step(fleet: Run, away: tuple[str, ...]) -> None:
    said = fleet("examples/weight_update.py", "--steps", "2", "--groups", "1", *away, address(fleet, "own"))

    versions = re.findall(r"^version (\d+)\.(\d+) on 1 servers$", said, re.MULTILINE)
    first = int(versions[0][1])
    assert [int(number) for _, number in versions] == [first, first + 1, first + 2]
    trained = re.findall(r"^step (\d+): tokens by version (\{.+\})$", said, re.MULTILINE)
    assert [int(index) for index, _ in trained] == [first + 1, first + 2]
    assert f"'{versions[0][0]}.{first}'" in trained[0][1]


def test_a_trainer_two_steps_ahead_has_batches_for_two_ranks(fleet: Run) -> None:
    said = fleet("examples/async_trainer.py", "--steps", "4", "--groups", "1", address(fleet, "ahead"))

    steps = re.findall(
        r"^step (\d): loss [+-]\d\.\d+ on (\d+) tokens of (\d+), 1 microbatches on each of 2 ranks, (.+)$", said, re.MULTILINE
    )
    assert [index for index, *_ in steps] == ["1", "2", "3", "4"]
    assert all(0 < int(loss_tokens) < int(tokens) for _, loss_tokens, tokens, _ in steps)
    assert any("0:0" in ages for *_, ages in steps), "what was sampled ahead is older than the policy that is trained"


def test_two_runs_on_one_fleet_see_nothing_of_each_other(fleet: Run) -> None:
    said = fleet("examples/two_runs.py", "--steps", "2", address(fleet, "small"), address(fleet, "large"))

    for name in ("small", "large"):
        assert len(re.findall(rf"^{name}: step \d, rollouts of \{{'{name}'\}}, sampled by \['1\.\d", said, re.MULTILINE)) == 2
        assert re.search(rf"^{name}: held out by 1\.2: mean@2 \d\.\d\d, pass@2", said, re.MULTILINE)


def test_a_trainer_that_is_killed_goes_on_from_its_checkpoint(fleet: Run, tmp_path: Path) -> None:
    """Killed by its own hand as soon as it has said that it did its third step: before the ack, or before the checkpoint behind it."""
    command = ("examples/trainer_loop.py", "--run", "killed", "--groups", "1", "--checkpoint", str(tmp_path / "c.json"), "--steps")

    killed = fleet("-c", DIES_AFTER_STEP_3, *command, "50", expect=-signal.SIGKILL)
    again = fleet(*command, "2")

    assert re.findall(r"^step (\d+):", killed, re.MULTILINE) == ["1", "2", "3"]
    assert "incarnation 2, next step 3" in again
    assert re.findall(r"^step (\d+):", again, re.MULTILINE) == ["3", "4"]


def address(fleet: Run, name: str) -> str:
    """Of a model."""
    listed = re.search(r"unix:(\S+)/llm", fleet("-m", "ops.cli", "llm", "list", "--run", "arithmetic"))
    assert listed is not None
    return f"unix:{listed[1]}/{name}"


def test_rewards_come_from_outside_and_a_hook_ranks_each_group(fleet: Run) -> None:
    said = fleet("examples/outside_reward.py", "--steps", "1", "--groups", "1", "--n", "3")

    [(rewards, ranks)] = re.findall(r"^step 1 e\d+-\d+: rewards \[(.+)\], ranks \[(.+)\]$", said, re.MULTILINE)
    assert {float(reward) for reward in rewards.split(", ")} <= {0.0, 1.0}
    assert sorted(float(rank) for rank in ranks.split(", ")) == [0.0, 0.5, 1.0]
    assert re.search(r"^reports: \{.*'accepted': \d+", said, re.MULTILINE)


def test_single_jobs_end_each_in_its_way(fleet: Run) -> None:
    said = fleet("examples/single_jobs.py", "--prefix", "a", "--limit", "5", "--cancel", "--show")

    assert "submitted 5 jobs to run evals; again: evals.a-0" in said
    ended = dict(re.findall(r"^(evals\.a-\d): (\w+)", said, re.MULTILINE))
    assert sorted(ended) == [f"evals.a-{number}" for number in range(5)]
    assert ended["evals.a-4"] == "cancelled"
    assert {ended[f"evals.a-{number}"] for number in range(4)} <= {"ok", "model_failure"}
    assert len(re.findall(r"^  graded by math/", said, re.MULTILINE)) == 4
    assert "  user: James is raising money" in said


def test_a_task_of_ones_own_runs_on_a_worker_that_has_it_installed(fleet: Run) -> None:
    said = fleet(
        "examples/single_jobs.py", "--run", "words", "--task", "backwards", "--problems", str(WORDS), "--limit", "6", "--prefix", "w"
    )

    ended = re.findall(r"^words\.w-\d: (\w+)(?: \(\w+\))?, reward ([01])", said, re.MULTILINE)
    assert len(ended) == 6
    assert "1" in [reward for _, reward in ended]
    found = re.findall(r"graded by backwards/1: \{'extracted': '(\w*)'", said)
    assert set(found) & {"nretnal", "ruobrah", "elbbep", "drahcro", "eltsiht", "wodniw"}


def test_a_prompt_that_a_task_refuses_ends_with_its_reason(fleet: Run, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"word": "two words"}\n', encoding="utf-8")

    said = fleet("examples/single_jobs.py", "--run", "words", "--task", "backwards", "--problems", str(rows), "--prefix", "bad")

    assert "words.bad-0: infra_failure" in said
    assert "prompt.word: expected a word of letters, got 'two words'" in said
    assert "reward none" in said


def test_the_program_of_the_readme_runs(fleet: Run, tmp_path: Path) -> None:
    program = tmp_path / "mine.py"
    program.write_text(next(block.text for block in blocks(ROOT / "README.md") if block.language == "python"), encoding="utf-8")

    said = fleet(str(program))

    batches = re.findall(r"^step ([12]): (\d+) rows, (\d+) tokens, (\d+) with a loss$", said, re.MULTILINE)
    assert {step for step, *_ in batches} == {"1", "2"}
    assert all(0 < int(trained) < int(total) for *_, total, trained in batches)
    rollouts = re.findall(r"^(e\d+-\d+) ([01])\.0 (-?0\.\d+) ", said, re.MULTILINE)
    assert 2 * 2 < len(rollouts) <= 2 * 2 * 4  # one that a limit cut off has no loss, and is left out
    assert {(reward, advantage[0] == "-") for _, reward, advantage in rollouts} == {("0", True), ("1", False)}

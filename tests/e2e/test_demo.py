"""`./ops/launch demo`, as a newcomer sees it."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import psutil
import pytest

from tests.e2e.conftest import Command


def processes_of(home: Path) -> list[str]:
    """Command lines of processes that know this user's folders."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(home) in " ".join([*process.cmdline(), *process.environ().values()]):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


@pytest.mark.timeout(240)
def test_the_demo_takes_a_step_and_leaves_nothing_behind(command: Command, home: Path) -> None:
    done = command("ops.demo", "--groups", "3")

    shown = done.stdout
    assert done.returncode == 0, shown + done.stderr
    assert "scripted stand-in: its rewards say nothing of a model" in " ".join(shown.split())
    assert "no GPU and no sudo is used" in " ".join(shown.split())
    assert re.search(r"3 informative \(target 3\)", shown)
    groups = re.search(r"groups +(\d+) launched: (.*?) rollouts", " ".join(shown.split()))
    assert groups is not None  # those that the step did not take are counted, too
    assert sum(int(count) for count in re.findall(r"(\d+) [a-z]", groups[2])) == int(groups[1])
    assert re.search(r"[●○]{8}  *informative", shown)
    assert re.search(r"verdict \w+ · boxed .* · gold .* · reward [01]", " ".join(shown.split()))
    assert re.search(r"tokens .*kept [\d,]+", shown)
    assert not processes_of(home)

    job = re.search(r"job show (\S+)", shown)
    assert job is not None
    again = command("ops.cli", "job", "show", job[1], "--json")

    story = orjson.loads(again.stdout)
    trajectory = story["trajectory"]["segments"][0]
    assert story["header"]["st"] == "done"
    assert len(trajectory["token_ids"]) == len(trajectory["sampled_mask"]) == len(trajectory["logprobs"])
    assert [lp is not None for lp in trajectory["logprobs"]] == [bool(bit) for bit in trajectory["sampled_mask"]]
    assert not processes_of(home)


@pytest.mark.timeout(240)
def test_a_kept_demo_stays_until_down(command: Command, home: Path) -> None:
    kept = command("ops.demo", "--groups", "1", "--keep")
    assert kept.returncode == 0, kept.stdout + kept.stderr
    assert "ops/launch down" in kept.stdout
    told = re.search(r"rollstream (llm add --shared --run mine unix:/\S+-llm)\n", kept.stdout)
    assert told is not None
    given = command("ops.cli", *told[1].split())
    assert given.returncode == 0, given.stderr
    assert processes_of(home)

    look = command("ops.cli", "top", "--json")
    stages = orjson.loads(look.stdout)["stages"]
    assert {stage: seen["workers"] for stage, seen in stages.items()} == {"init": 1, "run": 1, "eval": 1}

    down = command("ops.demo", "down")

    assert (down.returncode, "stopped" in down.stdout) == (0, True)
    assert not processes_of(home)
    assert "no demo is up" in command("ops.demo", "down").stdout


@pytest.mark.timeout(120)
def test_a_step_that_does_not_finish_is_an_error_that_shows_why(command: Command, home: Path) -> None:
    done = command("ops.demo", "--groups", "50", "--slots", "1", "--timeout", "2")

    assert done.returncode == 1
    assert "The step did not finish" in done.stdout
    assert "logs" in done.stdout
    assert not processes_of(home)


@pytest.mark.timeout(240)
def test_a_demo_does_not_take_up_what_a_failed_one_left(command: Command) -> None:
    """A demo that failed left its jobs in the queue; the workers of the next one waited for a model that was gone, and it failed too."""
    failed = command("ops.demo", "--groups", "50", "--slots", "2", "--timeout", "2")
    assert failed.returncode == 1

    done = command("ops.demo", "--task", "swe", "--groups", "1", "--n", "2", "--slots", "8")

    assert done.returncode == 0, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert "1 informative (target 1)" in said
    assert "git apply" in said  # it repaired the repository in the shell
    assert "by swe/" in said

"""A trainer that goes back to its last checkpoint, again and again: the history that survives is as if nothing had happened.

What it trained after the checkpoint is lost with its weights, and has to happen again; what it trained before must not. And no token is
trained that weights of a lost history sampled: its ratio would be taken against a policy that is nobody's.

`ROLLSTREAM_KILL_ROUNDS` is how many times the trainer is killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ops.child_processes import Child, ChildProcesses, log_tail
from pipeline.settings import QueueSettings
from pipeline.testing import wait_until
from tests.faults.checkpointing_trainer import GROUPS
from tests.faults.diary import Diary

RUN = "saved"
KILLS = int(os.environ.get("ROLLSTREAM_KILL_ROUNDS", "4"))
STEPS = 20 + 5 * KILLS
SLOTS = 16
MOMENTS = {"connected": 1, "trained": 8, "saved": 2}
"""Lines of the diary, and at most how many of them, after which it is killed some milliseconds later."""


@pytest.mark.one_server
@pytest.mark.timeout(60 + 20 * KILLS)
async def test_killed_anywhere_each_prompt_is_trained_once_and_by_no_lost_policy(settings: QueueSettings, tmp_path: Path) -> None:
    (tmp_path / "accounts").mkdir()
    seed = int.from_bytes(os.urandom(4))
    chance = random.Random(seed)
    diary = Diary(tmp_path / "diary")
    environment = {"ROLLSTREAM_REDIS_URL": settings.redis_url, "ROLLSTREAM_NAMESPACE": settings.namespace}
    with ChildProcesses(tmp_path / "logs", environment) as children:
        folders = (str(tmp_path / "accounts"), str(tmp_path / "scratch"))
        children.start("workers", "ops.bench.dapo_host", "workers", *folders, f"{settings.namespace}:{SLOTS}")
        children.start("supervisor", "ops.bench.dapo_host", "supervisors", settings.namespace)
        for life in range(KILLS):
            trainer = begin(children, life, tmp_path)
            before, moment = len(diary.lines()), chance.choice(tuple(MOMENTS))
            count = chance.randint(1, MOMENTS[moment])

            def noted(before: int = before, moment: str = moment, count: int = count, trainer: Child = trainer) -> bool:
                assert trainer.exit_code in (None, 0), log_tail(trainer.log)
                kinds = Counter(line[0] for line in diary.lines()[before:])
                return trainer.exit_code == 0 or kinds[moment] >= count

            await wait_until(noted, f"{moment} for the {count}. time", timeout_s=60)
            await wait_until(passed(chance.uniform(0.0, 0.3)), "some milliseconds more", timeout_s=5)
            trainer.process.kill()
            assert trainer.process.wait() in (-signal.SIGKILL, 0)
        last = begin(children, KILLS, tmp_path)
        await wait_until(lambda: last.exit_code is not None, "the last trainer has ended", timeout_s=120)
        assert last.exit_code == 0, log_tail(last.log)

    checkpoint = json.loads((tmp_path / "checkpoint.json").read_text())
    began = {int(life): int(steps) for _, life, steps in diary.lines("connected")}
    check(checkpoint["trained"], began, f"seed {seed}, diary {[' '.join(line) for line in diary.lines()]}")


def check(trained: list[dict[str, Any]], began: dict[int, int], how: str) -> None:
    """The history of the last checkpoint.

    A version `<incarnation>.<number>` is of it when that incarnation trained step `number` of it, or began with the weights of after it.

    Args:
        began: of each incarnation, how many steps the weights were trained that it began with.
    """
    assert [step["step"] for step in trained] == list(range(1, len(trained) + 1)), how
    prompts = Counter(prompt for step in trained for prompt in step["prompts"])
    assert prompts == {f"e0-{row}": 1 for row in range(STEPS * GROUPS)}, how
    by = {step["step"]: step["incarnation"] for step in trained}
    assert list(by.values()) == sorted(by.values()), how
    for step in trained:
        allowed = {f"{life}.{number}" for life, number in began.items() if number == 0 or by[number] < life}
        allowed |= {f"{by[number]}.{number}" for number in range(1, step["step"])}
        assert set(step["versions"]) <= allowed, f"step {step} has tokens of a lost history; {how}"
        assert len({version.partition(".")[0] for version in step["versions"]}) == 1, f"step {step} mixes incarnations; {how}"


def begin(children: ChildProcesses, life: int, folder: Path) -> Child:
    words = (RUN, str(folder), str(folder / "accounts"), str(STEPS))
    trainer = children.start(f"trainer-{life}", "tests.faults.checkpointing_trainer", *words)
    trainer.asked_to_stop = True
    return trainer


def passed(seconds: float) -> Any:
    until = time.monotonic() + seconds
    return lambda: time.monotonic() >= until

"""Workers and trainers killed right after each call that has to do with a reward from outside: it is given once, and nothing hangs."""

from __future__ import annotations

import pytest

from ops.child_processes import log_tail
from pipeline.failpoints import FAILPOINT, FAILPOINT_ONCE
from pipeline.messages import Stage
from pipeline.redis_client import ask
from tests.faults.diary import Diary
from tests.faults.judging_trainer import OUTSIDE_POINTS, STEPS
from tests.faults.math_fleet import MathFleet, ended


@pytest.mark.timeout(200)
async def test_a_reward_is_given_once_whoever_dies(fleet: MathFleet) -> None:
    fleet.children.start("supervisor", "ops.cli", "supervisor", "run", "--name", "s", "--log-json")
    diary = fleet.folder / "diary"
    died = []
    for number, name in enumerate((*OUTSIDE_POINTS, "")):
        once = fleet.folder / f"once-{name}"
        arms = {FAILPOINT: name, FAILPOINT_ONCE: str(once)} if name else {}
        if name == "await_reward":
            fleet.start(Stage.EVAL, **arms)
            fleet.children.start("trainer-killed", "tests.faults.judging_trainer", "trained", str(diary)).asked_to_stop = True
            await ended(fleet.workers[Stage.EVAL], 60)
            trainer = fleet.children.children[-1]
            fleet.start(Stage.EVAL)
            fleet.kill(trainer)
        else:
            trainer = fleet.children.start(f"trainer{number}", "tests.faults.judging_trainer", "trained", str(diary), environment=arms)
            trainer.asked_to_stop = True
            await ended(trainer, 90)
            assert once.exists() or trainer.exit_code == 0, f"{name}: {trainer.exit_code}: {log_tail(trainer.log)}"
        died += [name] if once.exists() else []

    assert tuple(died) == OUTSIDE_POINTS
    trained = Diary(diary).lines()
    assert {step for step, *_ in trained} == {str(step) for step in range(1, STEPS + 1)}
    assert all(told == answers and ranks == "0,1,2" for _, _, told, ranks, answers in trained)
    steps_of = {prompt: {step for step, other, *_ in trained if other == prompt} for _, prompt, *_ in trained}
    assert all(len(steps) == 1 for steps in steps_of.values())
    # a group that ran on beyond the last target may be held for a trainer that is gone by then: until its deadline, while it is open
    for group in await ask(fleet.client, "ZRANGE", fleet.keys.held, 0, -1):
        assert await ask(fleet.client, "HGET", fleet.keys.group(group.decode()), "st") == b"open"

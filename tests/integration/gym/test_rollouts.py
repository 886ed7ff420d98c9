"""Whole jobs of the task `gym`: a dialogue with an environment, and the grade that its replay gives."""

from __future__ import annotations

import pytest

from ops.tasks import Foreground
from ops.tasks.attempt import Attempt, attempt
from pipeline.messages import StopReason
from tests.judged import judged, spec_of
from workers.agent.trajectory import TurnDelta
from workers.graders.gym import GymSettings
from workers.graders.gym.lamps import solution
from workers.handlers.gym.handler import GymHandler
from workers.handlers.gym.layouts import LAYOUTS
from workers.handlers.registry import Handlers
from workers.handlers.submission import submitted
from workers.handlers.task_data import load_rows
from workers.llm.scripted import InProcessBackend

ROW = {
    "id": "r",
    "package": "rollstream",
    "environment": "lamps",
    "seed": 4,
    "options": {"lamps": 6, "max_steps": 6},
    "intro": "A dark room.",
}
VAULT = {"id": "v", "package": "gymnasium", "environment": "tests/Vault-v0", "seed": 2}
IN_TESTS = GymSettings(processes=1, allowed=("gymnasium/tests/*",), modules=("tests.integration.gym.text_worlds",))


async def noted(delta: TurnDelta) -> None:
    """Keeps no journal."""


async def play(
    row: dict[str, object], lines: list[str], settings: GymSettings | None = None, options: dict[str, object] | None = None
) -> Attempt:
    async with Handlers({"gym": lambda: GymHandler(settings or GymSettings(processes=1))}) as handlers:
        return await attempt(Foreground(handlers), spec_of("gym", row, options), InProcessBackend(lines), journal=noted)


async def test_an_episode_that_is_solved_has_its_reward_from_its_replay() -> None:
    moves = [f"I think.\npress {switch}" for switch in solution(6, 4)]

    found = await play(ROW, moves)

    asked = found.trajectory.messages[0].content
    assert asked.startswith("A dark room.\n\nEach switch turns")
    assert [message.role for message in found.trajectory.messages] == ["user", *(["assistant", "user"] * len(moves))]
    assert found.trajectory.stop is StopReason.FINISHED
    grade = found.judged.grade
    assert (grade.reward, grade.details["reason"]) == (1.0, "terminated")
    assert dict(grade.components) == {
        "return": 1.0,
        "last": 1.0,
        "steps": float(len(moves)),
        "terminated": 1.0,
        "truncated": 0.0,
        "replayed": 1.0,
        "no_actions": 0.0,
        "crashed": 0.0,
    }


async def test_an_episode_that_is_cut_off_has_no_reward() -> None:
    found = await play(ROW, ["I do not know."] * 3 + ["press 99"] * 3)

    assert (found.judged.grade.reward, found.judged.grade.details["reason"]) == (0.0, "truncated")


async def test_rewards_of_steps_are_summed_or_the_last_one_counts() -> None:
    pytest.importorskip("gymnasium")
    lines = ["<action>zero</action>", "no tag at all", "<action>18</action>", "<action>" + "x" * 50 + "</action>", "<action>17</action>"]

    summed = await play(VAULT, lines, IN_TESTS)
    last = await play(VAULT, lines, IN_TESTS, {"reward": "last"})

    told = [message.content for message in summed.trajectory.messages if message.role == "user"]
    assert told[2] == "There is no action in this. Write your action between <action> and </action>."
    assert "is no action here: expected 1 to 40 characters" in told[4]
    assert summed.judged.grade.components["no_actions"] == 2.0
    assert summed.judged.grade.details["rewards"] == [-0.125, -0.125, 1.0]
    assert (summed.judged.grade.reward, last.judged.grade.reward) == (0.75, 1.0)


async def test_an_environment_that_does_not_replay_is_told_and_graded_as_it_went() -> None:
    pytest.importorskip("gymnasium")

    found = await play({**VAULT, "options": {"mode": "dice"}}, ["<action>a</action>", "<action>b</action>", "I stop.<|im_end|>"], IN_TESTS)

    grade = found.judged.grade
    assert (grade.components["replayed"], grade.details["reason"]) == (0.0, "does_not_replay")
    assert grade.reward == 0.25 * grade.components["steps"] > 0


async def test_an_action_that_breaks_the_environment_ends_the_episode_and_keeps_nothing_that_was_won() -> None:
    pytest.importorskip("gymnasium")

    found = await play({**VAULT, "options": {"mode": "wins"}}, ["<action>gold</action>", "<action>break</action>", "never said"], IN_TESTS)

    assert found.trajectory.messages[-1].content == "The environment broke on this action: the episode is over."
    assert found.trajectory.stop is StopReason.FINISHED
    grade = found.judged.grade
    assert (grade.reward, grade.details["reason"], grade.components["return"]) == (0.0, "action_crashed", 0.5)
    assert "the vault is jammed" in str(grade.details["detail"])
    assert (grade.components["crashed"], grade.components["replayed"], grade.components["steps"]) == (1.0, 1.0, 1.0)


async def test_a_crash_rids_nobody_of_what_was_lost_and_records_without_a_word_of_it_are_graded() -> None:
    """The last are of trajectories in flight while a worker is upgraded."""
    zero = {"actions": ["zero"], "digests": ["a", "b"], "rewards": [-0.125], "terminated": False, "truncated": False, "no_actions": 0}
    none = {**zero, "actions": [], "digests": ["a"], "rewards": []}
    handler = GymHandler(GymSettings(processes=1))
    await handler.open()

    async def grade_of(episode: dict[str, object], reward: str = "sum") -> tuple[float, object]:
        grade = await judged(handler, spec_of("gym", ROW, {"reward": reward}), submitted("", {"episode": episode}))
        return grade.reward, grade.details["reason"]

    try:
        assert await grade_of({**zero, "crashed": "jammed"}) == (-0.125, "action_crashed")
        assert await grade_of({**zero, "crashed": "jammed"}, "last") == (-0.125, "action_crashed")
        assert await grade_of({**none, "crashed": "jammed"}, "last") == (0.0, "action_crashed")
        assert await grade_of(none) == (0.0, "no_move")
        assert await grade_of(zero) == (-0.125, "does_not_replay")
    finally:
        await handler.close()


async def test_references_of_the_samples_score_and_nothing_does_not() -> None:
    (rows,) = (load_rows(sample, LAYOUTS).rows for sample in GymHandler.samples)
    assert len(rows) >= 20
    handler = GymHandler(GymSettings(processes=1))
    await handler.open()
    try:
        for row in rows:
            spec = spec_of("gym", row)
            gold = handler.gold(spec)
            assert gold is not None
            assert (await judged(handler, spec, gold)).reward == 1.0, row["id"]
            assert (await judged(handler, spec, handler.empty(spec))).reward == 0.0, row["id"]
    finally:
        await handler.close()

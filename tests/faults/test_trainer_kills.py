"""A trainer that dies in a step and comes back goes on with the same step: groups that it had not acked come again, others do not.

Here it is killed between its calls, wherever it stands in a step; right after each of its calls it is killed in `test_failpoints.py`.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ops.child_processes import Child, ChildProcesses, log_tail
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask
from pipeline.settings import QueueSettings
from pipeline.testing import QueueAudit, wait_until
from tests.faults.diary import Diary
from tests.faults.stepping_trainer import GROUPS

RUN = "trained"
STEPS = 8
SLOTS = 16


class Place:
    """A fleet with one run, and the trainers that it has, one after the other."""

    def __init__(self, children: ChildProcesses, client: AsyncClient, keys: Keys, folder: Path) -> None:
        self.client = client
        self.keys = keys
        self.audit = QueueAudit(client, keys)
        self.diary = Diary(folder / "diary")
        self._children = children
        self._path = folder / "diary"
        self._lives = 0

    def begin_life(self, *holds: int, steps: int = STEPS) -> Child:
        """The next trainer.

        Args:
            holds: steps that it trains on for ever.
        """
        self._lives += 1
        words = (RUN, str(self._path), str(steps), ",".join(map(str, holds)))
        trainer = self._children.start(f"trainer-{self._lives}", "tests.faults.stepping_trainer", *words)
        trainer.asked_to_stop = True
        return trainer

    async def until_noted(self, trainer: Child, what: str, count: int) -> None:
        """Until the diary has so many lines of a kind."""

        def noted() -> bool:
            assert trainer.exit_code is None, log_tail(trainer.log)
            return len(self.diary.lines(what)) >= count

        await wait_until(noted, f"{count} times {what!r} in the diary", timeout_s=60)

    async def step(self, index: int) -> dict[str, str]:
        """How a step stands in the ledger."""
        return await self.audit.hash(self.keys.step(RUN, index))

    async def to_the_end(self) -> None:
        """One more trainer, that nobody kills."""
        trainer = self.begin_life()
        await wait_until(lambda: trainer.exit_code is not None, "the last trainer has ended", timeout_s=90)
        assert trainer.exit_code == 0, log_tail(trainer.log)

    def check(self) -> None:
        """Whatever was handed over again is what it was, and was not acked before; nothing was trained in two steps."""
        handed: dict[int, list[str]] = {}
        acked: list[int] = []
        for what, *words in self.diary.lines():
            if what == "handed":
                index, groups = int(words[0]), words[1:]
                assert index not in acked, f"step {index} was acked and came again"
                assert handed.setdefault(index, groups) == groups, f"step {index} came again as another"
                assert index == max(acked, default=0) + 1
            elif what == "acked":
                acked.append(int(words[0]))
        prompts = Counter(group.split(".")[1] for groups in handed.values() for group in groups)
        assert acked == list(range(1, STEPS + 1))
        assert {len(groups) for groups in handed.values()} == {GROUPS}
        assert max(prompts.values()) == 1


def kill(trainer: Child) -> None:
    """kill -9."""
    trainer.process.kill()
    assert trainer.process.wait() == -signal.SIGKILL


@pytest.fixture
async def place(settings: QueueSettings, client: AsyncClient, keys: Keys, tmp_path: Path) -> AsyncIterator[Place]:
    (tmp_path / "accounts").mkdir()
    environment = {"ROLLSTREAM_REDIS_URL": settings.redis_url, "ROLLSTREAM_NAMESPACE": settings.namespace}
    with ChildProcesses(tmp_path / "logs", environment) as children:
        folders = (str(tmp_path / "accounts"), str(tmp_path / "scratch"))
        children.start("workers", "ops.bench.dapo_host", "workers", *folders, f"{settings.namespace}:{SLOTS}")
        children.start("supervisor", "ops.bench.dapo_host", "supervisors", settings.namespace)
        yield Place(children, client, keys, tmp_path)


@pytest.mark.one_server
@pytest.mark.timeout(180)
async def test_killed_while_it_feeds_and_waits_for_its_first_step(place: Place) -> None:
    trainer = place.begin_life()
    await place.until_noted(trainer, "connected", 1)

    async def some_are_pushed() -> bool:
        return int(await ask(place.client, "HLEN", place.keys.prompt_marks(RUN))) > 0

    await wait_until(some_are_pushed, "the first prompts are pushed", timeout_s=30)
    kill(trainer)

    await place.to_the_end()

    place.check()


@pytest.mark.one_server
@pytest.mark.timeout(180)
async def test_killed_between_hand_over_and_ack_it_gets_the_same_groups_again(place: Place) -> None:
    for life, held in enumerate((1, 2, 5)):
        trainer = place.begin_life(held)
        await place.until_noted(trainer, "handed", held + life)
        kill(trainer)

    await place.to_the_end()

    place.check()
    again = [int(words[1]) for words in place.diary.lines("handed")]
    assert Counter(again) == {index: 2 if index in (1, 2, 5) else 1 for index in range(1, STEPS + 1)}


@pytest.mark.one_server
@pytest.mark.timeout(180)
async def test_killed_when_a_step_is_complete_and_was_not_handed_over(place: Place) -> None:
    """It freezes over a step that it holds, the fleet completes the ones it opened ahead, and it dies without having seen them."""
    trainer = place.begin_life(2)
    await place.until_noted(trainer, "handed", 2)
    trainer.process.send_signal(signal.SIGSTOP)

    async def is_reached() -> bool:
        return (await place.step(3)).get("st") == "reached"

    await wait_until(is_reached, "step 3 is complete", timeout_s=60)
    (ahead,) = [record["groups"].split() for record in await place.audit.results(RUN) if record["kind"] == "step" and record["k"] == "3"]
    kill(trainer)

    await place.to_the_end()

    place.check()
    assert [words[2:] for words in place.diary.lines("handed") if words[1] == "3"] == [ahead]


@pytest.mark.one_server
@pytest.mark.timeout(180)
async def test_killed_in_the_middle_of_a_step_the_groups_that_joined_stay_in_it(place: Place) -> None:
    trainer = place.begin_life()

    half: list[int] = []

    async def one_has_half() -> list[int]:
        for index in range(1, STEPS):
            found = await place.step(index)
            if found.get("st") == "open" and found.get("acc") == "1":
                half.append(index)
        return half

    await wait_until(one_has_half, "one of its two groups has joined a step", timeout_s=60)
    index = half[0]
    trainer.process.send_signal(signal.SIGSTOP)
    joined = await _joined(place, index)
    kill(trainer)

    await place.to_the_end()

    place.check()
    (groups,) = {tuple(words[2:]) for words in place.diary.lines("handed") if words[1] == str(index)}
    assert joined
    assert joined <= set(groups)


async def _joined(place: Place, index: int) -> set[str]:
    lines = await place.audit.hash(place.keys.step_groups(RUN, index))
    return {group for group, line in lines.items() if line.startswith("informative|")}

"""Environments in processes of their own: episodes go on from where they were, whichever process has them, and none harms another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest

from pipeline.errors import InvalidRequest
from workers.graders.gym import Crashed, GymSettings, GymWorld, Happened, Refused, Replayed, WorldBroke, Worlds
from workers.graders.gym.lamps import solution
from workers.graders.gym.worlds import DoesNotReplay
from workers.graders.killable import MAX_FRAME_BYTES

TALK_CHARS = 400_000
"""As `text_worlds` has it, which only a process with gymnasium may import."""
SETTINGS = GymSettings(processes=1, step_timeout_s=0.4, memory_mb=512)


def lamps(seed: int) -> GymWorld:
    return GymWorld(package="rollstream", environment="lamps", options={"lamps": 6, "max_steps": 40}, seed=seed)


def vault(mode: str, breaks_in: Path, **more: int) -> GymWorld:
    options = {"mode": mode, "breaks_in": str(breaks_in), **more}
    return GymWorld(package="gymnasium", environment="tests/Vault-v0", options=options, seed=2)


def times(breaks_in: Path) -> int:
    """That a vault broke."""
    return len(list(breaks_in.iterdir()))


class Player:
    """One episode."""

    def __init__(
        self,
        worlds: Worlds,
        world: GymWorld,
        solution: Sequence[str] = (),
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.worlds, self.world, self.key = worlds, world, worlds.new_key()
        self.solution, self.waiting = solution, waiting
        self.actions: list[str] = []
        self.seen: list[Happened] = []

    async def does(self, *actions: str) -> Happened:
        if not self.seen:
            self.seen.append(await self._ask([]))
        for action in actions:
            self.seen.append(await self._ask([*self.actions, action]))
            self.actions.append(action)
        return self.seen[-1]

    async def asks(self, action: str) -> Happened | Refused | Crashed:
        """What would come of an action; it is not noted."""
        known = [each.digest for each in self.seen]
        return await self.worlds.go_on(self.world, self.key, [*self.actions, action], known, solution=self.solution, waiting=self.waiting)

    async def _ask(self, actions: list[str]) -> Happened:
        known = [each.digest for each in self.seen]
        found = await self.worlds.go_on(self.world, self.key, actions, known, solution=self.solution, waiting=self.waiting)
        assert isinstance(found, Happened)
        return found


@pytest.fixture
async def one_process() -> AsyncIterator[Worlds]:
    async with Worlds(SETTINGS) as worlds:
        yield worlds


async def test_episodes_that_share_a_process_go_on_from_where_each_was(one_process: Worlds) -> None:
    """Two at once on one process: each step makes the other one's episode go, and it is made again and replayed."""
    alone = Player(one_process, lamps(3))
    await alone.does("press 1", "press 4", "press 2")
    one, other = Player(one_process, lamps(3)), Player(one_process, lamps(8))

    for action in ("press 1", "press 4", "press 2"):
        await one.does(action)
        await other.does("press 6")

    assert one.seen == alone.seen
    assert one.seen[0] != other.seen[0]
    assert len(one_process.pids) == 1


async def test_an_episode_outlives_its_process(one_process: Worlds) -> None:
    player = Player(one_process, lamps(3))
    await player.does("press 1")
    with pytest.raises(WorldBroke, match="was over after 40 actions"):
        await one_process.replay(lamps(3), ["press 1"] * 41)  # over after 40: this process forgets all that it has

    seen = await player.does("press 1")

    assert seen.text.split(" (")[0] == player.seen[0].text.splitlines()[1].split(" (")[0], "twice the same switch changes nothing"


async def test_an_episode_that_was_played_is_replayed_with_the_same_rewards(one_process: Worlds) -> None:
    player = Player(one_process, lamps(5))
    await player.does(*(f"press {switch}" for switch in solution(6, 5)))

    assert player.seen[-1].terminated
    assert await one_process.replay(player.world, player.actions) == [Replayed.of(each) for each in player.seen]


async def test_only_what_is_allowed_is_made(one_process: Worlds) -> None:
    """A job names an environment; what is imported for it, and which may run, is the operator's."""
    for world in (
        GymWorld(package="gymnasium", environment="CartPole-v1"),
        GymWorld(package="gymnasium", environment="antigravity:CartPole-v1"),
        GymWorld(package="gem", environment="code:CodeContest"),
    ):
        with pytest.raises(InvalidRequest):
            await one_process.go_on(world, "k", [], [])
    assert not one_process.pids, "nothing was started for them"


async def test_options_that_an_environment_does_not_take_are_the_jobs_fault(one_process: Worlds) -> None:
    with pytest.raises(InvalidRequest, match="expected 2 to 64 lamps"):
        await one_process.go_on(GymWorld(package="rollstream", environment="lamps", options={"lamps": 1}), "k", [], [])


class TestOfGymnasium:
    """Real environments of that package: its own, and ours that derive from its class."""

    @pytest.fixture
    async def worlds(self) -> AsyncIterator[Worlds]:
        pytest.importorskip("gymnasium")
        settings = SETTINGS.model_copy(
            update={"allowed": ("gymnasium/*",), "modules": ("tests.integration.gym.text_worlds",), "start_timeout_s": 30.0}
        )
        async with Worlds(settings) as worlds:
            yield worlds

    async def test_a_number_that_is_no_action_is_told_and_the_map_is_seen_as_text(self, worlds: Worlds) -> None:
        lake = GymWorld(package="gymnasium", environment="FrozenLake-v1", options={"render_mode": "ansi", "is_slippery": False}, seed=1)
        player = Player(worlds, lake)

        began = await player.does()
        moved = await player.does("1")
        refused = await worlds.go_on(lake, player.key, ["1", "up"], [each.digest for each in player.seen])

        assert began.text.startswith("[S]FFF")
        assert "[F]HFH" in moved.text
        assert refused == Refused("expected a whole number from 0 to 3")
        assert (await player.does("1")).text.endswith("[F]FFH\nHFFG"), "what was refused left no trace"

    async def test_spaces_that_cannot_be_said_are_refused(self, worlds: Worlds) -> None:
        with pytest.raises(InvalidRequest, match="no text"):
            await worlds.go_on(GymWorld(package="gymnasium", environment="CartPole-v1"), "k", [], [])

    @pytest.mark.parametrize(
        ("mode", "said"), [("raises", "the vault is jammed"), ("exits", "status 3"), ("spins", "no reply within"), ("eats", "MemoryError")]
    )
    async def test_an_action_that_breaks_its_environment_each_time_is_the_models_and_the_next_one_is_served(
        self, worlds: Worlds, mode: str, said: str, tmp_path: Path
    ) -> None:
        """Tried again by the queue until it is a failure, it would let a model that breaks its world escape a 0. The time for finding
        out is not the model's: its move has a limit, and processes that import a package would be beyond it."""
        stood: list[int] = []

        @contextmanager
        def waiting() -> Iterator[None]:
            yield
            stood.append(times(tmp_path))

        player = Player(worlds, vault(mode, tmp_path), waiting=waiting)
        await player.does("7")

        found = await player.asks("break")

        assert isinstance(found, Crashed)
        assert said in found.why
        assert times(tmp_path) == 2, "in two processes"
        assert stood == [0, 0, 0, 2], "for a place, three times, and for the second try and what was known to work"
        assert (await player.does("8")).text in ("higher", "lower", "open"), "made again, without the action that broke it"

    async def test_an_action_that_breaks_its_environment_once_is_done_in_the_next_process(self, worlds: Worlds, tmp_path: Path) -> None:
        player = Player(worlds, vault("exits", tmp_path, breaks=1))
        await player.does("7", "break", "8")

        assert times(tmp_path) == 1
        assert player.actions == ["7", "break", "8"]
        assert await worlds.replay(player.world, player.actions) == [Replayed.of(each) for each in player.seen]

    @pytest.mark.parametrize("resets_until", [1, 2])
    async def test_an_environment_that_cannot_be_made_again_is_nobodys_action(
        self, worlds: Worlds, resets_until: int, tmp_path: Path
    ) -> None:
        """It breaks on the action, and cannot be reset before (1) or after (2) the second try: the machine may be what is broken."""
        player = Player(worlds, vault("raises", tmp_path, resets_until=resets_until))
        await player.does("7")

        with pytest.raises(WorldBroke, match="the vault is gone"):
            await player.asks("break")

        assert times(tmp_path) == resets_until

    async def test_an_episode_is_replayed_whose_texts_together_are_more_than_a_reply_may_be(self, worlds: Worlds) -> None:
        """Each step's text came in a reply of its own; all of them in one were refused, and the episode could never be judged."""
        said = ["7"] * 12

        found = await worlds.replay(GymWorld(package="gymnasium", environment="tests/Vault-v0", options={"mode": "talks"}, seed=2), said)

        assert len(found) == 1 + len(said)
        assert 12 * TALK_CHARS > MAX_FRAME_BYTES

    async def test_where_the_solution_does_not_work_either_it_is_nobodys_action(self, worlds: Worlds, tmp_path: Path) -> None:
        player = Player(worlds, vault("raises", tmp_path), solution=["1", "break"])
        await player.does("7")

        with pytest.raises(WorldBroke, match="the vault is jammed"):
            await player.asks("break")

        assert times(tmp_path) == 3, "of which the last was the solution's"

    async def test_an_episode_that_goes_another_way_is_not_gone_on_with(self, worlds: Worlds) -> None:
        """Dice that no seed determines: as long as its process has it, it goes on; made again it would be another one."""
        dice = Player(worlds, GymWorld(package="gymnasium", environment="tests/Vault-v0", options={"mode": "dice"}))
        await dice.does("a", "b")
        await Player(worlds, lamps_of_gymnasium()).does()

        with pytest.raises(DoesNotReplay, match="action 1 brought something else"):
            await dice.does("c")


def lamps_of_gymnasium() -> GymWorld:
    """Any other episode."""
    return GymWorld(package="gymnasium", environment="tests/Vault-v0", seed=9)

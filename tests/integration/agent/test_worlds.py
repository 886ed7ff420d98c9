"""Turns that a world answers: when it is asked, what is recorded of it, and what ends the dialogue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from pipeline.messages import ChatMessage, Limits, StopReason
from pipeline.testing.builders import a_job, a_template
from tests.integration.agent.dialogues import TOKENIZER, Echo
from workers.agent import (
    ActiveTime,
    AgentEnd,
    AgentSettings,
    ChatMLRenderer,
    TrajectoryRecorder,
    TurnDelta,
    WorldOverran,
    WorldReply,
    run_agent,
)
from workers.llm.scripted import InProcessBackend
from workers.tools.base import ToolSet

CALL = '<tool_call>\n{"name": "echo", "arguments": {"text": "a"}}\n</tool_call>'


@dataclass
class Corridor:
    """A world of so many doors: it opens one a move."""

    doors: int
    moves: list[str] = field(default_factory=list)

    async def answer(self, said: str, *, timeout_s: float) -> WorldReply:
        self.moves.append(said)
        return WorldReply(text=f"door {len(self.moves)}", ends=len(self.moves) == self.doors)


class Silence:
    """A world that never answers."""

    async def answer(self, said: str, *, timeout_s: float) -> WorldReply:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")


@dataclass
class Held:
    """A dialogue, and what is seen of it."""

    turns: list[str]
    world: Corridor | Silence
    limits: Limits = field(default_factory=Limits)
    settings: AgentSettings = field(default_factory=AgentSettings)
    active: ActiveTime | None = None
    gate: Callable[[], None] = lambda: None
    recorder: TrajectoryRecorder = field(default_factory=TrajectoryRecorder)
    journal: list[tuple[TurnDelta, int]] = field(default_factory=list)
    """Each turn noted, and the model calls that had begun by then."""

    async def hold(self) -> AgentEnd:
        backend = InProcessBackend(self.turns, tokenizer=TOKENIZER)

        async def gate() -> None:
            self.gate()

        async def note(delta: TurnDelta) -> None:
            self.journal.append((delta, len(self.recorder.turns)))

        return await run_agent(
            replace(a_job(), template=a_template(limits=self.limits)),
            [ChatMessage(role="user", content="You stand in a corridor.")],
            backend=backend,
            renderer=ChatMLRenderer(TOKENIZER),
            tools=ToolSet([Echo(["heard"])]),
            recorder=self.recorder,
            gate=gate,
            journal=note,
            world=self.world,
            active=self.active,
            settings=self.settings,
        )

    def said(self) -> list[tuple[str, str]]:
        return [(message.role, message.content) for message in self.recorder.trajectory(StopReason.FINISHED).messages]


async def test_a_world_answers_turns_as_the_user_until_it_ends() -> None:
    world = Corridor(doors=2)
    held = Held(["north", "south"], world)

    end = await held.hold()

    assert (end.stop, end.answer, world.moves) == (StopReason.FINISHED, "south", ["north", "south"])
    assert held.said()[1:] == [("assistant", "north"), ("user", "door 1"), ("assistant", "south"), ("user", "door 2")]
    ids = held.recorder.trajectory(end.stop).segments[0].token_ids.tolist()
    text = TOKENIZER.decode(ids)
    assert "door 1" in text
    assert "door 2" not in text, "no turn follows the last answer, so no token is made of it"
    assert [begun for _, begun in held.journal] == [1, 2], "each turn is noted before the next call"


async def test_a_turn_that_calls_a_tool_is_no_move() -> None:
    world = Corridor(doors=1)

    end = await Held([CALL, "north"], world).hold()

    assert (end.answer, world.moves) == ("north", ["north"])


async def test_no_move_is_made_once_the_gate_is_shut() -> None:
    """The gate is passed for the first call, and shut before the move."""
    world, passed = Corridor(doors=2), []

    def gate() -> None:
        passed.append(True)
        if len(passed) == 2:
            raise RuntimeError("cancelled")

    held = Held(["north", "south"], world, gate=gate)
    with pytest.raises(RuntimeError, match="cancelled"):
        await held.hold()

    assert world.moves == []
    assert len(held.recorder.turns) == 1, "what was sampled stays recorded"


async def test_a_world_that_never_answers_is_broken_and_no_end_of_a_dialogue() -> None:
    limits = replace(Limits(), tool_timeout_s=0.01)

    with pytest.raises(WorldOverran):
        await Held(["north"], Silence(), limits=limits, settings=AgentSettings(tool_grace_s=0.01)).hold()


async def test_time_that_is_not_the_models_is_no_part_of_a_move() -> None:
    """A world that waits for a free process, or finds out whose doing a crash was, for ten times as long as a move may take."""
    limits, settings = replace(Limits(), tool_timeout_s=0.01), AgentSettings(tool_grace_s=0.01)
    active = ActiveTime(60.0)

    @dataclass
    class Queued(Corridor):
        async def answer(self, said: str, *, timeout_s: float) -> WorldReply:
            later = asyncio.Event()
            asyncio.get_running_loop().call_later(10 * (limits.tool_timeout_s + settings.tool_grace_s), later.set)
            with active.waiting():
                await later.wait()
            return await super().answer(said, timeout_s=timeout_s)

    end = await Held(["north"], Queued(doors=1), limits=limits, settings=settings, active=active).hold()

    assert end.stop is StopReason.FINISHED


async def test_what_a_world_raises_flies_as_it_is() -> None:
    class Ruin(Silence):
        async def answer(self, said: str, *, timeout_s: float) -> WorldReply:
            raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        await Held(["north"], Ruin()).hold()


async def test_a_dialogue_that_is_cancelled_cancels_its_world() -> None:
    reached, left = asyncio.Event(), asyncio.Event()

    class Cave(Silence):
        async def answer(self, said: str, *, timeout_s: float) -> WorldReply:
            reached.set()
            try:
                return await super().answer(said, timeout_s=timeout_s)
            finally:
                left.set()

    dialogue = asyncio.create_task(Held(["north"], Cave()).hold())
    await reached.wait()
    dialogue.cancel()
    with pytest.raises(asyncio.CancelledError):
        await dialogue

    assert left.is_set(), "before the dialogue is over"


async def test_a_world_has_no_more_turns_than_the_job() -> None:
    world = Corridor(doors=9)

    end = await Held(["one", "two", "three"], world, limits=replace(Limits(), max_turns=2)).hold()

    assert (end.stop, world.moves) == (StopReason.TURNS, ["one", "two"])


async def test_doing_the_same_to_a_world_that_answers_the_same_is_stuck_and_to_one_that_changes_is_not() -> None:
    @dataclass
    class Wall(Corridor):
        async def answer(self, said: str, *, timeout_s: float) -> WorldReply:
            await super().answer(said, timeout_s=timeout_s)
            return WorldReply(text="a wall")

    stuck = await Held(["north"] * 6, Wall(doors=9)).hold()
    walking = await Held(["north"] * 6, Corridor(doors=6)).hold()

    assert (stuck.stop, walking.stop) == (StopReason.STUCK, StopReason.FINISHED)

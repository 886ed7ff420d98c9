"""Environments of verifiers, real classes of that package: their own rollouts ask, their own rubrics score."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pipeline.errors import InvalidRequest
from workers.graders.gym import GymSettings, GymWorld, Happened, Replayed, Worlds

pytestmark = pytest.mark.timeout(300)
"""The package is imported for half a minute, in a process a test."""
NAME = "tests.integration.gym.verifiers_worlds"


def world(kind: str, row: int = 0) -> GymWorld:
    return GymWorld(package="verifiers", environment=NAME, options={"kind": kind}, seed=row)


@pytest.fixture
async def worlds() -> AsyncIterator[Worlds]:
    verifiers = pytest.importorskip("verifiers", reason="verifiers wants an environment of its own")
    if not hasattr(verifiers, "load_environment"):
        pytest.skip(f"verifiers {verifiers.__version__} has no load_environment")
    async with Worlds(GymSettings(processes=1, allowed=(f"verifiers/{NAME}",), memory_mb=8192)) as opened:
        yield opened


async def test_one_turn_is_asked_and_scored(worlds: Worlds) -> None:
    began, ended = await worlds.replay(world("single", 1), ["esael"])

    assert began == Replayed.of(Happened("lease", 0.0, False, False, "Reverse the word."))
    assert ended == Replayed.of(Happened("", 1.5, True, False))
    assert (await worlds.replay(world("single", 1), ["lease"]))[-1].reward == 0.5


async def test_several_turns_go_on_as_the_environment_answers(worlds: Worlds) -> None:
    said = ["worker", "rekrow?", "rekrow"]
    key = worlds.new_key()
    known: list[str] = []
    for number in range(len(said) + 1):
        found = await worlds.go_on(world("hints", 2), key, said[:number], known)
        assert isinstance(found, Happened)
        known.append(found.digest)
        if number == 1:
            assert found.text == "It begins with r."

    assert found == Happened("Right.", 1.0, True, False)
    assert [each.digest for each in await worlds.replay(world("hints", 2), said)] == known


async def test_an_environment_that_stops_by_itself_is_scored_as_it_stands(worlds: Worlds) -> None:
    found = await worlds.replay(world("hints"), ["a", "b", "c", "d"])

    assert [each.terminated for each in found] == [False, False, False, False, True]
    assert found[-1].reward == 0.0


@pytest.mark.parametrize(("kind", "why"), [("tools", "tools of its own"), ("few shots", "a prompt of user, assistant, user")])
async def test_what_cannot_be_shown_as_one_dialogue_is_refused(worlds: Worlds, kind: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        await worlds.go_on(world(kind), "k", [], [])


async def test_a_row_that_is_not_there_is_refused(worlds: Worlds) -> None:
    with pytest.raises(InvalidRequest, match="row 9 of 3"):
        await worlds.go_on(world("single", 9), "k", [], [])

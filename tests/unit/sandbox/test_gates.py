"""Who may start next: in order, bounded for the node and for each image, and no place is lost by whoever is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from workers.sandbox.service.gates import StartGates

Enter = Callable[..., "asyncio.Task[None]"]


@pytest.fixture
async def gates() -> StartGates:
    return StartGates(starts=2, per_image=1)


@pytest.fixture
async def enter(gates: StartGates) -> AsyncIterator[Enter]:
    begun: list[asyncio.Task[None]] = []

    def begin(image: str = "", *, spare: bool = False) -> asyncio.Task[None]:
        begun.append(asyncio.create_task(gates.enter(image, spare=spare)))
        return begun[-1]

    yield begin
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)


async def settled() -> None:
    """Until every task has run as far as it can: each pass wakes what the one before made ready."""
    for _ in range(5):
        await asyncio.sleep(0)


async def inside(*tasks: asyncio.Task[None]) -> list[bool]:
    await settled()
    return [task.done() and not task.cancelled() for task in tasks]


async def test_places_are_given_in_the_order_of_coming(gates: StartGates, enter: Enter) -> None:
    tasks = [enter() for _ in range(4)]
    assert await inside(*tasks) == [True, True, False, False]

    gates.leave("")
    assert await inside(*tasks) == [True, True, True, False]

    gates.leave("")
    assert await inside(*tasks) == [True, True, True, True]


async def test_an_image_that_is_full_lets_others_pass_and_is_asked_first_again(gates: StartGates, enter: Enter) -> None:
    first, second, other, third = enter("a"), enter("a"), enter("b"), enter("b")
    assert await inside(first, second, other, third) == [True, False, True, False]

    gates.leave("a")

    assert await inside(second, third) == [True, False]


async def test_no_image_is_bounded_by_the_node_alone(gates: StartGates, enter: Enter) -> None:
    assert await inside(enter(""), enter(""), enter("")) == [True, True, False]


async def test_who_is_cancelled_leaves_the_line(gates: StartGates, enter: Enter) -> None:
    tasks = [enter() for _ in range(4)]
    await settled()
    tasks[2].cancel()
    await settled()
    assert gates.waiting == 1

    gates.leave("")

    assert await inside(tasks[3]) == [True]
    assert gates.running == 2


async def test_a_place_given_in_the_moment_of_the_cancel_goes_to_the_next(gates: StartGates, enter: Enter) -> None:
    """The place was given, its waiter had not run yet, and was cancelled: the place would be lost for ever."""
    tasks = [enter() for _ in range(4)]
    await settled()

    gates.leave("")  # gives the place to tasks[2], which has not run
    tasks[2].cancel()

    assert await inside(tasks[3]) == [True]
    assert gates.running == 2


async def test_a_cancelled_waiter_that_has_not_run_is_given_no_place(gates: StartGates, enter: Enter) -> None:
    """Its turn was cancelled already when a place came free: giving it one would fail, and stop the line."""
    tasks = [enter() for _ in range(4)]
    await settled()

    tasks[2].cancel()
    gates.leave("")

    assert await inside(tasks[3]) == [True]
    assert gates.running == 2


async def test_spare_starts_wait_for_everybody_else(gates: StartGates, enter: Enter) -> None:
    first, second = enter("a"), enter("b")
    spare, waits = enter("c", spare=True), enter("a")
    await settled()

    gates.leave("b")
    assert await inside(first, second, waits, spare) == [True, True, False, False]  # one place is free, and somebody waits for image a

    waits.cancel()
    assert await inside(spare) == [True]

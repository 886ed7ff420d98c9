"""Answers that nobody reads yet are bounded: the next one waits, and goes when there is room."""

from __future__ import annotations

import asyncio

from ops.gateway.answers import LargeAnswers


async def test_an_answer_waits_until_another_is_out() -> None:
    large = LargeAnswers(most_bytes=1000, at_once=2)
    first = await large.make(lambda: "x" * 700)

    second = asyncio.create_task(large.make(lambda: "y" * 700))
    alone = asyncio.create_task(large.make(lambda: "z" * 5000))
    done, _ = await asyncio.wait((second, alone), timeout=0.05)
    assert not done
    assert large.unsent_bytes == 702

    large.forget(first)
    done, _ = await asyncio.wait((second, alone), return_when=asyncio.FIRST_COMPLETED)
    (one,) = done
    large.forget(one.result())
    await asyncio.gather(second, alone)
    for task in (second, alone):
        large.forget(task.result())
    assert large.unsent_bytes == 0


async def test_one_that_is_larger_than_the_bound_goes_alone() -> None:
    large = LargeAnswers(most_bytes=10, at_once=1)

    answer = await large.make(lambda: ["x" * 100])

    assert large.unsent_bytes == 104
    large.forget(answer)
    large.forget(answer)
    assert large.unsent_bytes == 0


async def test_what_cannot_be_made_takes_no_place() -> None:
    large = LargeAnswers(most_bytes=1000, at_once=1)
    for _ in range(3):
        task = asyncio.create_task(large.make(lambda: object()))
        await asyncio.wait((task,))
        assert isinstance(task.exception(), TypeError)

    assert (await large.make(lambda: 1)).body == b"1"

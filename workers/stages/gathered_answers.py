"""What many ask in one turn of the event loop goes out as one question, and each gets its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import redis

from pipeline.errors import RollstreamError

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class GatheredAnswers(Generic[Item, Answer]):
    """Gathers questions of one kind.

    Args:
        send: takes what was gathered, and answers in its order; its error goes to each that asked.
        name: of the tasks that send.
        most: questions that go out together.
    """

    def __init__(self, send: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]], name: str, *, most: int) -> None:
        self._send = send
        self._name = name
        self._most = most
        self._asked: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._sending: set[asyncio.Task[None]] = set()

    def ask(self, item: Item) -> asyncio.Future[Answer]:
        """The answer to come. Who no longer waits for it does not keep the question from being asked."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_heard)
        if not self._asked:
            task = asyncio.create_task(self._send_all(), name=self._name)
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        self._asked.append((item, answer))
        return answer

    async def close(self) -> None:
        """Returns when all that was asked is answered."""
        await asyncio.gather(*self._sending, return_exceptions=True)

    async def _send_all(self) -> None:
        await asyncio.sleep(0)  # others of this turn come with us
        asked, self._asked = self._asked, []
        for at in range(0, len(asked), self._most):
            await self._send_some(asked[at : at + self._most])

    async def _send_some(self, asked: Sequence[tuple[Item, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._send([item for item, _ in asked])
        except BaseException as error:
            for _, answer in asked:  # each that asked hears it, whatever it is: nobody waits for ever
                if not answer.done():
                    answer.set_exception(error if isinstance(error, Exception) else RuntimeError("stopped before it was answered"))
            if not isinstance(error, RollstreamError | redis.RedisError):
                raise
            return
        for (_, answer), said in zip(asked, answers, strict=True):
            if not answer.done():
                answer.set_result(said)


def _heard(answer: asyncio.Future[Answer]) -> None:
    if not answer.cancelled():
        answer.exception()  # whoever asked may be gone; it is not lost to those who wait

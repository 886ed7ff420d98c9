"""The client for code without an event loop: the same objects, driven by one loop in a thread of its own.

There is no second implementation. `Blocking` stands for any object of the client: a call runs on the loop and blocks until it is done,
an async iterator becomes an iterator, and objects of the client that come back are wrapped in turn. What is passed in is unwrapped. Values
and records pass as they are.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from inspect import isawaitable
from types import TracebackType
from typing import Any, TypeVar

from pipeline.settings import QueueSettings
from trainer_client.connecting import connect
from trainer_client.contact import PATIENCE_S
from trainer_client.errors import ClientClosed, ClientForked
from trainer_client.on_loop import OnLoop

T = TypeVar("T")

WRAPPED = (OnLoop, asyncio.Event)
"""Objects with methods that belong on the loop; everything else that comes back is a value."""
_END = object()


class LoopThread:
    """Holds a connection, of a run or of a reader, on an event loop of its own, in a thread, from `open` to `close`.

    Args:
        holds: what it is of, for messages: id of a run, or what a reader calls itself.
    """

    def __init__(self, connection: AbstractAsyncContextManager[object], holds: str) -> None:
        self._connection = connection
        self._holds = holds
        self._entered: Future[object] = Future()
        self._thread = threading.Thread(target=self._live, name="rollstream-client", daemon=True)
        self._failure: BaseException | None = None
        self._pid = os.getpid()

    def open(self) -> object:
        """Starts the thread; returns the run, or the reader, when it is connected."""
        self._thread.start()
        try:
            return self._entered.result()
        except BaseException:
            self._entered.cancel()
            raise

    def close(self) -> None:
        """Lets go of the run and ends the thread; raises what went wrong in that."""
        self._loop.call_soon_threadsafe(self._leave.set)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the loop and waits for it. An interrupt (Ctrl-C) cancels it there first."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError(
                "the blocking client was called from its own loop, which would wait for itself for ever: call it from another thread, or "
                "give a function, which runs in a thread, where a coroutine was given"
            )
        if os.getpid() != self._pid or self._loop.is_closed():
            work.close()
            raise ClientForked(self._holds, self._pid) if os.getpid() != self._pid else ClientClosed(self._holds)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _live(self) -> None:
        try:
            asyncio.run(self._hold())
        except BaseException as error:  # noqa: BLE001  # carried to the thread that opens or closes
            if self._entered.done():
                self._failure = error
            else:
                self._entered.set_exception(error)

    async def _hold(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._leave = asyncio.Event()
        async with self._connection as held:
            if self._entered.set_running_or_notify_cancel():
                self._entered.set_result(held)
                await self._leave.wait()


class Blocking:
    """Stands for one object of the client.

    Typed as Any on purpose: it has the attributes of what it stands for, with `await` left out.
    """

    __slots__ = ("_target", "_thread")

    def __init__(self, target: object, thread: LoopThread) -> None:
        self._target = target
        self._thread = thread

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        return self._caller(value) if callable(value) else _wrap(value, self._thread)

    def _caller(self, method: Callable[..., object]) -> Callable[..., Any]:
        def call(*args: object, **options: object) -> Any:
            given = [_unwrap(arg) for arg in args]
            named = {name: _unwrap(value) for name, value in options.items()}

            async def run_there() -> object:
                answer = method(*given, **named)
                return await answer if isawaitable(answer) else answer

            return _wrap(self._thread.call(run_there()), self._thread)

        call.__name__ = getattr(method, "__name__", "call")
        call.__doc__ = method.__doc__
        return call

    def __dir__(self) -> list[str]:
        return dir(self._target)

    def __repr__(self) -> str:
        return f"<blocking {self._target!r}>"


class BlockingContext:
    """Stands for an async context manager: entered and left on the loop, its block runs here."""

    def __init__(self, context: AbstractAsyncContextManager[object], thread: LoopThread) -> None:
        self._context = context
        self._thread = thread

    def __enter__(self) -> Any:
        return _wrap(self._thread.call(self._enter()), self._thread)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        return bool(self._thread.call(self._leave(kind, error, trace)))

    async def _enter(self) -> object:
        return await self._context.__aenter__()

    async def _leave(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        return await self._context.__aexit__(kind, error, trace)


class BlockingIterator:
    """Stands for an async iterator."""

    def __init__(self, source: AsyncIterator[object], thread: LoopThread) -> None:
        self._source = source
        self._thread = thread

    def __iter__(self) -> BlockingIterator:
        return self

    def __next__(self) -> Any:
        item = self._thread.call(_next(self._source))
        if item is _END:
            raise StopIteration
        return _wrap(item, self._thread)


async def _next(source: AsyncIterator[object]) -> object:
    return await anext(source, _END)


def _wrap(value: object, thread: LoopThread) -> object:
    if isinstance(value, WRAPPED):
        return Blocking(value, thread)
    if isinstance(value, AbstractAsyncContextManager):
        return BlockingContext(value, thread)
    if isinstance(value, AsyncIterator):
        return BlockingIterator(value, thread)
    if isinstance(value, list | tuple) and any(isinstance(item, WRAPPED) for item in value):
        return type(value)(_wrap(item, thread) for item in value)
    return value


def _unwrap(value: object) -> object:
    if isinstance(value, Blocking):
        return value._target
    if isinstance(value, list | tuple) and any(isinstance(item, Blocking) for item in value):
        return type(value)(_unwrap(item) for item in value)
    return value


@contextmanager
def connect_blocking(
    redis: str | QueueSettings | None = None,
    *,
    run: str,
    resume: Mapping[str, object] | None = None,
    weight: float | None = None,
    quota: int | None = None,
    patience_s: float = PATIENCE_S,
) -> Iterator[Any]:
    """`connect` without an event loop: `with connect_blocking(url, run="swe-7b") as run:`, then the same calls without `await`."""
    with _held(connect(redis, run=run, resume=resume, weight=weight, quota=quota, patience_s=patience_s), run) as held:
        yield held


@contextmanager
def connect_reader_blocking(redis: str | QueueSettings | None = None, *, patience_s: float = PATIENCE_S) -> Iterator[Any]:
    """`connect_reader` without an event loop: `with connect_reader_blocking(url) as reader: batch = reader.batch(manifest, ...)`."""
    from trainer_client.batches.reader import LABEL, connect_reader

    with _held(connect_reader(redis, patience_s=patience_s), LABEL) as held:
        yield held


@contextmanager
def _held(connection: AbstractAsyncContextManager[object], holds: str) -> Iterator[Blocking]:
    thread = LoopThread(connection, holds)
    held = thread.open()
    try:
        yield Blocking(held, thread)
    finally:
        thread.close()

"""What the server and the routes of a wire know of each other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from aiohttp import web

from workers.llm.scripted.call import Call, Output
from workers.llm.scripted.faults import Corruption
from workers.llm.scripted.http import Body
from workers.llm.scripted.options import ServerOptions
from workers.llm.scripted.served_engine import ServedEngine
from workers.llm.tokenizer import Tokenizer

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Host(Protocol):
    """The server, as its routes see it."""

    options: ServerOptions
    tokenizer: Tokenizer

    @property
    def engine(self) -> ServedEngine:
        """Another one after a restart."""
        ...

    started_s: float
    """Names this start of the server; wall time."""


class Routes(Protocol):
    """One wire."""

    @property
    def generation(self) -> tuple[str, ...]:
        """Routes by which tokens are sampled."""
        ...

    def add_to(self, app: web.Application) -> None:
        """Add its other routes."""
        ...

    def is_guarded(self, path: str) -> bool:
        """Whether the key is wanted there."""
        ...

    def error(self, message: str, kind: str, status: int, param: str = "") -> Body:
        """The body of an error."""
        ...

    def detokenized(self, text: str) -> Body:
        """The answer of `/detokenize`."""
        ...

    def id_in(self, body: Body) -> object:
        """The name that a request gives itself; None = none."""
        ...

    def read(self, path: str, body: Body, name: str) -> Call:
        """The call that a request asks for.

        Raises:
            BadRequestError
        """
        ...

    def write(self, path: str, body: Body, call: Call, output: Output) -> Body:
        """The answer."""
        ...

    def corrupt(self, answer: Body, how: Corruption) -> Body | list[Body] | bytes:
        """A good answer, bent in one way; bytes where it is no JSON any more."""
        ...

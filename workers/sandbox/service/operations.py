"""What a connection may ask for: the words of the wire on one side, the interface of sandboxes on the other.

An operation reads its arguments first, which may raise `ValueError`, and answers an awaitable that does the work.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from pipeline import codec
from workers.sandbox.base import Kernel, Shell, ShellStdin
from workers.sandbox.service.wire import MAX_MESSAGE_BYTES, Message
from workers.sandbox.spec import SandboxHandle, SandboxOwner, SandboxSpec, Snapshot

if TYPE_CHECKING:
    from workers.sandbox.service.connection import Connection

MAX_OUTPUT_BYTES = 32 * 1024 * 1024
"""No more output of one command comes back, whatever was asked for; what is dropped is counted in the result, as ever."""
MAX_IMAGES = 8
"""Of one cell."""
MAX_CONTENT_BYTES = MAX_MESSAGE_BYTES - 4096

T = TypeVar("T")
Record = TypeVar("Record")
Operation = Callable[["Connection", Message], Awaitable[object]]


def argument(message: Message, name: str, kind: type[T]) -> T:
    """One argument of a call. Numbers are finite: a time that is none (NaN) stops an event loop, and with it the sandboxes of all.

    Raises:
        ValueError: it is not there, or of another type.
    """
    value = message.get(name)
    if kind is float and type(value) is int:
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{message.get('op')}: {name} should be {kind.__name__}, got {type(value).__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{message.get('op')}: {name} should be a finite number, got {value}")
    return value


def record(message: Message, name: str, cls: type[Record]) -> Record:
    """One argument that is a record.

    Raises:
        ValueError
    """
    try:
        return codec.from_map(cls, message.get(name))
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(f"{message.get('op')}: {name} is no {cls.__name__}: {error}") from error


def _optional_float(message: Message, name: str) -> float | None:
    return None if message.get(name) is None else argument(message, name, float)


def _output_bytes(message: Message) -> int:
    return min(argument(message, "max_output_bytes", int), MAX_OUTPUT_BYTES)


# -- sandboxes ----------------------------------------------------------------------------------------------------------------------------


def start(connection: Connection, message: Message) -> Awaitable[object]:
    return connection.start(record(message, "spec", SandboxSpec), record(message, "owner", SandboxOwner))


def attach(connection: Connection, message: Message) -> Awaitable[object]:
    handle = SandboxHandle.from_map(argument(message, "handle", dict))
    return connection.attach(handle, record(message, "owner", SandboxOwner))


async def park(connection: Connection, message: Message) -> object:
    sandbox = connection.sandbox
    handle = await sandbox.park()
    connection.release()
    return {**handle.to_map(), "use": (await sandbox.use()).to_map()}


def restore(connection: Connection, message: Message) -> Awaitable[object]:
    snapshot = Snapshot.from_map(argument(message, "snapshot", dict))
    return connection.restore(snapshot, record(message, "owner", SandboxOwner))


async def snapshot(connection: Connection, message: Message) -> object:
    return (await connection.snapshot()).to_map()


def drop(connection: Connection, message: Message) -> Awaitable[object]:
    snapshot = Snapshot.from_map(argument(message, "snapshot", dict))
    return connection.node.provider.drop(snapshot, record(message, "owner", SandboxOwner))


async def stop(connection: Connection, message: Message) -> object:
    grace_s = argument(message, "grace_s", float)
    if connection.attachment is None:  # stopping what was parked or stopped is nothing
        return None
    return await _ended(connection, connection.sandbox.stop(grace_s=grace_s))


async def kill(connection: Connection, message: Message) -> object:
    return None if connection.attachment is None else await _ended(connection, connection.sandbox.kill())


async def _ended(connection: Connection, ending: Awaitable[None]) -> object:
    """The end of the connection's sandbox says what it has used: nobody can ask it any more."""
    sandbox = connection.sandbox
    await ending
    connection.release()
    return {"use": (await sandbox.use()).to_map()}


async def use(connection: Connection, message: Message) -> object:
    return (await connection.sandbox.use()).to_map()


# -- commands and files -------------------------------------------------------------------------------------------------------------------


def execute(connection: Connection, message: Message) -> Awaitable[object]:
    command = message.get("command")
    if not isinstance(command, str) and not (isinstance(command, list) and all(isinstance(word, str) for word in command)):
        raise ValueError("exec: command should be a text or a list of texts")
    env = message.get("env")
    if env is not None and not (isinstance(env, dict) and all(isinstance(word, str) for pair in env.items() for word in pair)):
        raise ValueError("exec: env should be a map of texts")
    return connection.sandbox.exec(
        cast(str | Sequence[str], command),
        stdin=argument(message, "stdin", bytes),
        cwd=argument(message, "cwd", str),
        env=cast(Mapping[str, str] | None, env),
        timeout_s=argument(message, "timeout_s", float),
        max_output_bytes=_output_bytes(message),
    )


def read_file(connection: Connection, message: Message) -> Awaitable[object]:
    max_bytes = min(argument(message, "max_bytes", int), MAX_CONTENT_BYTES)
    return connection.sandbox.read_file(argument(message, "path", str), max_bytes=max_bytes)


def write_file(connection: Connection, message: Message) -> Awaitable[object]:
    return connection.sandbox.write_file(
        argument(message, "path", str), argument(message, "content", bytes), executable=argument(message, "executable", bool)
    )


async def list_files(connection: Connection, message: Message) -> object:
    return [codec.to_map(entry) for entry in await connection.sandbox.list(argument(message, "path", str))]


def upload(connection: Connection, message: Message) -> Awaitable[object]:
    folder, max_bytes = argument(message, "folder", str), argument(message, "max_bytes", int)
    return connection.upload(message["id"], folder, max_bytes)


def download(connection: Connection, message: Message) -> Awaitable[object]:
    path, max_bytes = argument(message, "path", str), argument(message, "max_bytes", int)
    return connection.download(message["id"], path, max_bytes)


# -- shells and kernels -------------------------------------------------------------------------------------------------------------------


def _shell(connection: Connection, message: Message) -> Shell:
    return connection.sandbox.shell(argument(message, "name", str))


def _kernel(connection: Connection, message: Message) -> Kernel:
    return connection.sandbox.kernel(argument(message, "name", str))


def shell_run(connection: Connection, message: Message) -> Awaitable[object]:
    stdin = argument(message, "stdin", str)
    if stdin not in ("null", "tty"):
        raise ValueError(f"shell.run: stdin should be null or tty, got {stdin!r}")
    return _shell(connection, message).run(
        argument(message, "command", str),
        timeout_s=argument(message, "timeout_s", float),
        no_change_timeout_s=_optional_float(message, "no_change_timeout_s"),
        max_output_bytes=_output_bytes(message),
        stdin=cast(ShellStdin, stdin),
    )


def shell_wait(connection: Connection, message: Message) -> Awaitable[object]:
    return _shell(connection, message).wait(
        timeout_s=argument(message, "timeout_s", float),
        no_change_timeout_s=_optional_float(message, "no_change_timeout_s"),
        max_output_bytes=_output_bytes(message),
    )


def shell_send(connection: Connection, message: Message) -> Awaitable[object]:
    return _shell(connection, message).send(argument(message, "text", str))


def shell_interrupt(connection: Connection, message: Message) -> Awaitable[object]:
    return _shell(connection, message).interrupt()


def shell_close(connection: Connection, message: Message) -> Awaitable[object]:
    return _shell(connection, message).close()


def kernel_run(connection: Connection, message: Message) -> Awaitable[object]:
    return _kernel(connection, message).run(
        argument(message, "code", str),
        timeout_s=argument(message, "timeout_s", float),
        max_output_bytes=_output_bytes(message),
        max_images=min(argument(message, "max_images", int), MAX_IMAGES) if "max_images" in message else 0,
    )


def kernel_interrupt(connection: Connection, message: Message) -> Awaitable[object]:
    return _kernel(connection, message).interrupt()


def kernel_restart(connection: Connection, message: Message) -> Awaitable[object]:
    return _kernel(connection, message).restart()


def kernel_close(connection: Connection, message: Message) -> Awaitable[object]:
    return _kernel(connection, message).close()


# -- the node -----------------------------------------------------------------------------------------------------------------------------


async def probe(connection: Connection, message: Message) -> object:
    return codec.to_map(await connection.node.probe())


def settle(connection: Connection, message: Message) -> Awaitable[object]:
    return connection.node.settle()


async def owners(connection: Connection, message: Message) -> object:
    return [codec.to_map(owned) for owned in await connection.node.owned(connection.worker.fleet)]


async def views(connection: Connection, message: Message) -> object:
    found = await connection.node.views(argument(message, "prefix", str), with_processes=argument(message, "processes", bool))
    return [codec.to_map(view) for view in found]


async def end(connection: Connection, message: Message) -> object:
    asked = argument(message, "sandboxes", list)
    if not all(isinstance(each, str) for each in asked):
        raise ValueError("end: sandboxes should be a list of texts")
    return codec.to_map(await connection.node.end(asked, argument(message, "why", str)))


OPERATIONS: dict[str, Operation] = {
    "start": start,
    "attach": attach,
    "snapshot": snapshot,
    "restore": restore,
    "drop": drop,
    "park": park,
    "stop": stop,
    "kill": kill,
    "use": use,
    "exec": execute,
    "upload": upload,
    "download": download,
    "read_file": read_file,
    "write_file": write_file,
    "list": list_files,
    "shell.run": shell_run,
    "shell.wait": shell_wait,
    "shell.send": shell_send,
    "shell.interrupt": shell_interrupt,
    "shell.close": shell_close,
    "kernel.run": kernel_run,
    "kernel.interrupt": kernel_interrupt,
    "kernel.restart": kernel_restart,
    "kernel.close": kernel_close,
    "probe": probe,
    "settle": settle,
    "owners": owners,
    "views": views,
    "end": end,
}

"""`rollstream redis cli`: a prompt on the Redis that Rollstream uses, so that nobody needs to install one.

    rollstream redis cli                              a prompt, with history
    rollstream redis cli XRANGE '{rs:0}:s:run' - +    one command
    rollstream redis cli < commands.txt               a command a line

It connects to `ROLLSTREAM_REDIS_URL` (behind Sentinels to the master they name now, of a Cluster to the node of shard 0), or to the
embedded server, which stays for as long as the prompt does. Where a `redis-cli` or
`valkey-cli` program is installed it is used instead, unless `--own` or `--json` says otherwise; its password goes through its environment.
Before a command the server has to answer within seconds: such a program would wait for a frozen one for ever.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast
from urllib.parse import parse_qs, parse_qsl, quote, unquote, urlencode, urlsplit

import redis
from redis.exceptions import BusyLoadingError

from ops.redis.replies import Failure, Reply, Status, TypedParser, as_json, raw, readable
from ops.redis.words import UnbalancedQuotes, split_words
from pipeline.embedded import RedisAddress, open_redis
from pipeline.errors import BrokerUnreachable, InvalidRequest, RollstreamError
from pipeline.folders import Folders, make_folder
from pipeline.redis_address import SetUp, parse_redis_url
from pipeline.redis_client import broker_error, server_now
from pipeline.settings import ENVIRONMENT_PREFIX, QueueSettings

USAGE = """\
rollstream redis cli [options] [command [argument ...]]

  --json      answer on one line of JSON
  --raw       answer with the bytes of the values (the default when the output is no terminal)
  --no-raw    answer for people, also into a pipe
  -n NUMBER   database
  -3          speak RESP3: maps, sets and doubles keep their type
  --own       do not use an installed redis-cli or valkey-cli

Without a command: a prompt, or the commands on standard input, one a line.
"""

_STREAMING = frozenset({b"monitor", b"subscribe", b"psubscribe", b"ssubscribe"})
"""Commands after which the server goes on talking."""
_SECRET = ("auth", "acl setuser", "config set", "hello", "migrate")
"""How lines begin that may hold a password; they are kept out of the history."""
_HISTORY_LENGTH = 2_000
_ANSWER_S = 5.0
"""A server that has said nothing for so long is not reached. Commands that block wait longer: only the first word has to come by then."""
_ADDRESS = ("redis_url", "redis_user", "redis_password_file", "redis_ca_file", "redis_cert_file", "redis_key_file", "namespace")
"""Settings that say where Redis is."""
_TLS_OPTIONS = {"ssl_ca_certs": "--cacert", "ssl_certfile": "--cert", "ssl_keyfile": "--key"}
"""Of an installed client, by what redis-py calls them."""


class Shape(StrEnum):
    """How answers are shown."""

    READABLE = "readable"
    RAW = "raw"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line."""

    shape: Shape | None = None
    """None: by what the output is."""
    database: int | None = None
    resp3: bool = False
    own: bool = False
    show_help: bool = False
    command: tuple[str, ...] = ()


def parse_options(argv: list[str]) -> Options:
    """Reads options up to the first word that is none; the rest is the command.

    Raises:
        InvalidRequest: an option that we do not know.
    """
    shape: Shape | None = None
    database: int | None = None
    resp3 = own = show_help = False
    words = list(argv)
    while words and words[0].startswith("-"):
        option = words.pop(0)
        match option:
            case "--json":
                shape = Shape.JSON
            case "--raw":
                shape = Shape.RAW
            case "--no-raw":
                shape = Shape.READABLE
            case "-3":
                resp3 = True
            case "--own":
                own = True
            case "-h" | "--help":
                show_help = True
            case "-n":
                number = words.pop(0) if words else ""
                if not number.isdigit():
                    raise InvalidRequest(f"-n wants the number of a database, not {number!r}")
                database = int(number)
            case _:
                raise InvalidRequest(f"unknown option {option!r}; `rollstream redis cli --help` lists what there is")
    return Options(shape=shape, database=database, resp3=resp3, own=own, show_help=show_help, command=tuple(words))


class _Wire(Protocol):
    """What we use of a redis-py connection that reads with `TypedParser`."""

    def connect(self) -> None: ...
    def disconnect(self) -> None: ...
    def send_command(self, *words: bytes, check_health: bool) -> None: ...
    def read_response(self) -> Reply: ...


class Prompt:
    """One connection, and what a person does with it. A lost connection is made again with the next command."""

    def __init__(self, address: RedisAddress, options: Options, shape: Shape) -> None:
        pool = redis.ConnectionPool.from_url(
            address.url, password=address.password, parser_class=TypedParser, protocol=2, retry=None, socket_timeout=None
        )
        self._connection = cast(_Wire, pool.make_connection())  # redis-py leaves these methods untyped
        self._options = options
        self._shape = shape
        self._place = _place(address)
        self._database = options.database if options.database is not None else _database(address)
        self._is_connected = False

    def close(self) -> None:
        """Hangs up."""
        self._connection.disconnect()

    @property
    def text(self) -> str:
        """What stands before the cursor."""
        if not self._is_connected:
            return "not connected> "
        return f"{self._place}[{self._database}]> " if self._database else f"{self._place}> "

    def connect(self) -> None:
        """Connects, if need be.

        Raises:
            redis.RedisError: the server is not there, or does not let us in.
        """
        if self._is_connected:
            return
        self._connection.connect()
        if self._options.resp3 or self._shape is Shape.JSON:  # in JSON a map is an object
            self._ask(b"HELLO", b"3")
        self._ask(b"SELECT", b"%d" % self._database)
        self._is_connected = True

    def run(self, words: list[bytes]) -> bool:
        """Runs a command and shows its answer; False when it failed."""
        try:
            self.connect()
            reply = self._ask(*words)
            self._show(reply)
            if words[0].lower() in _STREAMING and not isinstance(reply, Failure):
                self._follow()
        except redis.ResponseError as error:
            self._show(Failure(str(error)))
            return False
        except (redis.RedisError, OSError) as error:
            self._hang_up()
            print(f"rollstream redis cli: {error}", file=sys.stderr)
            return False
        except KeyboardInterrupt:  # the answer is still to come: this connection is of no use any more
            self._hang_up()
            return False
        if words[0].lower() == b"select" and len(words) > 1 and isinstance(reply, Status):
            self._database = int(words[1])
        return True

    def _ask(self, *words: bytes) -> Reply:
        self._connection.send_command(*words, check_health=False)
        return self._connection.read_response()

    def _follow(self) -> None:
        """Shows what comes until Ctrl-C."""
        while True:
            self._show(self._connection.read_response())

    def _hang_up(self) -> None:
        self._connection.disconnect()
        self._is_connected = False

    def _show(self, reply: Reply) -> None:
        match self._shape:
            case Shape.READABLE:
                print(readable(reply), flush=True)
            case Shape.JSON:
                print(as_json(reply), flush=True)
            case Shape.RAW:
                sys.stdout.buffer.write(raw(reply) + b"\n")
                sys.stdout.buffer.flush()


def _place(address: RedisAddress) -> str:
    """The server as the prompt names it."""
    parts = urlsplit(address.url)
    return f"redis {unquote(parts.path)}" if parts.scheme == "unix" else f"{parts.hostname}:{parts.port or 6379}"


def _database(address: RedisAddress) -> int:
    """The database that a URL names."""
    parts = urlsplit(address.url)
    asked = parse_qs(parts.query).get("db", [""])[0]
    path = "" if parts.scheme == "unix" else parts.path.strip("/")
    number = asked or path
    return int(number) if number.isdigit() else 0


def cli(argv: list[str], *, environ: Mapping[str, str] | None = None) -> int:
    """The command `rollstream redis cli`.

    Args:
        argv: what follows `cli`.
        environ: settings; the process's environment by default.

    Returns:
        The exit code: 0, or 1 when a command failed or the options are wrong, or 3 when the server does not answer.
    """
    program = shutil.which("valkey-cli") or shutil.which("redis-cli")
    try:
        options = _own_options(argv, has_installed=program is not None)
        if program is not None and options is None:
            with _one_server(environ) as address:
                if _has_command(argv):
                    _expect_answer(address)
                return _run_installed(program, address, argv)
        assert options is not None, "without an installed client ours runs"
        if options.show_help:
            print(USAGE, end="")
            return 0
        with _one_server(environ) as address:
            if options.command:
                _expect_answer(address)
            prompt = Prompt(address, options, options.shape or (Shape.READABLE if sys.stdout.isatty() else Shape.RAW))
            with contextlib.closing(prompt):
                return _run_own(prompt, options, environ)
    except BrokerUnreachable as error:
        print(f"rollstream redis cli: Redis cannot be reached: {error}", file=sys.stderr)
        return 3
    except RollstreamError as error:
        print(f"rollstream redis cli: {error}", file=sys.stderr)
        return 1


def _has_command(argv: list[str]) -> bool:
    """Whether an installed client is asked for one command; what only it understands is its own affair."""
    try:
        return bool(parse_options(argv).command)
    except InvalidRequest:
        return False


def _expect_answer(address: RedisAddress) -> None:
    """Waits for any word of the server. One that refuses answers too: why, the client shows.

    Raises:
        BrokerUnreachable: nobody is there, or nothing came within `_ANSWER_S`.
    """
    asked = redis.Redis.from_url(
        address.url, password=address.password, retry=None, socket_timeout=_ANSWER_S, socket_connect_timeout=_ANSWER_S
    )
    try:
        with asked:
            asked.ping()
    except (redis.ResponseError, redis.AuthenticationError, BusyLoadingError):
        return
    except (redis.RedisError, OSError) as error:
        raise broker_error(error) from error


@contextlib.contextmanager
def _one_server(environ: Mapping[str, str] | None) -> Iterator[RedisAddress]:
    """The server to talk to. Files of TLS stand in its URL, as redis-py reads them."""
    env = os.environ if environ is None else environ
    named = {name: env[ENVIRONMENT_PREFIX + name.upper()] for name in _ADDRESS if env.get(ENVIRONMENT_PREFIX + name.upper())}
    try:
        settings = QueueSettings.model_validate(named)
        servers = parse_redis_url(settings.redis_url) if settings.redis_url else None
    except ValueError:  # said better by who reads the address of one server
        servers = None
    if servers is None or (servers.set_up is SetUp.SINGLE and settings.redis_ca_file is None):
        with open_redis(create=False, environ=environ) as address:
            yield address
        return
    secret = settings.password
    try:
        host, port = server_now(settings)
    except (redis.RedisError, OSError) as error:
        raise broker_error(error) from error
    files = {"ssl_ca_certs": settings.redis_ca_file, "ssl_certfile": settings.redis_cert_file, "ssl_keyfile": settings.redis_key_file}
    query = urlencode({name: str(file) for name, file in files.items() if file is not None})
    user = quote(servers.user or settings.redis_user, safe="")
    place = f"{user}@{host}:{port}" if user else f"{host}:{port}"
    yield RedisAddress(
        url=f"{'rediss' if servers.tls else 'redis'}://{place}/{servers.db}?{query}",
        password=servers.password or (secret.get_secret_value() if secret else None),
    )


def _own_options(argv: list[str], *, has_installed: bool) -> Options | None:
    """The options when our own client is to run; None when an installed one is. That one may know options that ours does not."""
    try:
        options = parse_options(argv)
    except InvalidRequest:
        if has_installed and "--own" not in argv:
            return None
        raise
    wants_ours = options.own or options.show_help or options.shape is Shape.JSON
    return options if wants_ours or not has_installed else None


def _run_own(prompt: Prompt, options: Options, environ: Mapping[str, str] | None) -> int:
    if options.command:
        return 0 if prompt.run([os.fsencode(word) for word in options.command]) else 1
    if sys.stdin.isatty():
        return _converse(prompt, Folders.from_environment(environ).state / "redis_cli_history")
    failed = False
    for line in sys.stdin:
        failed |= not _run_line(prompt, line)
    return int(failed)


def _run_line(prompt: Prompt, line: str) -> bool:
    try:
        words = split_words(line)
    except UnbalancedQuotes as error:
        print(f"Invalid argument(s): {error}", file=sys.stderr)
        return False
    return prompt.run(words) if words else True


def _converse(prompt: Prompt, history: Path) -> int:
    """The prompt. Ctrl-C drops the line, Ctrl-D or `quit` ends."""
    with contextlib.suppress(redis.RedisError, OSError):  # the first command says what is wrong
        prompt.connect()
    with _history(history) as readline:
        while True:
            try:
                line = input(prompt.text).strip()
            except KeyboardInterrupt:
                print()
                continue
            except EOFError:
                print()
                return 0
            word = line.split(None, 1)[0].lower() if line else ""
            if readline is not None and line and not " ".join(line.lower().split()).startswith(_SECRET):
                readline.add_history(line)
            match word:
                case "":
                    continue
                case "quit" | "exit":
                    return 0
                case "help":
                    print("a command of Redis (https://valkey.io/commands), or: quit, clear")
                case "clear":
                    print("\033[H\033[2J", end="")
                case _:
                    _run_line(prompt, line)


@contextlib.contextmanager
def _history(path: Path) -> Iterator[ModuleType | None]:
    """Line editing with a history that is kept; None in a Python without readline."""
    try:
        import readline
    except ImportError:
        yield None
        return
    readline.set_auto_history(False)
    readline.set_history_length(_HISTORY_LENGTH)
    with contextlib.suppress(OSError):  # there is none yet
        readline.read_history_file(path)
    try:
        yield readline
    finally:
        before = os.umask(0o077)
        try:
            make_folder(path.parent)
            readline.write_history_file(path)
        except (OSError, RollstreamError) as error:
            print(f"the history cannot be kept: {error}", file=sys.stderr)
        finally:
            os.umask(before)


def _run_installed(program: str, address: RedisAddress, argv: list[str]) -> int:
    """Runs an installed client to its end. Ctrl-C is for it alone; who ends us ends it."""
    parts = urlsplit(address.url)
    if parts.scheme == "unix":
        where = ["-s", unquote(parts.path)]
    else:
        where = ["-h", parts.hostname or "127.0.0.1", "-p", str(parts.port or 6379), *(["--tls"] if parts.scheme == "rediss" else [])]
    where += [word for name, value in parse_qsl(parts.query) if name in _TLS_OPTIONS for word in (_TLS_OPTIONS[name], value)]
    user = ["--user", unquote(parts.username)] if parts.username else []
    secret = {} if address.password is None else {"REDISCLI_AUTH": address.password, "VALKEYCLI_AUTH": address.password}
    command = [program, *where, *user, "-n", str(_database(address)), *argv]
    with subprocess.Popen(command, env={**os.environ, **secret}) as client:
        before = {
            signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
            **{number: signal.signal(number, lambda *_: client.terminate()) for number in (signal.SIGTERM, signal.SIGHUP)},
        }
        try:
            code = client.wait()
            return code if code >= 0 else 128 - code
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

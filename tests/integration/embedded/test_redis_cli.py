"""`rollstream redis cli`: what is typed, what is shown, and where it connects."""

from __future__ import annotations

import json
import os
import pty
import select
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from ops.redis.prompt import Options, Shape, parse_options
from ops.redis.replies import Double, Failure, Items, Pairs, Reply, Status, Verbatim, as_json, quoted, raw, readable
from ops.redis.words import UnbalancedQuotes, split_words
from pipeline.embedded import EmbeddedServer, embedded_redis
from pipeline.errors import InvalidRequest
from tests.integration.embedded.conftest import PATIENCE_S, Place

_ROOT = Path(__file__).parents[3]
_PROGRAM = [sys.executable, "-c", "import sys; from ops.redis.prompt import cli; sys.exit(cli(sys.argv[1:]))"]


@pytest.fixture
def environ(place: Place) -> dict[str, str]:
    """Settings under which the embedded server is the place's, and no client program is installed."""
    home = place.data_dir.parent
    return {
        "PATH": "/nonexistent",
        "PYTHONPATH": str(_ROOT),
        "HOME": str(home),
        "TERM": "dumb",
        "ROLLSTREAM_DATA_DIR": str(home),
        "ROLLSTREAM_STATE_DIR": str(home / "state"),
        "ROLLSTREAM_RUN_DIR": str(place.run_dir),
    }


@pytest.fixture
def server(place: Place, environ: dict[str, str]) -> Iterator[EmbeddedServer]:
    """The embedded server, with something in it."""
    with embedded_redis(place.data_dir.parent / "redis", environ=environ) as held:
        with redis.Redis.from_url(held.url) as client:
            client.xadd("s", {"job": "a 1", "n": "2"}, id="1-1")
            client.hset("h", "k", b"\xff\n")
        yield held


def run(environ: dict[str, str], *argv: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the command; its output is no terminal."""
    return subprocess.run([*_PROGRAM, *argv], env=environ, input=stdin, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.mark.parametrize(
    ("reply", "shown"),
    [
        (Status(b"OK"), "OK"),
        (b"OK", '"OK"'),
        (b'a"\\\n\x00\xff', r'"a\"\\\n\x00\xff"'),
        (None, "(nil)"),
        (7, "(integer) 7"),
        (True, "(true)"),
        (Double("inf"), "(double) inf"),
        (Failure("ERR no"), "(error) ERR no"),
        (Verbatim(b"two\nlines"), "two\nlines"),
        (Items("array", ()), "(empty array)"),
        (Items("set", ()), "(empty set)"),
        (Pairs(()), "(empty hash)"),
        (Items("set", (1, b"x")), '1~ (integer) 1\n2~ "x"'),
        (Pairs(((b"k", Items("array", (1, 2))), (b"l", None))), '1# "k" => 1) (integer) 1\n   2) (integer) 2\n2# "l" => (nil)'),
        (
            Items("array", (Items("array", (b"1-1", Items("array", (b"job", b"7")))), Items("array", ()))),
            '1) 1) "1-1"\n   2) 1) "job"\n      2) "7"\n2) (empty array)',
        ),
        (Items("array", tuple(range(10))), "\n".join(f"{n + 1:>2}) (integer) {n}" for n in range(10))),
    ],
)
def test_replies_are_shown_to_people_with_type_number_and_nesting(reply: Reply, shown: str) -> None:
    assert readable(reply) == shown


def test_replies_go_into_a_pipe_as_their_bytes() -> None:
    reply = Items("array", (b"a\xff", 1, None, Items("array", (Status(b"OK"), Double("1.5"), True)), Pairs(((b"k", b"v"),))))

    assert raw(reply) == b"a\xff\n1\n\nOK\n1.5\n(true)\nk v"


def test_replies_become_json_that_loses_nothing() -> None:
    reply = Items("array", (b"\xff", "ü".encode(), 1, None, False, Double("1.5"), Double("inf"), Failure("ERR x"), Pairs(((1, b"v"),))))

    assert json.loads(as_json(reply)) == [{"base64": "/w=="}, "ü", 1, None, False, 1.5, "inf", {"error": "ERR x"}, {"1": "v"}]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", []),
        ("  get   a ", [b"get", b"a"]),
        (r'set "a b" "\x00\n\"\\\q"', [b"set", b"a b", b'\x00\n"\\q']),
        (r"set 'a\'b\n' ''", [b"set", rb"a'b\n", b""]),
        ("get ü{rs:0}:x", [b"get", "ü{rs:0}:x".encode()]),
        (r'"\xZZ"', [b"xZZ"]),
    ],
)
def test_a_line_is_split_as_people_know_it(line: str, words: list[bytes]) -> None:
    assert split_words(line) == words


@pytest.mark.parametrize("line", ['"a', "'a", '"a"b', "'", '"\\'])
def test_a_line_with_a_dangling_quote_is_refused(line: str) -> None:
    with pytest.raises(UnbalancedQuotes):
        split_words(line)


@given(st.lists(st.binary(), max_size=5))
def test_any_bytes_that_were_shown_can_be_typed_again(values: list[bytes]) -> None:
    assert split_words(" ".join(map(quoted, values))) == values


def test_options_end_where_the_command_begins() -> None:
    assert parse_options(["--json", "-n", "3", "-3", "--own", "GET", "--raw"]) == Options(
        shape=Shape.JSON, database=3, resp3=True, own=True, command=("GET", "--raw")
    )
    with pytest.raises(InvalidRequest, match="unknown option '--stat'"):
        parse_options(["--stat"])
    with pytest.raises(InvalidRequest, match="-n wants the number"):
        parse_options(["-n"])


def test_one_command_is_run_on_the_embedded_server(server: EmbeddedServer, environ: dict[str, str]) -> None:
    assert run(environ, "XRANGE", "s", "-", "+").stdout == "1-1\njob\na 1\nn\n2\n"
    assert run(environ, "--no-raw", "XRANGE", "s", "-", "+").stdout == (
        '1) 1) "1-1"\n   2) 1) "job"\n      2) "a 1"\n      3) "n"\n      4) "2"\n'
    )
    assert json.loads(run(environ, "--json", "XRANGE", "s", "-", "+").stdout) == [["1-1", ["job", "a 1", "n", "2"]]]
    assert json.loads(run(environ, "--json", "HGETALL", "h").stdout) == {"k": {"base64": "/wo="}}
    assert run(environ, "--no-raw", "-3", "HGETALL", "h").stdout == '1# "k" => "\\xff\\n"\n'
    assert server.status.starts == 1


def test_a_status_and_a_value_that_reads_the_same_look_different(server: EmbeddedServer, environ: dict[str, str]) -> None:
    done = run(environ, "--no-raw", stdin="set a OK\nget a\nget none\nexists a\nmulti\nget a\nincr h\nexec\n")

    assert done.stdout.splitlines() == [
        "OK",
        '"OK"',
        "(nil)",
        "(integer) 1",
        "OK",
        "QUEUED",
        "QUEUED",
        '1) "OK"',
        "2) (error) WRONGTYPE Operation against a key holding the wrong kind of value",
    ]
    assert done.returncode == 0


@pytest.mark.slow
def test_a_failed_command_a_bad_line_and_a_bad_option_give_exit_code_1(server: EmbeddedServer, environ: dict[str, str]) -> None:
    failed = run(environ, "--no-raw", "NOSUCH", "x")
    assert (failed.returncode, failed.stdout.startswith("(error) ERR unknown command 'NOSUCH'")) == (1, True)
    assert json.loads(run(environ, "--json", "NOSUCH").stdout)["error"].startswith("ERR unknown command")

    bad_line = run(environ, "--no-raw", stdin='get "a\nping\n')
    assert (bad_line.returncode, bad_line.stdout) == (1, "PONG\n")
    assert "Invalid argument(s)" in bad_line.stderr

    assert "unknown option '--bogus'" in run(environ, "--own", "--bogus").stderr


def test_without_data_it_says_so_and_makes_none(place: Place, environ: dict[str, str]) -> None:
    done = run(environ, "PING")

    assert done.returncode == 1
    assert "there is no data in" in done.stderr
    assert not (place.data_dir.parent / "redis").exists()


def test_the_embedded_server_is_started_for_the_prompt_and_ended_after_it(place: Place, environ: dict[str, str]) -> None:
    data = Place(place.data_dir.parent / "redis", place.run_dir)
    embedded_redis(data.data_dir, environ=environ).close()

    assert run(environ, "PING").stdout == "PONG\n"

    assert data.is_free_within()


@pytest.mark.slow
def test_a_set_url_is_used_with_the_password_from_its_file(server: EmbeddedServer, environ: dict[str, str], tmp_path: Path) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "me", "on", ">pass word", "~*", "+@all")
    secret = tmp_path / "secret"
    secret.write_text("pass word\n")
    named = {**environ, "ROLLSTREAM_REDIS_URL": f"unix://{server.socket_path}?db=3", "ROLLSTREAM_REDIS_USER": "me"}

    assert run({**named, "ROLLSTREAM_REDIS_PASSWORD_FILE": str(secret)}, "ACL", "WHOAMI").stdout == "me\n"
    assert "db=3" in run({**named, "ROLLSTREAM_REDIS_PASSWORD_FILE": str(secret)}, "CLIENT", "INFO").stdout
    assert "db=5" in run({**named, "ROLLSTREAM_REDIS_PASSWORD_FILE": str(secret)}, "-n", "5", "CLIENT", "INFO").stdout
    secret.write_text("wrong\n")
    done = run({**named, "ROLLSTREAM_REDIS_PASSWORD_FILE": str(secret)}, "PING")
    assert (done.returncode, "WRONGPASS" in done.stdout + done.stderr) == (1, True)


def test_a_server_that_is_not_there_is_reported(environ: dict[str, str]) -> None:
    done = run({**environ, "ROLLSTREAM_REDIS_URL": "unix:///nonexistent/redis.sock"}, "PING")

    assert done.returncode == 3
    assert "/nonexistent/redis.sock" in done.stderr


def test_a_server_that_stands_still_is_reported_also_where_a_client_is_installed(environ: dict[str, str], tmp_path: Path) -> None:
    """An installed redis-cli waits for an answer for ever, also for that of `PING`, which pages of alerts begin with."""
    installed = tmp_path / "redis-cli"
    installed.write_text("#!/bin/sh\nexit 7\n")
    installed.chmod(0o755)
    path = tmp_path / "still.sock"
    with socket.socket(socket.AF_UNIX) as still:
        still.bind(str(path))
        still.listen()

        done = run({**environ, "PATH": f"{tmp_path}:/bin", "ROLLSTREAM_REDIS_URL": f"unix://{path}"}, "PING")

    assert (done.returncode, "Redis cannot be reached" in done.stderr) == (3, True)


@pytest.mark.slow
def test_an_installed_client_is_used_unless_told_otherwise_and_gets_the_password_by_its_environment(
    environ: dict[str, str], tmp_path: Path
) -> None:
    installed = tmp_path / "redis-cli"
    installed.write_text('#!/bin/sh\necho "installed $* pass=$REDISCLI_AUTH"\nexit 7\n')
    installed.chmod(0o755)
    secret = tmp_path / "secret"
    secret.write_text("pw\n")
    named = {
        **environ,
        "PATH": f"{tmp_path}:/bin",
        "ROLLSTREAM_REDIS_URL": "redis://127.0.0.1:1/2",
        "ROLLSTREAM_REDIS_USER": "me",
        "ROLLSTREAM_REDIS_PASSWORD_FILE": str(secret),
    }

    used = run(named, "--stat", "-i", "1")
    assert (used.returncode, used.stdout) == (7, "installed -h 127.0.0.1 -p 1 --user me -n 2 --stat -i 1 pass=pw\n")
    for option in ("--own", "--json"):
        assert "installed" not in run(named, option, "PING").stdout


class Terminal:
    """The prompt on a terminal of its own."""

    def __init__(self, environ: dict[str, str]) -> None:
        ours, theirs = pty.openpty()
        self._fd = ours
        self._seen = ""
        self.process = subprocess.Popen(_PROGRAM, env=environ, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
        os.close(theirs)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def until(self, text: str) -> str:
        """What appears up to a text, which must come."""
        while text not in self._seen:
            ready, _, _ = select.select([self._fd], [], [], PATIENCE_S)
            assert ready, f"waited for {text!r}, saw {self._seen!r}"
            self._seen += os.read(self._fd, 4096).decode()
        before, _, self._seen = self._seen.partition(text)
        return before

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._fd)


def test_the_prompt_answers_keeps_a_history_without_secrets_and_survives_an_interrupt(
    server: EmbeddedServer, environ: dict[str, str], place: Place
) -> None:
    terminal = Terminal(environ)
    try:
        terminal.until(f"redis {server.socket_path}> ")
        terminal.type("xlen s\n")
        terminal.until("(integer) 1")
        terminal.type("select 2\n")
        terminal.until(f"redis {server.socket_path}[2]> ")
        terminal.type("auth hunter2\n")
        terminal.until("(error)")
        terminal.type("half a line")
        terminal.until("half a line")
        terminal.type("\x15quit\n")
        assert terminal.process.wait(PATIENCE_S) == 0
    finally:
        terminal.close()

    history = place.data_dir.parent / "state" / "redis_cli_history"
    text = history.read_text()
    assert "xlen s" in text
    assert "hunter2" not in text
    assert stat.S_IMODE(history.stat().st_mode) == 0o600

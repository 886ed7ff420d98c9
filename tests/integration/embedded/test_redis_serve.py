"""`rollstream redis serve`: users first, passwords in files, an address file, a clean stop."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from ops.redis.serve import serve
from pipeline.file_systems import FileSystem
from pipeline.keys import Keys
from tests.integration.embedded.conftest import PATIENCE_S, Place, User, is_running

_ROOT = Path(__file__).parents[3]
_PROGRAM = """
import json, sys
from pathlib import Path
from ops.redis.serve import serve

asked = json.loads(sys.argv[1])
for name in ("data_dir", "shared_dir"):
    asked[name] = Path(asked[name])
sys.exit(serve(**asked, say=lambda text: print(json.dumps({"said": text}), flush=True)))
"""
USERS = ("trainer", "worker", "supervisor", "ops", "rq", "replica")


@dataclass(slots=True)
class Service:
    """A running `serve`, as a process of its own."""

    speaker: User
    shared_dir: Path
    clients: list[redis.Redis] = field(default_factory=list)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        return self.speaker.process

    def says(self) -> str:
        """What it tells a person next."""
        return str(self.speaker.says()["said"])

    @property
    def address(self) -> dict[str, Any]:
        """The address file."""
        content: dict[str, Any] = json.loads((self.shared_dir / "address.json").read_text())
        return content

    @property
    def server_pid(self) -> int:
        """The server's process: the guard's child."""
        (guard,) = psutil.Process(self.process.pid).children()
        (server,) = guard.children()
        return int(server.pid)

    def client(self, user: str, password: str | None = None) -> redis.Redis:
        """A client of one of the users, with the password in its file."""
        known = password or (self.shared_dir / f"{user}.password").read_text().strip()
        url = f"redis://{self.address['host']}:{self.address['port']}"
        made = redis.Redis.from_url(url, username=user, password=known, retry=None)
        self.clients.append(made)
        return made

    def stop(self) -> int:
        """SIGTERM; answers the exit code."""
        self.process.terminate()
        return self.process.wait(PATIENCE_S)


Start = Callable[..., Service]


@pytest.fixture
def start(place: Place) -> Iterator[Start]:
    """Starts a service on a free port in the place's data directory."""
    started: list[Service] = []

    def start_service(**arguments: object) -> Service:
        shared_dir = place.run_dir.with_name("shared")
        request = {"data_dir": str(place.data_dir), "shared_dir": str(shared_dir), "port": 0, **arguments}
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, json.dumps(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
        )
        service = Service(User(process), shared_dir)
        started.append(service)
        return service

    yield start_service
    for service in started:
        for client in service.clients:
            client.close()
        service.speaker.end()
        assert service.process.stderr is not None
        service.process.stderr.close()


def test_the_most_memory_of_data_is_what_the_command_was_given(place: Place) -> None:
    shared_dir = place.run_dir.with_name("shared")
    words = ["redis", "serve", "--port", "0", "--maxmemory-gib", "0.5", "--data-dir", str(place.data_dir), "--shared-dir", str(shared_dir)]
    process = subprocess.Popen(
        [sys.executable, "-m", "ops.cli", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"redis serves at ")
        address = json.loads((shared_dir / "address.json").read_text())
        password = (shared_dir / "ops.password").read_text().strip()
        with redis.Redis(host=address["host"], port=address["port"], username="ops", password=password) as client:
            assert client.info("memory")["maxmemory"] == 2**29
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def test_it_says_how_to_connect_and_what_it_says_works(start: Start) -> None:
    service = start()
    lines = service.says().splitlines()
    (exported,) = (line.removeprefix("  export ") for line in lines if line.startswith("  export "))
    settings = dict(word.split("=", 1) for word in shlex.split(exported))

    password = Path(settings["ROLLSTREAM_REDIS_PASSWORD_FILE"]).read_text().strip()
    client = redis.Redis.from_url(
        settings["ROLLSTREAM_REDIS_URL"], username=settings["ROLLSTREAM_REDIS_USER"], password=password, retry=None
    )

    assert client.ping()
    client.close()
    assert "not encrypted" not in "\n".join(lines)


def test_the_address_file_says_where_and_as_whom_and_is_gone_after_a_clean_stop(start: Start, place: Place) -> None:
    service = start()
    service.says()

    address = service.address
    assert (address["host"], address["pid"], set(address["users"])) == ("127.0.0.1", service.process.pid, set(USERS))
    assert address["port"] > 0
    assert address["started"].startswith("20")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in service.shared_dir.iterdir()}
    assert set(modes) == {"address.json", *(f"{user}.password" for user in USERS)}
    assert set(modes.values()) == {0o600}

    server_pid = service.server_pid
    assert service.stop() == 0
    assert not (service.shared_dir / "address.json").exists()
    assert not is_running(server_pid)
    assert place.is_free_within()


def test_no_password_stands_in_a_command_line_a_log_or_what_is_said(start: Start, place: Place) -> None:
    service = start()
    said = service.says()
    passwords = [(service.shared_dir / f"{user}.password").read_text().strip() for user in USERS]
    processes = [psutil.Process(pid) for pid in (service.process.pid, service.server_pid)]
    seen = [said, *(" ".join(process.cmdline()) for process in processes), (service.shared_dir / "address.json").read_text()]
    seen += [path.read_text(errors="replace") for path in place.data_dir.rglob("*") if path.is_file()]

    assert all(len(password) >= 40 for password in passwords)
    assert len(set(passwords)) == len(USERS)
    assert [text for text in seen for password in passwords if password in text] == []


def test_passwords_stay_the_same_over_restarts_and_so_does_the_data(start: Start) -> None:
    first = start()
    first.says()
    first.client("worker").set("{rs:0}:kept", "yes")
    before = (first.shared_dir / "worker.password").read_text()
    first.stop()

    second = start()
    second.says()

    assert (second.shared_dir / "worker.password").read_text() == before
    assert second.client("worker").get("{rs:0}:kept") == b"yes"


def refused(call: Callable[[], object]) -> bool:
    """Whether the server denies it for want of permission."""
    try:
        call()
    except redis.exceptions.NoPermissionError:
        return True
    return False


def test_each_user_may_what_its_role_needs_and_no_more(start: Start) -> None:
    service = start()
    service.says()
    keys = Keys.of_shard("rs", 0)
    run_stream, results = keys.key("s:run"), keys.results("r1")
    trainer, worker, supervisor, ops = (service.client(user) for user in USERS[:4])

    worker.xgroup_create(run_stream, "run", id="0", mkstream=True)
    worker.xadd(run_stream, {"job": "1"})
    worker.xadd(results, {"job": "0"})
    assert worker.xreadgroup("run", "me", {run_stream: ">"})

    trainer.xgroup_create(results, "trainer", id="0")
    assert trainer.xreadgroup("trainer", "me", {results: ">"})
    assert trainer.xread({keys.cancel: "0"}) == []
    assert trainer.eval("return redis.call('XLEN', KEYS[1])", 1, run_stream) == 1
    assert trainer.xrange(run_stream)
    assert refused(lambda: trainer.xreadgroup("run", "me", {run_stream: ">"}))
    assert refused(lambda: trainer.xread({run_stream: "0"}))
    assert refused(lambda: trainer.xclaim(run_stream, "run", "me", 0, ["1-1"]))
    assert refused(lambda: trainer.xautoclaim(run_stream, "run", "me", 0))
    assert refused(lambda: trainer.xgroup_create(run_stream, "thief"))

    assert ops.xrange(run_stream)
    assert ops.xpending(run_stream, "run")
    assert ops.xinfo_groups(run_stream)
    assert ops.info()
    assert ops.memory_usage(run_stream)
    for call in (
        lambda: ops.set(keys.key("x"), 1),
        lambda: ops.xreadgroup("run", "me", {run_stream: ">"}),
        lambda: ops.xack(run_stream, "run", "1-1"),
        lambda: ops.delete(run_stream),
        lambda: ops.eval("return 1", 0),
        lambda: ops.publish("{rs:0}:c", "x"),
    ):
        assert refused(call)

    for client in (trainer, worker, supervisor, ops):
        for call in (
            client.flushall,
            client.shutdown,
            client.acl_list,
            client.script_flush,
            client.keys,
            lambda c=client: c.config_get("*"),
            lambda c=client: c.get("outside"),
            lambda c=client: c.set("{other:0}:x", 1),
            lambda c=client: c.xgroup_destroy(run_stream, "run"),
            lambda c=client: c.client_kill_filter(_type="normal"),
        ):
            assert refused(call)


def test_nobody_gets_in_without_a_password_or_with_a_wrong_one(start: Start) -> None:
    service = start()
    service.says()
    stranger = redis.Redis.from_url(f"redis://127.0.0.1:{service.address['port']}", retry=None)
    service.clients.append(stranger)

    with pytest.raises(redis.AuthenticationError):
        stranger.ping()
    with pytest.raises(redis.AuthenticationError):
        service.client("worker", "guess").ping()


def test_a_killed_server_is_started_again_at_the_same_address(start: Start) -> None:
    service = start(appendfsync="always")
    service.says()
    address = service.address
    service.client("worker").set("{rs:0}:kept", "yes")

    os.kill(service.server_pid, signal.SIGKILL)

    assert "killed by SIGKILL" in service.says()
    assert "serves again" in service.says()
    assert service.address == address
    assert service.client("worker").get("{rs:0}:kept") == b"yes"


def test_a_killed_service_leaves_no_server_behind(start: Start, place: Place) -> None:
    service = start()
    service.says()
    server_pid = service.server_pid

    service.process.kill()

    assert place.is_free_within()
    assert not is_running(server_pid)


def test_a_service_whose_guard_is_killed_ends_with_the_reason_and_without_a_server(start: Start, place: Place) -> None:
    service = start()
    service.says()
    server = psutil.Process(service.server_pid)

    server.parent().kill()

    assert "the guard process of the server was killed" in service.says()
    assert service.process.wait(PATIENCE_S) == 1
    assert place.is_free_within()
    assert not (service.shared_dir / "address.json").exists()


def test_a_ctrl_c_is_a_clean_stop(start: Start) -> None:
    service = start()
    service.says()

    service.process.send_signal(signal.SIGINT)

    assert service.process.wait(PATIENCE_S) == 0
    assert not (service.shared_dir / "address.json").exists()


@pytest.mark.slow
def test_two_services_on_one_directory_and_one_beside_an_embedded_server_are_refused(
    start: Start, place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    with place.hold():
        assert serve(data_dir=place.data_dir, shared_dir=place.run_dir.with_name("shared"), port=0) == 1
        assert "is in use by another server" in capfd.readouterr().err
    service = start()
    service.says()

    assert serve(data_dir=place.data_dir, shared_dir=service.shared_dir, port=0) == 1
    assert "is in use by another server" in capfd.readouterr().err
    assert service.client("ops").ping()


def test_a_port_that_is_taken_is_reported_with_the_servers_words(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        service = start(port=taken.getsockname()[1])

        assert "Address already in use" in service.says()
        assert service.process.wait(PATIENCE_S) == 1


def test_an_open_door_a_network_disk_and_a_readable_password_are_refused(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    shared_dir = place.run_dir.with_name("shared")
    for host in ("0.0.0.0", "::", "*"):
        assert serve(data_dir=place.data_dir, shared_dir=shared_dir, host=host, with_passwords=False) == 1
        assert "without passwords would give everybody on the network the queue" in capfd.readouterr().err

    nfs = FileSystem(name="nfs", is_network=True)
    assert serve(data_dir=place.data_dir, shared_dir=shared_dir, file_system=lambda path: nfs) == 1
    assert "network file system (nfs)" in capfd.readouterr().err
    assert not place.data_dir.exists()

    shared_dir.mkdir()
    (shared_dir / "worker.password").write_text("known to all\n")
    (shared_dir / "worker.password").chmod(0o644)
    assert serve(data_dir=place.data_dir, shared_dir=shared_dir, port=0) == 1
    assert "has mode 0644, others may read it" in capfd.readouterr().err
    (place.data_dir / "instance.lock").touch()


def test_without_passwords_a_loopback_address_is_served(start: Start) -> None:
    service = start(with_passwords=False)
    service.says()
    client = redis.Redis.from_url(f"redis://127.0.0.1:{service.address['port']}", retry=None)
    service.clients.append(client)

    assert client.ping()
    assert service.address["users"] == {}
    assert client.config_get("appendfsync") == {"appendfsync": "everysec"}


def test_on_every_address_of_the_machine_it_names_the_machine_and_warns(start: Start) -> None:
    service = start(host="0.0.0.0", advertise="head-node")

    said = service.says()

    assert "redis://head-node:" in said
    assert "traffic is not encrypted" in said
    assert service.address["host"] == "head-node"

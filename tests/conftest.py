"""What tests share: real servers, one namespace a test, and the check that no key is left without expiry.

A test that asks for `redis_server` (or anything made of it) runs once on each server that `pipeline.testing.servers` finds, with
`@pytest.mark.one_server` on the first only. `make_server` starts servers of the test's own, to be killed, frozen and filled.
"""

from __future__ import annotations

import gc
import os
import secrets
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from pipeline.embedded.server_config import Directive
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, command_client
from pipeline.scripts import Scripts
from pipeline.settings import QueueSettings
from pipeline.testing.servers import Persistence, PrivateServer, ServerKind, found_servers
from tests.longest_first import Length, longest_first
from tests.secret_words import begin_of_test, end_of_test, files_with_secrets, masked, words_in
from tests.vllm_server import VllmServer, serving

REQUIRE_VARIABLE = "ROLLSTREAM_REQUIRE_SERVERS"

# derandomized: the same commit gives the same verdict; `--hypothesis-profile=explore` draws new examples each time
FULL = hypothesis_settings(
    deadline=None, database=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
hypothesis_settings.register_profile("rollstream", FULL)
hypothesis_settings.register_profile("quick", FULL, max_examples=20)
hypothesis_settings.register_profile("explore", FULL, derandomize=False)
hypothesis_settings.load_profile("rollstream")


# a shell that starts the tests in the background has it ignored, and every process that they start would inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Half a million objects come up and stay: the collector looks at them again and again, for a fifth of the time, and finds nothing."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """After all others that order tests; only where there are several processes (`tests/longest_first.py`)."""
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if processes == 1:
        return
    usual_s = float(config.getini("timeout"))
    lengths = [Length(module=item.nodeid.partition("::")[0], limit_s=_limit_s(item, usual_s)) for item in items]
    items[:] = [items[place] for place in longest_first(lengths, usual_s=usual_s, processes=processes)]


def _limit_s(item: pytest.Item, usual_s: float) -> float:
    marker = item.get_closest_marker("timeout")
    if marker is None or item.get_closest_marker("vllm") is not None:  # a real vLLM is seldom there, and then they are left out at once
        return usual_s
    return float(marker.args[0] if marker.args else marker.kwargs["timeout"])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test whose output, log or failure has a secret of a test in it fails, whatever else it was."""
    report = yield
    shown = "\n".join([report.longreprtext, *(text for _, text in report.sections)])
    if words_in(shown):
        report.outcome, report.longrepr = "failed", f"secrets of the test are in what it shows:\n{masked(shown)}"
        report.sections.clear()
    return report


@pytest.fixture(autouse=True)
def no_secret_in_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """No secret that the test took stands in a command line or an environment, or in a log of its folder."""
    folder: Path | None = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    begin_of_test(watches=hasattr(request.module, "a_secret"))
    yield
    found = end_of_test()
    if folder is not None:
        found += files_with_secrets(folder, logs_only=True)
    assert not found, "\n".join(found)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "one_server: what is tested does not depend on the server; runs on the first one found")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server_kind" not in metafunc.fixturenames:
        return
    kinds = found_servers()
    missing = set(filter(None, os.environ.get(REQUIRE_VARIABLE, "").split(","))) - {kind.name for kind in kinds}
    if missing:
        raise pytest.UsageError(f"{REQUIRE_VARIABLE} asks for {', '.join(sorted(missing))}, which is not among the servers found")
    if not kinds:
        kinds_or_skip = [pytest.param(None, marks=pytest.mark.skip(reason="no server: install rollstream[ops] or redis-server"))]
        metafunc.parametrize("server_kind", kinds_or_skip, scope="session")
        return
    if metafunc.definition.get_closest_marker("one_server"):
        kinds = kinds[:1]
    metafunc.parametrize("server_kind", kinds, ids=[kind.name for kind in kinds], scope="session")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for sandboxes, with a short path: sockets live below it."""
    from workers.sandbox.local.folder import remove_tree  # not for the tests that need none

    path = Path(tempfile.mkdtemp(prefix="rs", dir="/tmp"))
    yield path
    remove_tree(path)
    assert not path.exists()


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """A real vLLM, for tests marked `vllm`."""
    with serving(tmp_path_factory.mktemp("vllm")) as server:
        yield server


@pytest.fixture(scope="session")
def second_vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """Another one with the same weights, for tests that need two."""
    with serving(tmp_path_factory.mktemp("vllm-second")) as server:
        yield server


@pytest.fixture(scope="session")
def server_of_kind() -> Iterator[Callable[[ServerKind], PrivateServer]]:
    """One running server a kind, kept for the session."""
    running: dict[str, PrivateServer] = {}
    with ExitStack() as stack:

        def get(kind: ServerKind) -> PrivateServer:
            if kind.name not in running:
                running[kind.name] = stack.enter_context(PrivateServer(kind))
            return running[kind.name]

        yield get


@pytest.fixture
def redis_server(server_kind: ServerKind, server_of_kind: Callable[[ServerKind], PrivateServer]) -> PrivateServer:
    """A running server that tests share; they keep apart by namespace and never restart or fill it."""
    return server_of_kind(server_kind)


@pytest.fixture
def make_server(server_kind: ServerKind) -> Iterator[Callable[..., PrivateServer]]:
    """Starts servers of this test's own, to be killed, frozen and filled."""
    with ExitStack() as stack:

        def make(*, persistence: Persistence = "none", maxmemory_bytes: int = 0, extra: tuple[Directive, ...] = ()) -> PrivateServer:
            return stack.enter_context(PrivateServer(server_kind, persistence=persistence, maxmemory_bytes=maxmemory_bytes, extra=extra))

        yield make


@pytest.fixture
def settings(redis_server: PrivateServer) -> QueueSettings:
    """Settings with a namespace of this test's own."""
    return QueueSettings(redis_url=redis_server.url, namespace="t" + secrets.token_hex(7))


@pytest.fixture
def keys(settings: QueueSettings) -> Keys:
    """Keys of the test's only shard."""
    return Keys.of_shard(settings.namespace, 0)


@pytest.fixture
async def client(settings: QueueSettings) -> AsyncIterator[AsyncClient]:
    """A command client."""
    client = command_client(settings)
    yield client
    await client.aclose()


@pytest.fixture
def scripts(client: AsyncClient, keys: Keys) -> Scripts:
    """The scripts of the test's shard."""
    return Scripts(client, keys)


@pytest.fixture(scope="session")
def looker() -> Iterator[Callable[[str], redis.Redis]]:
    """One connection a server for looks at it, kept for the session."""
    clients: dict[str, redis.Redis] = {}

    def get(url: str) -> redis.Redis:
        if url not in clients:
            clients[url] = redis.Redis.from_url(url, max_connections=1)
        return clients[url]

    yield get
    for client in clients.values():
        client.close()


@pytest.fixture(autouse=True)
def no_key_without_expiry(request: pytest.FixtureRequest) -> Iterator[None]:
    """Promise 9: after a test each key of its namespace has an expiry or is listed as permanent. Then the namespace is emptied."""
    if "settings" not in request.fixturenames:
        yield
        return
    settings: QueueSettings = request.getfixturevalue("settings")
    client = request.getfixturevalue("looker")(settings.redis_url)
    yield
    found = [key.decode() for key in client.scan_iter(match=f"{{{settings.namespace}:*", count=1000)]
    leaks = []
    for at in range(0, len(found), 500):
        keys = found[at : at + 500]
        with client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.pttl(key)
            left = pipe.execute()
        leaks += [key for key, ms in zip(keys, left, strict=True) if ms == -1 and not Keys(key.split("}", 1)[0] + "}").is_permanent(key)]
        client.unlink(*keys)
    assert not leaks, f"keys without expiry that are not in the permanent list of pipeline/keys.py: {sorted(leaks)}"

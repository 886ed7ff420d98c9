"""Who is answered, what with, and what a listener leaves behind."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from ops.metrics.definitions import CONTENT_TYPE
from ops.metrics.listener import HEAD_BYTES, MOST, listening
from ops.metrics.settings import MetricsSettings
from ops.metrics.targets import TargetFile
from pipeline.errors import InvalidRequest
from pipeline.settings import QueueSettings
from tests.integration.metrics.scraping import get, samples
from tests.secret_words import a_secret

TOKEN = a_secret("scrape")


async def some_metrics() -> bytes:
    return b"rollstream_some 1\n"


async def no_metrics() -> bytes:
    raise RuntimeError("why, with a secret")


async def test_it_answers_this_machine_and_that_one_path(tmp_path: Path) -> None:
    async with listening(MetricsSettings(), 0, some_metrics, field="metrics.port") as url:
        well, at_head = await get(f"{url}/metrics?x=1"), await get(f"{url}/metrics", method="HEAD")
        by_name = await get(f"{url}/metrics", host="localhost:1")
        others = [
            await get(f"{url}/"),
            await get(f"{url}/metrics", method="POST"),
            await get(f"{url}/metrics", host="rebound.example:80"),
            await get(f"{url}/metrics", "X: " + "x" * HEAD_BYTES),
        ]

    assert (well[0], well[1]["content-type"], well[2]) == (200, CONTENT_TYPE, "rollstream_some 1\n")
    assert (at_head[0], at_head[1]["content-length"], at_head[2]) == (200, "18", "")
    assert by_name[0] == 200
    assert [other[0] for other in others] == [404, 405, 403, 400]
    assert all("rollstream_some" not in other[2] for other in others)


async def test_connections_that_say_nothing_take_no_place_of_a_scrape() -> None:
    async with listening(MetricsSettings(), 0, some_metrics, field="metrics.port") as url:
        host, port = url.removeprefix("http://").split(":")
        silent = [(await asyncio.open_connection(host, int(port)))[1] for _ in range(MOST + 8)]
        status, _, text = await get(f"{url}/metrics")
        for connection in silent:
            connection.close()

    assert (status, text) == (200, "rollstream_some 1\n")


async def test_beyond_this_machine_it_takes_a_token(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    settings = MetricsSettings(host="0.0.0.0", token_file=file)

    async with listening(settings, 0, some_metrics, field="metrics.port") as url:
        at = url.replace("0.0.0.0", "127.0.0.1") + "/metrics"
        answers = [
            (await get(at, *headers, host="gpu7:1"))[0]
            for headers in ((), ("Authorization: Bearer wrong-but-long-enough",), (f"Authorization: Bearer {TOKEN}",))
        ]
        file.write_text("another-token-of-16-characters\n")
        changed = (await get(at, f"Authorization: Bearer {TOKEN}"))[0]
        file.unlink()
        gone = (await get(at, "Authorization: Bearer another-token-of-16-characters"))[0]

    assert (answers, changed, gone) == ([401, 401, 200], 401, 401)


def test_beyond_this_machine_nothing_starts_without_a_token_file() -> None:
    with pytest.raises(InvalidRequest, match=r"metrics\.token_file"):
        MetricsSettings.load(None, host="0.0.0.0")


async def test_what_cannot_be_made_is_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    async with listening(MetricsSettings(), 0, no_metrics, field="metrics.port") as url:
        status, _, body = await get(f"{url}/metrics")

    assert (status, "secret" in body) == (500, False)


async def test_an_address_that_is_taken_is_said() -> None:
    async with listening(MetricsSettings(), 0, some_metrics, field="metrics.port") as url:
        port = int(url.rpartition(":")[2])
        with pytest.raises(InvalidRequest, match="Choose another, or port 0"):
            async with listening(MetricsSettings(), port, some_metrics, field="metrics.port"):
                pass


def test_a_target_file_is_whole_and_only_its_writer_takes_it_away(tmp_path: Path) -> None:
    settings = MetricsSettings(targets_dir=tmp_path / "new" / "targets")
    mine, other = (TargetFile(settings, "rs", "node", "gpu7") for _ in range(2))
    assert mine.path is not None

    mine.write("http://127.0.0.1:99/metrics")
    found = orjson.loads(mine.path.read_bytes())
    beside = sorted(path.name for path in mine.path.parent.iterdir())
    other.write("http://127.0.0.1:98/metrics")
    mine.remove()
    still_there = mine.path.exists()
    other.remove()
    other.remove()

    assert found == [{"targets": ["127.0.0.1:99"], "labels": {"rollstream": "node", "namespace": "rs", "node": "gpu7"}}]
    assert beside == ["rollstream-rs-node-gpu7.json"]
    assert (still_there, mine.path.exists()) == (True, False)


@pytest.mark.one_server
async def test_the_command_serves_until_it_is_told_and_its_target_tells_how_it_ended(settings: QueueSettings, tmp_path: Path) -> None:
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "ROLLSTREAM_REDIS_URL": settings.redis_url,
        "ROLLSTREAM_NAMESPACE": settings.namespace,
        "ROLLSTREAM_METRICS_TARGETS_DIR": str(tmp_path / "targets"),
    }

    async def started() -> tuple[asyncio.subprocess.Process, str, Path]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "ops.cli",
            "metrics",
            "serve",
            "--port",
            "0",
            "--json",
            env=environment,
            cwd=Path(__file__).parents[3],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        said: dict[str, str] = orjson.loads(await process.stdout.readline())
        return process, said["url"], Path(said["target_file"])

    first, url, target = await started()
    found = samples((await get(url))[2])
    first.send_signal(signal.SIGKILL)
    await first.wait()
    left = orjson.loads(target.read_bytes())
    second, again, same = await started()
    replaced = orjson.loads(target.read_bytes())
    second.send_signal(signal.SIGTERM)

    assert await second.wait() == 0
    assert (found["rollstream_redis_up"], found["rollstream_exporter_leader"]) == (1, 1)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", url)
    assert (left[0]["targets"], replaced[0]["targets"]) == ([url.split("/")[2]], [again.split("/")[2]])
    assert same == target
    assert not target.exists()

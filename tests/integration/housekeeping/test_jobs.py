"""Each job as `rollstream housekeeping once` does it: what it removes, what it never removes, killed in between, and dry."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from contextlib import ExitStack

import pytest

from ops.housekeeping import JOBS
from ops.node.files import FOLDER, NodeFiles
from pipeline.blobs import Life, SharedFolder
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts import Scripts
from pipeline.testing import a_template, a_unit
from workers.stages.measures import FILE_SUFFIX

from .conftest import Site

pytestmark = [pytest.mark.one_server, pytest.mark.slow]
HOUSEKEEPING_POINTS = ("drop_unowned", "forget_run", "trim_stream", "housekeeping_done")
LONG_AGO_S = 3 * 366 * 86_400


async def bodies_left(client: AsyncClient, keys: Keys) -> int:
    return len([key async for key in client.scan_iter(match=keys.key("b:*").replace("{", "[{]"), count=1000)])


async def test_bodies_of_gone_jobs_go_also_when_a_sweep_is_killed_and_living_ones_stay(
    site: Site, client: AsyncClient, keys: Keys, scripts: Scripts
) -> None:
    incarnation = await scripts.connect_run("lives", nonce="n", ttl_s=3600)
    await scripts.accept("lives", incarnation, a_template(), "tpl", b"template", [a_unit("lives")], max_waiting=10, window=10)
    for number in range(300):
        await ask(client, "SET", keys.key(f"b:gone.x.0.{number}:1:run"), "body", "EX", 600)

    dry = site.once("bodies", "--dry-run")
    assert await bodies_left(client, keys) == 301
    killed = site.command("housekeeping", "once", "bodies", ROLLSTREAM_FAILPOINT="drop_unowned:2")
    left = await bodies_left(client, keys)
    again = site.once("bodies")

    assert dry["removed"] == 300
    assert killed.returncode == -signal.SIGKILL
    assert 1 < left < 301
    assert again["removed"] == left - 1
    assert await ask(client, "EXISTS", keys.prompt("lives.e0-i0.0"), keys.job("lives.e0-i0.0"), keys.template("lives", "tpl")) == 3


async def test_gone_runs_are_forgotten_after_the_setting_also_when_killed_in_between(
    site: Site, client: AsyncClient, keys: Keys, scripts: Scripts
) -> None:
    for name in ("gone1", "gone2", "lives"):
        await scripts.connect_run(name, nonce="n", ttl_s=3600)
    for name in ("gone1", "gone2"):
        await ask(client, "HSET", keys.run(name), "st", "closed", "why", "abandoned", "closed", int(time.time() * 1000) - 86_400_000)

    assert site.once("runs")["removed"] == 0  # off by default
    assert site.once("runs", "--dry-run", gone_run_keep_s="3600")["removed"] == 2
    killed = site.command("housekeeping", "once", "runs", gone_run_keep_s="3600", ROLLSTREAM_FAILPOINT="forget_run")
    again = site.once("runs", gone_run_keep_s="3600")

    assert killed.returncode == -signal.SIGKILL
    assert again["removed"] == 1
    assert await ask(client, "ZRANGE", keys.runs, 0, -1) == [b"lives"]
    assert site.once("runs", gone_run_keep_s="360000")["removed"] == 0


async def test_streams_are_trimmed_by_age(site: Site, client: AsyncClient, keys: Keys) -> None:
    for stream in (keys.reward, keys.cancel, keys.dead):
        for number in range(250):
            await ask(client, "XADD", stream, f"{number + 1}-0", "kind", "old")
        await ask(client, "XADD", stream, "*", "kind", "young")

    assert site.once("streams", "--dry-run")["removed"] == 750
    found = site.once("streams")

    for stream in (keys.reward, keys.cancel, keys.dead):
        assert found["streams"][keys.short(stream)] == 251 - await ask(client, "XLEN", stream) > 0
        assert (await ask(client, "XREVRANGE", stream, "+", "-", "COUNT", 1))[0][1] == {b"kind": b"young"}


async def test_a_trim_that_is_killed_is_gone_on_with(site: Site, client: AsyncClient, keys: Keys) -> None:
    for number in range(250):
        await ask(client, "XADD", keys.dead, f"{number + 1}-0", "kind", "old")

    killed = site.command("housekeeping", "once", "streams", ROLLSTREAM_FAILPOINT="trim_stream")
    left = await ask(client, "XLEN", keys.dead)
    again, third = site.once("streams"), site.once("streams")

    assert killed.returncode == -signal.SIGKILL
    assert again["removed"] == left - await ask(client, "XLEN", keys.dead)
    assert third["removed"] == 0


async def test_blobs_of_all_runs_are_swept(site: Site, client: AsyncClient, keys: Keys, scripts: Scripts) -> None:
    import numpy as np

    await scripts.connect_run("known", nonce="n", ttl_s=3600)
    folder = site.home / "blobs"
    store = SharedFolder(folder, site.settings.namespace, min_free_bytes=0)
    old, new = Life.new("known.x.0.0", 1), Life.new("known.x.0.1", 1)
    for life in (old, new):
        store.put(life, "array", np.zeros(4, np.uint8))
    for path in (folder / site.settings.namespace / "/".join(old.folders)).rglob("*"):
        os.utime(path, (1, 1))
    os.utime(folder / site.settings.namespace / "/".join(old.folders), (1, 1))

    dry = site.once("blobs", "--dry-run", ROLLSTREAM_BLOBS_DIR=str(folder))
    assert len(list(store.lives(""))) == 2
    swept = site.once("blobs", ROLLSTREAM_BLOBS_DIR=str(folder))

    assert (dry["removed"], swept["removed"]) == (1, 1)
    assert [kept.life for kept in store.lives("")] == [new]
    assert site.once("blobs")["why"].startswith("no store")


async def test_the_report_of_a_day_counts_deaths_by_kind_and_shows_nothing_as_it_came(site: Site, client: AsyncClient, keys: Keys) -> None:
    for number in range(5):
        why = f"sandbox: SandboxGone: id {number} at redis://user:secret@host/0 \x1b[31mred"
        await ask(client, "XADD", keys.dead, "*", "job", f"r.p.0.{number}", "run", "r", "stage", "run", "why", why)
    await ask(client, "XADD", keys.dead, "*", "entry", "s:run 1-1", "raw", b"\xff")
    state = site.home / "state" / "reports"
    state.mkdir(parents=True)
    old = state / f"dead-letters-{site.settings.namespace}-2020-01-01.json"
    old.write_text("{}")

    dry = site.once("dead-letters", "--dry-run")
    assert old.exists()
    first, second = site.once("dead-letters"), site.once("dead-letters")

    assert dry["removed"] == 1
    (file,) = state.glob("dead-letters-*.json")
    text = file.read_text()
    written = json.loads(text)
    assert (written["dead"], [(kind["what"], kind["count"]) for kind in written["kinds"]]) == (6, [("sandbox: SandboxGone", 5), ("", 1)])
    assert len(written["kinds"][0]["jobs"]) == 3
    assert "secret" not in text
    assert "u001b" not in text
    assert first["file"] == str(file)
    assert second["kinds"] == first["kinds"]


def test_files_of_dead_processes_go_and_those_of_living_ones_stay(site: Site) -> None:
    run, logs, export = site.home / "run", site.home / "state/logs/old", site.home / "export"
    gone, here = (site.home / "scratch/logs" / name for name in ("gone", "here"))
    for folder in (run, run / FOLDER, logs, gone, here, export / "r/steps"):
        folder.mkdir(parents=True, mode=0o700)
    dead, alive = run / "dead", run / "alive"
    with ExitStack() as stack, socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as forgotten:
        listening.bind(str(alive))
        listening.listen()
        forgotten.bind(str(dead))
        files = [logs / "worker.log", logs / "notes.txt", export / "r/steps/.part-x", export / "r/steps/part-1.jsonl"]
        files += [gone / "node.log.1", here / "run-0.log", logs / "young.log"]
        stack.enter_context(NodeFiles(run / FOLDER, "rs", "here", "boot")).write({}, logs=here, grace_s=1)
        for path in files:
            path.write_text("x")
        with NodeFiles(run / FOLDER, "rs", "killed", "boot") as killed:
            killed.write({}, logs=run, grace_s=1)
            killed.measures.mkdir()
            (killed.measures / f"1{FILE_SUFFIX}").touch()
        lock = run / FOLDER / "rs.killed.lock"
        for path in (dead, alive, lock, *files[:-1]):
            os.utime(path, (time.time() - LONG_AGO_S,) * 2)
        forgotten.close()

        dry = site.once("leftovers", "--dry-run", export_dir=str(export))
        assert dead.exists()
        found = site.once("leftovers", export_dir=str(export))

        assert dry == found
        assert (found["sockets"], found["logs"], found["unfinished_parts"], found["node_files"]) == (1, 2, 1, 2)
        assert {path.name for path in (run / FOLDER).iterdir()} == {"rs.killed.lock", "rs.here.lock", "rs.here.json"}
        assert site.once("leftovers", export_dir=str(export))["node_files"] == 0
        os.utime(lock, (time.time() - LONG_AGO_S,) * 2)
        assert site.once("leftovers", export_dir=str(export))["node_files"] == 1
        assert not lock.exists()
        assert sorted(path.name for path in site.home.rglob("*") if path.is_socket() or path.is_file()) >= ["alive"]
        assert [path.exists() for path in (dead, alive, *files)] == [False, True, False, True, False, True, False, True, True]


async def test_an_export_of_named_runs_is_done_by_the_cron_job(site: Site, client: AsyncClient, scripts: Scripts) -> None:
    for name in ("swe-1", "other"):
        incarnation = await scripts.connect_run(name, nonce="n", ttl_s=3600)
        await scripts.accept(name, incarnation, a_template(), "tpl", b"t", [a_unit(name)], max_waiting=10, window=10)
        await scripts.cancel("run", [name], "user")

    found = site.once("export", export_dir=str(site.home / "out"), export_runs="swe-*", export_format="jsonl")

    assert list(found["runs"]) == ["swe-1"]
    assert found["runs"]["swe-1"]["left_out_cancelled"] == 1
    assert [path.name for path in (site.home / "out").iterdir()] == ["swe-1"]


@pytest.mark.parametrize("name", JOBS)
def test_a_job_that_is_killed_before_it_could_say_what_it_did_is_done_again_without_harm(site: Site, name: str) -> None:
    """The end of a job is lost with its process, so RQ, or the next tick, does it again."""
    (site.home / "out").mkdir()
    known = {"export_dir": str(site.home / "out"), "export_runs": "*", "gone_run_keep_s": "60"}

    killed = site.command("housekeeping", "once", name, ROLLSTREAM_FAILPOINT="housekeeping_done", **known)
    again, third = site.once(name, **known), site.once(name, **known)

    assert killed.returncode == -signal.SIGKILL
    assert again.get("removed", 0) == 0
    assert third == again


def test_wrong_use_is_told(site: Site) -> None:
    unknown = site.command("housekeeping", "once", "polish")
    bad = site.command("housekeeping", "once", "bodies", bodies_every_s="often")

    assert unknown.returncode == bad.returncode == 2
    assert "there are bodies, runs, streams" in unknown.stderr
    assert "housekeeping.bodies_every_s" in bad.stderr
    assert site.command("housekeeping", "list").returncode == 1

"""`rollstream run report` on a real run, with what Redis has and with an export of what was acknowledged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ops.export import ExportError, ExportWishes, export_run
from ops.report import gather
from pipeline.keys import Keys
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts import Scripts
from pipeline.settings import QueueSettings
from pipeline.testing import A_RUN, a_settlement, a_template, a_unit, carry
from pipeline.testing.manual_worker import ManualWorker
from tests.e2e.conftest import ROOT

pytestmark = pytest.mark.one_server


async def some_results(scripts: Scripts, count: int = 4) -> int:
    """Jobs that ended, a group with a verdict, and a step; returns the incarnation."""
    incarnation = await scripts.connect_run(A_RUN, nonce="n", ttl_s=3600)
    units = [a_unit(prompt=f"p{number}") for number in range(count)]
    await scripts.accept(A_RUN, incarnation, a_template(), "tpl", b"t", units, max_waiting=100, window=100)
    for held in await carry(scripts, to=Stage.EVAL):
        await ManualWorker(scripts, Stage.EVAL).settle(held, settlement=a_settlement(1.0), kind="eval")
    client, keys = scripts.run_script.client, scripts.keys
    line = "informative|1|e0-1|0|2|2|0.5|1.0|20|1796000000000"
    step: dict[str, str | int] = {"st": "reached", "target": 1, "n": 2, "acc": 1, "t": 1_796_000_000_000, "reached": 1_796_000_002_000}
    for key, fields in ((keys.step(A_RUN, 1), step | {"tokens_kept": 20}), (keys.step_groups(A_RUN, 1), {"run1.e0-1.0": line})):
        await ask(client, "HSET", key, *(word for pair in fields.items() for word in pair))
        await ask(client, "EXPIRE", key, 600)
    await ask(client, "ZADD", keys.steps(A_RUN), 1, "1")
    await ask(client, "EXPIRE", keys.steps(A_RUN), 600)
    return incarnation


@pytest.mark.parametrize("format_", ["parquet", "jsonl"])
async def test_what_was_acknowledged_comes_from_the_export_and_nothing_counts_twice(
    scripts: Scripts, client: AsyncClient, keys: Keys, settings: QueueSettings, tmp_path: Path, format_: str
) -> None:
    incarnation = await some_results(scripts)
    await export_run(client, keys, A_RUN, tmp_path, ExportWishes(format=format_))  # type: ignore[arg-type]  # one of its words
    both = await gather(client, settings, keys, A_RUN, tmp_path)
    entries = await ask(client, "XRANGE", keys.results(A_RUN), "-", "+")
    await scripts.ack(A_RUN, incarnation, [(entry.decode(), "job", fields[b"job"].decode()) for entry, fields in entries])

    after, alone = await gather(client, settings, keys, A_RUN, tmp_path), await gather(client, settings, keys, A_RUN)

    assert len(both.jobs) == len(after.jobs) == 4
    assert alone.jobs == ()
    assert both.jobs == after.jobs
    assert [(step.index, step.tokens, step.took_s) for step in alone.steps] == [(1, {"kept": 20}, 2.0)]
    assert [(group.step, group.mean, group.valid, group.sampled_tokens) for group in alone.groups] == [(1, 0.5, 2, 20)]
    with pytest.raises(ExportError, match="holds no export"):
        await gather(client, settings, keys, A_RUN, tmp_path / "other")


@pytest.mark.slow
async def test_the_command_writes_a_page(scripts: Scripts, settings: QueueSettings, tmp_path: Path) -> None:
    await some_results(scripts)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "ROLLSTREAM_REDIS_URL": settings.redis_url,
        "ROLLSTREAM_NAMESPACE": settings.namespace,
    }

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        whole = [sys.executable, "-m", "ops.cli", "run", "report", *words]
        return subprocess.run(whole, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)

    done = command(A_RUN, "--to", str(tmp_path / "report.html"))
    unknown = command("never-was", "--to", str(tmp_path / "other.html"))

    assert done.returncode == 0, done.stderr
    text = (tmp_path / "report.html").read_text()
    assert text.startswith("<!doctype html>")
    assert f"run {A_RUN}" in text
    assert unknown.returncode == 2
    assert sorted(name for name in os.listdir(tmp_path) if "html" in name) == ["report.html"]

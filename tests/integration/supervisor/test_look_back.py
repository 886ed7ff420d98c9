"""The HTML report, the export and the page of a run read the ledger as the scripts write it."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from ops.export import ExportWishes, export_run
from ops.report import gather, page
from ops.run_report import report_on
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient
from pipeline.settings import QueueSettings
from pipeline.supervisor.step_spec import StepSpec
from tests.integration.supervisor.fleet import RUN, Fleet, all_right, mixed

pytestmark = pytest.mark.one_server
SPEC = StepSpec(target=2, n=4, over=1.0)


async def a_run_with_two_steps(fleet: Fleet) -> None:
    """Two steps reached, a group filtered."""
    await fleet.push_many(9)
    for step in range(3):
        await fleet.open(step, SPEC)
    await fleet.supervise()
    await fleet.work()
    first, *others = fleet.groups()
    await fleet.end(first, all_right)
    for group in others[:4]:
        await fleet.end(group, mixed)
    await fleet.supervise()


async def test_the_report_has_each_verdict_of_the_ledger_with_and_without_its_records(
    fleet: Fleet, client: AsyncClient, keys: Keys, settings: QueueSettings
) -> None:
    await a_run_with_two_steps(fleet)
    records = {record["grp"]: record for record in await fleet.records("group")}

    whole = await gather(client, settings, keys, RUN)
    await client.delete(keys.results(RUN))
    ledger = await gather(client, settings, keys, RUN)

    assert len(whole.jobs) == 20
    assert {(group.group, group.verdict, group.step, group.valid) for group in ledger.groups} == {
        (record["grp"], record["verdict"], int(record["step"]), int(record["valid"])) for record in records.values()
    }
    assert {group.group: (group.mean, group.sampled_tokens) for group in ledger.groups} == {
        group.group: (group.mean, group.sampled_tokens) for group in whole.groups
    }
    assert fmean(group.mean for group in ledger.groups if group.mean is not None and group.verdict == "informative") < 1
    assert [step.index for step in ledger.steps] == [0, 1]
    assert sum(step.counts.get("filtered", 0) for step in ledger.steps) == 1
    for facts in (whole, ledger):
        assert f"run {RUN}" in page(facts)


async def test_an_export_has_each_record_of_the_ledger_once(fleet: Fleet, client: AsyncClient, keys: Keys, tmp_path: Path) -> None:
    await a_run_with_two_steps(fleet)

    done = await export_run(client, keys, RUN, tmp_path, ExportWishes(format="jsonl", cancelled=True))

    counts = {kind: len(await fleet.records(kind)) for kind in ("job", "group", "step")}
    assert done.rows == {"trajectories": counts["job"], "groups": counts["group"], "steps": counts["step"]}
    assert min(counts.values()) > 0
    assert all("damaged body" in problem for problem in done.unreadable)  # this fleet's bodies are a few words


async def test_a_page_says_what_nobody_has_read(fleet: Fleet, client: AsyncClient, keys: Keys, settings: QueueSettings) -> None:
    await a_run_with_two_steps(fleet)

    report = await report_on(client, settings, keys, RUN)

    assert report.unread == await client.xlen(keys.results(RUN)) > 0
    assert report.as_map()["unread"] == report.unread
    assert report.as_map()["servers"] == {}

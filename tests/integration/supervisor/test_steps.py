"""A step from its first prompt to its record, through the real scripts, with workers moved by hand."""

from __future__ import annotations

from pipeline.supervisor.step_spec import StepSpec
from tests.integration.supervisor.fleet import RUN, Fleet, all_right, mixed

A_SPEC = StepSpec(target=2, n=4, over=1.0)


async def test_a_step_takes_informative_groups_until_it_has_its_target(fleet: Fleet) -> None:
    await fleet.push_many(20)
    assert await fleet.open(0, A_SPEC) == "opened"

    await fleet.supervise()
    await fleet.work()
    launched = fleet.groups()
    assert launched[:3] == [f"{RUN}.e0-0.0", f"{RUN}.e0-1.0", f"{RUN}.e0-2.0"]
    await fleet.end(launched[0], all_right)
    await fleet.end(launched[1], mixed)
    await fleet.supervise()
    assert (await fleet.view()).steps[0].accepted == 1
    await fleet.end(launched[2], mixed)
    await fleet.supervise()

    [step] = await fleet.records("step")
    assert step["groups"].split() == [launched[1], launched[2]]
    assert (step["k"], step["target"], step["filtered"], step["short"]) == ("0", "2", "1", "")
    assert step["tokens_kept"] == "24"
    assert step["tokens_filtered"] == "12"
    groups = {record["grp"]: record for record in await fleet.records("group")}
    assert groups[launched[0]]["verdict"] == "filtered"
    assert groups[launched[0]]["why"] == "all 1"
    assert groups[launched[1]]["verdict"] == "informative"
    assert groups[launched[1]]["rews"] == "0,1,0,1"
    assert (groups[launched[1]]["mean"], groups[launched[1]]["spread"]) == ("0.5", "1")
    assert await fleet.mark("e0-0") == "filtered 1 0 0 1"
    assert await fleet.mark("e0-1") == "trained 1 0 0 2"

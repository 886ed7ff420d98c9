"""Nothing is launched for rewards that nobody is there to report.

A trainer that reports the rewards itself died at night. Its step stayed open, each group ended without a reward, its prompt was drawn
again and then died: a whole reserve was sampled and lost before anybody looked.
"""

from __future__ import annotations

from dataclasses import replace

from pipeline.redis_client import ask
from pipeline.supervisor.ledger import SILENT_MS, launch
from pipeline.supervisor.shortage import Shortage
from pipeline.supervisor.step_spec import StepSpec
from pipeline.supervisor.views import Basis, OpenStep, RunView
from tests.integration.supervisor.fleet import RUN, Fleet

SPEC = StepSpec(target=2, n=2, over=1.0, outside=True)


async def test_a_reserve_waits_for_its_trainer_and_goes_on_with_it(fleet: Fleet) -> None:
    run = fleet.scripts.keys.run(RUN)
    await fleet.push_many(8)
    await fleet.open(0, SPEC)
    await ask(fleet.scripts.run_script.client, "HINCRBY", run, "contact", -SILENT_MS - 1000)

    await fleet.supervise()

    assert await fleet.members(fleet.scripts.keys.flying(RUN)) == []
    assert (await fleet.hash(run))["short"] == Shortage.TRAINER.value

    await fleet.scripts.touch_run(RUN, fleet.incarnation)
    await fleet.supervise()

    assert len(await fleet.members(fleet.scripts.keys.flying(RUN))) >= SPEC.target
    assert "short" not in await fleet.hash(run)


def test_steps_with_rewards_of_their_task_do_not_need_their_trainer() -> None:
    view = RunView(basis=Basis(RUN, 1, 1), steps=(OpenStep(index=0, spec=SPEC, accepted=0),), reserve=9, now_ms=SILENT_MS + 1, contact_ms=0)

    assert launch(view) is None
    assert launch(replace(view, contact_ms=1)) is not None
    assert launch(replace(view, steps=(OpenStep(index=0, spec=replace(SPEC, outside=False), accepted=0),))) is not None

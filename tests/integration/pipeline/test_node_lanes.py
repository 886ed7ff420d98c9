"""An environment that only one node has keeps its job on that node, for as long as somebody there reads the lane."""

from __future__ import annotations

import asyncio

import pytest

from pipeline.attempts import End, GivenUp, HandedOff, JobControl
from pipeline.messages import Stage
from pipeline.redis_client import ask
from pipeline.settings import QueueSettings
from pipeline.testing import LossyProxy, PrivateServer, a_group, wait_until
from tests.integration.pipeline.crew import BODY, DONE, Crew, HeldWork, passes

pytestmark = pytest.mark.one_server


class LocalEnvironments:
    """INIT of one node: what it makes, only that node has."""

    def __init__(self, node: str, epoch: str = "e1") -> None:
        self.node = node
        self.epoch = epoch
        self.made: list[str] = []

    async def __call__(self, control: JobControl) -> End:
        self.made.append(control.held.job)
        return HandedOff(BODY, self.node, self.epoch)


class Agents:
    """RUN of one node."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, str]] = []
        """Job, and the node whose environment it had."""

    async def __call__(self, control: JobControl) -> End:
        self.ran.append((control.held.job, control.begun.node))
        return HandedOff(BODY)


async def test_a_job_runs_on_the_node_that_made_its_environment(crew: Crew) -> None:
    makers = {node: LocalEnvironments(node) for node in ("a", "b")}
    agents = {node: Agents() for node in makers}
    for node in makers:
        crew.start(Stage.RUN, agents[node], node=node)
    for member in crew.members:
        await crew.has_name(member)
    for node in makers:
        crew.start(Stage.INIT, makers[node], node=node, slots=2)
    crew.start(Stage.EVAL, passes, node="anywhere")
    group = a_group(members=24)
    await crew.accept(group)

    assert {record["out"] for record in await crew.results(24)} == {"ok"}

    for node in makers:
        assert agents[node].ran, "both nodes worked"
        assert {where for _, where in agents[node].ran} == {node}
        assert sorted(job for job, _ in agents[node].ran) == sorted(makers[node].made)
    assert await crew.audit.all_ended("run1", [group]) == []


@pytest.mark.slow
async def test_jobs_of_a_node_whose_agents_are_gone_for_good_run_on_another(crew: Crew, redis_server: PrivateServer) -> None:
    """What waits in the lane and what its dead worker held: both begin anew where somebody is, and the lane is deleted with its group."""
    held, agents = HeldWork(), Agents()
    with LossyProxy(redis_server.socket) as proxy:
        doomed = crew.start(Stage.RUN, held, node="a", slots=2, url=proxy.url)
        await crew.has_name(doomed)
        maker = crew.start(Stage.INIT, LocalEnvironments("a"), node="a")
        jobs = await crew.add(5)
        await wait_until(lambda: len(held.running) == 2, "two run on a")
        lane = crew.keys.stage_stream(Stage.RUN, node="a")

        async def waits_in_lane() -> bool:
            return int(await ask(crew.client, "XLEN", lane)) == 5

        await wait_until(waits_in_lane, "the others wait in its lane")
        await maker.stop(hurry=True)
        proxy.begin_outage()  # as good as dead: nobody hears of it any more

        crew.start(Stage.RUN, agents, node="b")
        await crew.has_name(crew.members[-1])
        crew.start(Stage.INIT, LocalEnvironments("b"), node="b")
        crew.start(Stage.EVAL, passes, node="b")

        assert {record["out"] for record in await crew.results(5, timeout_s=20)} == {"ok"}
        assert sorted(agents.ran) == sorted((job, "b") for job in jobs)
        assert {(await crew.job(job))["lost"] for job in held.running} == {"1"}
        assert {(await crew.job(job))["lost"] for job in jobs if job not in held.running} == {"0"}

        async def lane_is_gone() -> bool:
            streams = await ask(crew.client, "SMEMBERS", crew.keys.key("streams"))
            return b"s:run:@a" not in streams and not await ask(crew.client, "EXISTS", lane)

        await wait_until(lane_is_gone, "the lane of a is gone")
        assert await crew.audit.all_ended("run1", crew.units) == []
        doomed.die()
        await asyncio.gather(doomed.task, return_exceptions=True)


@pytest.mark.slow
async def test_environments_of_an_earlier_epoch_are_made_again(crew: Crew) -> None:
    """The node was wiped: its RUN worker comes back with a new epoch, and what waits in the lane refers to what is no more."""
    held = HeldWork()
    before = crew.start(Stage.RUN, held, node="a", slots=1, epoch="e1")
    await crew.has_name(before)
    maker = crew.start(Stage.INIT, LocalEnvironments("a", "e1"), node="a")
    jobs = await crew.add(3)
    await wait_until(lambda: held.running, "one runs")
    await crew.in_state("ready", 2)
    await maker.stop(hurry=True)
    await before.stop(hurry=True)

    made, agents = LocalEnvironments("a", "e2"), Agents()
    crew.start(Stage.RUN, agents, node="a", epoch="e2")
    await crew.has_name(crew.members[-1])
    crew.start(Stage.INIT, made, node="a")
    crew.start(Stage.EVAL, passes, node="a")

    assert {record["out"] for record in await crew.results(3, timeout_s=20)} == {"ok"}
    assert sorted(made.made) == sorted(jobs)
    assert {(await crew.job(job))["epoch"] for job in jobs} <= {"", "e2"}


async def test_a_node_without_agents_does_not_make_environments_without_end(crew: Crew) -> None:
    """What INIT makes there has no lane to go to, goes back uncounted and was claimed again at once: sandboxes were made and thrown away as
    fast as the node could, for jobs that never got on and never failed. Now the node claims nothing for a while, and others get them."""
    maker, elsewhere, agents = LocalEnvironments("a"), LocalEnvironments("b"), Agents()
    crew.start(Stage.INIT, maker, node="a", slots=2)
    await crew.add(4)
    await wait_until(lambda: len(maker.made) >= 2, "it tried")
    tried = len(maker.made)

    crew.start(Stage.RUN, agents, node="b")
    await crew.has_name(crew.members[-1])
    crew.start(Stage.INIT, elsewhere, node="b", slots=4)
    crew.start(Stage.EVAL, passes, node="b")

    assert {record["out"] for record in await crew.results(4, timeout_s=20)} == {"ok"}
    assert len(elsewhere.made) == 4
    assert len(maker.made) - tried <= 8, "some tries more between its rests"


@pytest.mark.slow
async def test_a_worker_that_cannot_serve_its_jobs_rests_and_leaves_them_to_others(crew: Crew) -> None:
    """A message of a higher version, say: handed back uncounted, it came again at once, a hundred times a second. It rests, a little
    longer each time, and is there again when it is fit."""
    is_fit = False
    tried: list[str] = []

    async def picky(control: JobControl) -> End:
        tried.append(control.held.job)
        return DONE if is_fit else GivenUp("back", "message of schema 2, this process reads up to 1", is_unfit=True)

    (job,) = await crew.add(1)
    member = crew.start(Stage.INIT, picky, slots=2)
    await wait_until(lambda: len(tried) >= 2, "it tried again after a second", timeout_s=8)

    is_fit = True

    (record,) = await crew.results(1, timeout_s=10)
    h = await crew.job(job)
    assert (record["out"], record["att"], h["failed"], h["lost"]) == ("ok", "3", "0", "0")
    assert not member.task.done()


async def test_nothing_more_is_placed_with_a_worker_that_rests(crew: Crew) -> None:
    """Its slots stood in what its node says all through a rest of up to a minute: jobs were placed there and waited ten seconds each."""

    async def unfit(control: JobControl) -> End:
        return GivenUp("back", "cannot", is_unfit=True)

    member = crew.start(Stage.RUN, unfit, node="a")
    slots = f"slots:{member.member.consumer}"
    key = crew.keys.key("n", "a", "run")

    async def says_slots() -> bool:
        return bool(await ask(crew.client, "HEXISTS", key, slots))

    await wait_until(says_slots, "it says its slots")
    crew.start(Stage.INIT, passes)
    await crew.add(1)

    async def says_none() -> bool:
        return not await says_slots()

    await wait_until(says_none, "it says none")
    assert await ask(crew.client, "HEXISTS", key, "epoch"), "its lane is read all the same"


@pytest.mark.slow
async def test_a_rest_does_not_keep_a_worker_from_leaving(crew: Crew, quick: QueueSettings) -> None:
    tried: list[str] = []

    async def unfit(control: JobControl) -> End:
        tried.append(control.held.job)
        return GivenUp("back", "cannot", is_unfit=True)

    await crew.add(1)
    member = crew.start(Stage.INIT, unfit)
    await wait_until(lambda: len(tried) >= 2, "it rests for the second time", timeout_s=8)

    assert await member.stop(within_s=1.5) is True
    assert await crew.pending() == []


@pytest.mark.slow
async def test_a_worker_whose_lane_is_swept_while_it_enters_makes_it_again(crew: Crew, redis_server: PrivateServer) -> None:
    """A worker was frozen after it had made its lane's group, and its lane was swept. When it woke up and looked for what an earlier boot
    had left in the lane, it died of NOGROUP."""
    agents = Agents()
    lane = crew.keys.stage_stream(Stage.RUN, node="a")
    with LossyProxy(redis_server.socket) as proxy:
        trap = proxy.hold_reply(containing=crew.keys.cancel.encode())  # it takes its place there between the two
        member = crew.start(Stage.RUN, agents, node="a", url=proxy.url)
        await trap.sprung()
        assert await ask(crew.client, "DEL", lane) == 1
        trap.release()

        crew.start(Stage.INIT, LocalEnvironments("a"), node="a")
        crew.start(Stage.EVAL, passes)
        (job,) = await crew.add(1)

        assert [record["out"] for record in await crew.results(1)] == ["ok"]
        assert agents.ran == [(job, "a")]
        assert await member.stop()

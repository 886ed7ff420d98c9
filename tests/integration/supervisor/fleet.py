"""A fleet of one hand: it takes what a run's ledger launched and ends it as the test says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.codec import encode
from pipeline.messages import JobTemplate, Outcome, Settlement, Stage
from pipeline.redis_client import ask
from pipeline.scripts import Scripts
from pipeline.scripts.calls import Held
from pipeline.scripts.step_calls import StepScripts, StepState
from pipeline.supervisor.drain import Drain
from pipeline.supervisor.loading import LedgerReader
from pipeline.supervisor.step_spec import StepSpec
from pipeline.supervisor.views import RunView
from pipeline.testing import ManualWorker, a_prompt, a_settlement, a_template

RUN = "run1"
Text = Mapping[str, str]
Ending = Callable[[str, int], Settlement]
"""How a member ends: (group, member) -> settlement."""


def mixed(_: str, member: int) -> Settlement:
    """Half right, half wrong."""
    return a_settlement(float(member % 2))


def all_right(_group: str, _member: int) -> Settlement:
    """Nothing to learn from."""
    return a_settlement(1.0)


def broken(_group: str, _member: int) -> Settlement:
    """Infrastructure failed."""
    return a_settlement(None)


@dataclass
class Fleet:
    """A run, the supervisor's hands, and workers that are moved by hand."""

    scripts: Scripts
    steps: StepScripts
    drain: Drain
    reader: LedgerReader
    incarnation: int = 0
    held: dict[str, Held] = field(default_factory=dict)
    """Jobs in EVAL, begun."""

    async def connect(self, nonce: str = "first") -> None:
        """A trainer takes the run."""
        self.incarnation = await self.scripts.connect_run(RUN, nonce=nonce, ttl_s=3600.0)

    async def push(self, *ids: str) -> list[bool]:
        """Prompts for the reserve."""
        return await self.steps.push_prompts(RUN, self.incarnation, [(name, encode(a_prompt(name))) for name in ids])

    async def push_many(self, count: int, start: int = 0) -> None:
        """Prompts `e0-<i>`."""
        await self.push(*(f"e0-{i}" for i in range(start, start + count)))

    async def open(self, index: int, spec: StepSpec, template: JobTemplate | None = None) -> StepState:
        """Asks for a step."""
        template = template or a_template()
        return await self.steps.open_step(RUN, self.incarnation, index, spec, template, "tpl1")

    async def supervise(self) -> None:
        """One round of the supervisor."""
        await self.drain.round((), every_run=True)

    async def view(self) -> RunView:
        """The run's ledger."""
        view = await self.reader.run(RUN)
        assert view is not None
        return view

    async def work(self) -> None:
        """Every claimable job goes through INIT and RUN and is begun in EVAL."""
        for stage in Stage:
            worker = ManualWorker(self.scripts, stage)
            taken = await worker.take()
            if stage is Stage.EVAL:
                self.held.update({job.job: job for job in taken})
            elif taken:
                for at in range(0, len(taken), 32):
                    await worker.hand_off(*taken[at : at + 32])

    async def end(self, group: str, ending: Ending = mixed, members: Sequence[int] | None = None) -> list[str]:
        """Ends members of a group (default: all that are in EVAL)."""
        worker = ManualWorker(self.scripts, Stage.EVAL)
        words: list[str] = []
        for job in [name for name in self.held if name.rpartition(".")[0] == group]:
            member = int(job.rpartition(".")[2])
            if members is None or member in members:
                end = ending(group, member)
                words += await worker.settle(self.held.pop(job), settlement=end, body=b"grade", kind="eval", attached={"log": b"log"})
        return words

    def groups(self) -> list[str]:
        """Groups that have a member in EVAL, in the order they were begun."""
        return list(dict.fromkeys(job.rpartition(".")[0] for job in self.held))

    async def records(self, kind: str) -> list[Text]:
        """Records of one kind in the results stream, in order."""
        entries = await ask(self.scripts.run_script.client, "XRANGE", self.scripts.keys.results(RUN), "-", "+")
        found = [{name.decode(): value.decode() for name, value in fields.items()} for _, fields in entries]
        return [record for record in found if record["kind"] == kind]

    async def hash(self, key: str) -> Text:
        """Any hash as text."""
        found = await ask(self.scripts.run_script.client, "HGETALL", key)
        return {name.decode(): value.decode() for name, value in found.items()}

    async def members(self, key: str) -> list[str]:
        """A sorted set, lowest first."""
        return [word.decode() for word in await ask(self.scripts.run_script.client, "ZRANGE", key, 0, -1)]

    async def mark(self, prompt: str) -> str:
        """A prompt's mark."""
        return (await self.hash(self.scripts.keys.prompt_marks(RUN)))[prompt]


def outcome_of(outcome: Outcome, reward: float | None = 1.0) -> Settlement:
    """A settlement with this outcome."""
    return Settlement(outcome=outcome, reward=reward, sampled_tokens=3, total_tokens=8, reason="test")

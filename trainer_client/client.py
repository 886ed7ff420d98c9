"""The run as a trainer holds it: everything that a trainer can ask of it, and the parts that do it, wired together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from typing import TYPE_CHECKING, overload

from pipeline.causes import Reason
from pipeline.errors import InvalidRequest, RollstreamError
from pipeline.keys import Keys, shard_of
from pipeline.messages import CancelReason, JobResult
from pipeline.redis_client import AsyncClient, ask, reader_client
from pipeline.requests import DAY_S, JobRequest, bounded_int, bounded_number, bounded_seconds
from pipeline.scripts.calls import MAX_BATCH, Scripts
from pipeline.scripts.step_calls import StepScripts
from pipeline.scripts.trainer_calls import TrainerScripts
from pipeline.settings import QueueSettings
from pipeline.step_request import StepRequest
from trainer_client.bodies import BodyStore
from trainer_client.broken_groups import BrokenGroups
from trainer_client.calls import Calls
from trainer_client.cancels import Cancels
from trainer_client.contact import Contact
from trainer_client.dataset import check_dataset
from trainer_client.feed import Feed
from trainer_client.history import History
from trainer_client.inbox import Inbox, Kind
from trainer_client.jobs import Job, Jobs
from trainer_client.keeper import Keeper
from trainer_client.lifetime import Lifetime
from trainer_client.logs import Log
from trainer_client.on_loop import OnLoop
from trainer_client.policy_version import PolicyVersion
from trainer_client.progress import FeedProgress, Progress
from trainer_client.reader import BLOCK_S, ResultsReader
from trainer_client.results import Result
from trainer_client.run_blobs import RunBlobs
from trainer_client.seen_jobs import SeenJobs
from trainer_client.step_stream import StepStream
from trainer_client.steps import Step
from trainer_client.waiting import ClientWaits

if TYPE_CHECKING:  # what a plain loop does without is loaded by the part of `Run` that needs it
    from pipeline.validation_request import ValidationRequest
    from pipeline.wait_reasons import WaitReasons
    from trainer_client.engines_away import AwayMode
    from trainer_client.outside import Awaiting, GroupHook, Outside, ReportAnswer
    from trainer_client.run_statistics import RunStatistics
    from trainer_client.servers import Servers
    from trainer_client.servers_to_load import ServersToLoad
    from trainer_client.updates import Updates
    from trainer_client.validation import Validation
    from trainer_client.validations import Validations
    from trainer_client.weight_update import UpdateMode

log = Log(__name__)

RESERVE = 256
"""Prompts kept waiting in Redis."""


class Run(OnLoop):
    """A run, held by its one live trainer. Made by `connect`.

    Each of its methods raises what ended the client, such as `StaleIncarnation` when another trainer took the run over.
    """

    def __init__(
        self,
        settings: QueueSettings,
        run: str,
        incarnation: int,
        progress: Progress,
        *,
        nonce: str,
        went_back: bool,
        client: AsyncClient,
        patience_s: float,
    ) -> None:
        keys = Keys.of_shard(settings.namespace, shard_of(run, settings.shards))
        self.id = run
        self.incarnation = incarnation
        """Number of this trainer among those of the run; part of its policy versions (`<incarnation>.<number>`)."""
        self._settings = settings
        self._keys = keys
        self._client = client
        self._progress = progress
        self._life = Lifetime(run)
        self._contact = Contact(run, patience_s=patience_s)
        self._calls = Calls(self._contact, self._life)
        self._scripts = Scripts(client, keys)
        self._step_scripts = StepScripts(client, keys)
        self._trainer_scripts = TrainerScripts(client, keys)
        from pipeline.blobs import BlobSettings, open_store  # now: wrong settings are refused when it connects

        blobs = open_store(BlobSettings.load(), settings.namespace)
        self._bodies = BodyStore(client, self._calls, blobs)
        self._run_blobs = RunBlobs(run, blobs, client, settings)
        self._seen = SeenJobs()
        self._broken = BrokenGroups(run, incarnation)
        self._inbox = Inbox(
            incarnation,
            self._make_result,
            lambda record: progress.settle([record]),
            self._broken.take,
            on_doubt=self._contact.returned.set,
            runs_again=lambda job: self._jobs.runs_again(job),
            base=progress.base,
        )
        self._history = History(
            run,
            incarnation,
            nonce,
            client=client,
            keys=keys,
            scripts=self._trainer_scripts,
            inbox=self._inbox,
            calls=self._calls,
            life=self._life,
        )
        self._cancels = Cancels(run, incarnation, self._scripts, self._step_scripts, self._calls)
        self._reasons = ClientWaits(self._make_reasons, self._inbox, self._contact)
        self._ledger_stands = asyncio.Event()
        if not went_back:
            self._ledger_stands.set()
        self._feed: Feed | None = None
        self._acking = asyncio.Lock()
        self._jobs = Jobs(
            run=run,
            incarnation=incarnation,
            settings=settings,
            client=client,
            keys=keys,
            scripts=self._scripts,
            inbox=self._inbox,
            calls=self._calls,
            cancels=self._cancels,
            life=self._life,
            why_waiting=self._reasons.of_job,
        )
        self._version = PolicyVersion(run, incarnation, progress, self._trainer_scripts, self._calls)
        self._hold_s = 0.0
        """How long groups of steps that are opened from now on are held for their hook; 0 = there is none."""
        self._steps = StepStream(
            run=run,
            incarnation=incarnation,
            progress=progress,
            scripts=self._step_scripts,
            inbox=self._inbox,
            bodies=self._bodies,
            keys=keys,
            version=self._version,
            calls=self._calls,
            life=self._life,
            on_open=self._ledger_stands.set,
            ack=self._ack_steps,
            hold_s=lambda: self._hold_s,
            why_waiting=self._reasons.of_step,
            broken=self._broken,
        )
        self._keeper = Keeper(
            run=run,
            incarnation=incarnation,
            ttl_s=settings.run_ttl_s,
            scripts=self._scripts,
            trainer_scripts=self._trainer_scripts,
            inbox=self._inbox,
            contact=self._contact,
            calls=self._calls,
            life=self._life,
            resubmit=self.resubmit_unsettled,
            on_moved=self._on_moved,
        )
        self._tasks = asyncio.TaskGroup()
        self._reader_client = reader_client(settings, block_s=BLOCK_S)

    # ---- parts that are made, and loaded, when they are first asked for

    @cached_property
    def servers(self) -> Servers:
        """The model servers of the run."""
        from trainer_client.servers import Servers

        return Servers(self._settings, self._client, self._calls, self.id)

    @cached_property
    def _updates(self) -> Updates:
        from trainer_client.run_pause import RunPause
        from trainer_client.updates import Updates

        return Updates(
            self.id,
            new_pause=lambda: RunPause(
                self._settings, self._keys, self._client, self._trainer_scripts, self._calls, self.id, self.incarnation
            ),
            check_number=self._check_version,
            set_version=self._version.set,
            drop=self.servers.drop,
            api_key=lambda: self.servers.api_key,
        )

    @cached_property
    def _outside(self) -> Outside:
        from pipeline.scripts.reward_calls import RewardScripts
        from trainer_client.outside import Outside

        return Outside(
            run=self.id,
            incarnation=self.incarnation,
            client=self._client,
            keys=self._keys,
            scripts=RewardScripts(self._scripts.run_script),
            inbox=self._inbox,
            bodies=self._bodies,
            calls=self._calls,
            life=self._life,
            why_waiting=self._reasons.of_run,
        )

    @cached_property
    def _validations(self) -> Validations:
        from pipeline.scripts.run_calls import RunScripts
        from trainer_client.validations import Validations

        return Validations(
            run=self.id,
            incarnation=self.incarnation,
            base=lambda: self._progress.base,
            settings=self._settings,
            client=self._client,
            keys=self._keys,
            scripts=self._scripts,
            run_scripts=RunScripts(self._client, self._keys),
            inbox=self._inbox,
            bodies=self._bodies,
            calls=self._calls,
            life=self._life,
            why_waiting=self._reasons.of_job,
        )

    def _make_reasons(self) -> WaitReasons:
        from pipeline.wait_reasons import WaitReasons

        return WaitReasons(
            self._client,
            self._keys,
            self.id,
            namespace=self._settings.namespace,
            max_unread=self._settings.max_unread,
            incarnation=self.incarnation,
        )

    # ---- prompts and steps

    def feed(self, dataset: Iterable[object], *, epochs: int = 1, shuffle_seed: int | None = None, reserve: int = RESERVE) -> Feed:
        """Feeds a data set into the run, in the background, as far ahead as the reserve has room.

        Args:
            dataset: rows that are maps of plain values. One with a length and an index is read in any order, any other iterable in its own.
            epochs: how often.
            shuffle_seed: order of each epoch; None = as it is.
            reserve: most prompts waiting in Redis.

        Raises:
            InvalidRequest: a feed is going on, the data set cannot be fed like that, or it is not the one the run was fed with before.
        """
        self._life.check(needs_open_run=True)
        bounded_int(epochs, "epochs", low=1, high=1_000_000)
        bounded_int(reserve, "reserve", low=1, high=1_000_000)
        if self._feed is not None:
            raise InvalidRequest(
                "expected one feed a run, since ids name its rows: use epochs, join the data sets, or begin another run", field="dataset"
            )
        feed = self._progress.begin_feed(FeedProgress(epochs, shuffle_seed, check_dataset(dataset, epochs, shuffle_seed)))
        self._feed = Feed(
            dataset,
            feed,
            base=self._progress.base,
            incarnation=self.incarnation,
            run=self.id,
            reserve=reserve,
            max_body_bytes=self._settings.max_body_bytes,
            ready=self._ledger_stands,
            client=self._client,
            keys=self._keys,
            scripts=self._step_scripts,
            inbox=self._inbox,
            calls=self._calls,
            life=self._life,
        )
        self._spawn("feed", self._feeding(self._feed))
        return self._feed

    async def _feeding(self, feed: Feed) -> None:
        try:
            await feed.work()
        except RollstreamError as error:
            self._life.refuse(error)
        except Exception as error:  # noqa: BLE001  # whatever reading a data set raises belongs to the trainer, at its next step
            log.warning("feed_failed", run=self.id, error=repr(error))
            self._life.refuse(error)

    def steps(
        self,
        request: StepRequest,
        *,
        start: int | None = None,
        count: int | None = None,
        timeout_s: float | None = None,
        progress: bool = False,
    ) -> AsyncIterator[Step]:
        """Steps, one after the other, each when it is complete; `request.ahead` more are open beyond the one that is given out.

        Ends after `count` steps, or when the prompts have ended and no group is left: the last step may be short.

        Args:
            request: what each of these steps asks for.
            start: index of the first; None = the one after the last that was acked, 1 in a new run.
            count: how many; None = as many as there are.
            timeout_s: longest wait for one step.
            progress: whether a line on stderr says how the step comes along while it is awaited: groups, rates, time left, and what it
                waits for when nothing comes.

        Raises:
            WaitTimeout: says what stands in the way. The step goes on: ask for steps again.
            GroupsBroken: infrastructure breaks every group from the first on, such as a task that no worker has. So, too.
        """
        self._life.check(needs_open_run=True)
        if not isinstance(request, StepRequest):
            raise InvalidRequest(f"expected a StepRequest, got {type(request).__name__}", field="request")
        if count is not None:
            bounded_int(count, "count", low=1, high=2**31)
        return self._steps.stream(request, start, count, bounded_seconds(timeout_s, "timeout_s"), progress=progress)

    # ---- weights

    def weight_update(self, number: int, *, mode: UpdateMode = "keep") -> AbstractAsyncContextManager[ServersToLoad]:
        """Gives the servers of the run other weights, under its running jobs: `async with run.weight_update(n) as servers: load(servers)`.

        When the block is entered no model call begins any more, and the engines stand. The block loads weights, by whatever way trainer
        and engines have for that, into all of `servers`. Then the version of the policy is `<incarnation>.<number>`, the servers bear that
        label, and the jobs go on. Meanwhile no deadline of the run comes, and its jobs wait without paying for it.

        The block may block the event loop. When it raises, or dies, what it may have changed gets no label: those servers stay without jobs
        until the next update, of this trainer or the one that follows it. A server that could not be paused, loaded or labelled is in
        `servers.failed`, with why; so say `servers.fail(url, why)` of one that did not load.

        Args:
            number: of the version; never lower than before. The same again for the same weights, to reach servers that failed.
            mode: what happens to model calls in flight. `keep`: they stand, and go on with the new weights; their answers have tokens of
                both versions, each labelled. `abort`: they return what they have, and their turns go on from it as calls of their own.
                `wait`: the update begins when they have ended.

        Raises:
            InvalidRequest: the run has no servers, or one that cannot `keep`; lower than before; a deterministic step is being sampled.
            PauseHeld: another update of this client goes on, or its engines are away and this is not inside of that.
            UpdateFailed: no server was updated.
            PauseLost: the lease ran out in the block (this process stood still, or had no contact), or another trainer has it.
        """
        self._life.check(needs_open_run=True)
        return self._updates.update(number, mode)

    def engines_away(self, *, mode: AwayMode = "abort", weights_kept: bool = False) -> AbstractAsyncContextManager[None]:
        """Lets engines that share their accelerators with the trainer go away while it trains: `async with run.engines_away(): ...`.

        When the block is entered no model call is in flight and none begins. In it engines may sleep, or end and start anew: no server is
        judged, no job loses anything for it, no deadline comes. At its end the engines must be there again. Weights that are new by then
        are loaded in the block, by a `weight_update` inside of it; its pause is the same.

        Args:
            mode: `abort`: calls in flight return what they have, and go on from it afterwards; `wait`: they end first.
            weights_kept: whether engines come back with the weights that they went with. If not, as with a deep sleep, they stay without
                jobs until a `weight_update`, in the block or after it.

        Raises:
            PauseHeld: an update goes on, or they are away already.
            PauseLost: the lease ran out in the block, or another trainer has it.
        """
        self._life.check()
        return self._updates.leave(mode, weights_kept=weights_kept)

    async def set_policy_version(self, number: int) -> None:
        """Says that the policy has this version from now on: `<incarnation>.<number>`. The same again changes nothing.

        For runs whose servers are loaded and labelled by somebody else (an engine of the trainer's framework, a frozen policy): nothing is
        paused and no server is told. With servers of the run's own, use `weight_update`, which says it itself.

        Each rise after the first call of this client is taken for the update that one step brought. Until it is called nothing of the run
        is stale.

        Raises:
            InvalidRequest: lower than before: a trainer that goes back connects anew. Or a deterministic step is being sampled.
        """
        self._check_version(number)
        await self._version.set(number)

    def _check_version(self, number: int) -> None:
        bounded_int(number, "version", low=0, high=2**53)
        current = self._version.current
        if current is not None and number < current.number:
            raise InvalidRequest(
                f"expected {current.number} or more, the version that the policy has, got {number}: connect with resume=<state of an older "
                "checkpoint> to go back",
                field="version",
            )
        step = self._steps.sampling_deterministic
        if step is not None and str(current or "") != f"{self.incarnation}.{number}":
            raise InvalidRequest(
                f"step {step} is deterministic and being sampled: its tokens would be of two versions. Update between taking a step "
                "and asking for the next one",
                field="version",
            )

    @property
    def policy_version(self) -> str:
        """Label of the version that was set last; empty before the first."""
        return str(self._version.current or "")

    async def _ack_steps(self, index: int) -> None:
        """Lets go of a step and of all before it. The state is kept first: a trainer that dies in between goes on after the step."""
        async with self._acking:
            groups, steps = self._inbox.up_to(index)
            if not groups and not steps and index < (self._progress.next_step or 0):
                self._life.check()
                return
            self._inbox.begin_ack(index)
            self._progress.settle(groups)
            self._progress.pass_step(index)
            self._steps.close_up_to(index)
            await self.save_state()
            units: list[tuple[str, Kind, str]] = [(record.entry, "group", record.group) for record in groups]
            units += [(record.entry, "step", str(record.index)) for record in steps]
            await self._ack(units)

    async def _ack(self, units: Sequence[tuple[str, Kind, str]]) -> None:
        for at in range(0, len(units), MAX_BATCH):
            part = units[at : at + MAX_BATCH]
            await self._calls.make(self._scripts.ack, self.id, self.incarnation, part)
            for _, kind, unit in part:
                self._inbox.drop(kind, unit)
                if kind == "job":
                    self._jobs.on_acked(unit)
        await self._run_blobs.delete(units)

    async def save_state(self) -> None:
        await self._calls.make(self._trainer_scripts.save_state, self.id, self.incarnation, self._progress.to_json())

    # ---- validation

    async def validate(self, request: ValidationRequest, *, index: int | None = None, timeout_s: float | None = None) -> Validation:
        """Samples each prompt of a validation set `request.n` times and waits for all of it, while steps go on.

        It takes turns with the training jobs of the run for places at the workers, and is outside everything that training does with
        groups: nothing is filtered, over-sampled or cancelled at a target. What breaks is drawn again, with the same seeds.

        Args:
            index: the trainer's name for it, such as the step's index. Asked again with the same one, also by the trainer's next process,
                it goes on where it was. None = the next free one.
            timeout_s: longest wait for all of it.

        Raises:
            InvalidRequest: the index is that of another request or of a validation that was acked; or there is no version to be pinned to.
            WaitTimeout: says what stands in the way. It goes on: ask for the same index again.
        """
        from pipeline.validation_request import ValidationRequest

        self._life.check(needs_open_run=True)
        if not isinstance(request, ValidationRequest):
            raise InvalidRequest(f"expected a ValidationRequest, got {type(request).__name__}", field="request")
        if index is not None:
            bounded_int(index, "index", low=0, high=2**53)
        return await self._validations.validate(request, index, bounded_seconds(timeout_s, "timeout_s"))

    # ---- single jobs

    @overload
    async def submit(self, request: JobRequest, *, wait_s: float = 0.0, digests: Sequence[str] = ()) -> Job: ...

    @overload
    async def submit(self, request: Sequence[JobRequest], *, wait_s: float = 0.0, digests: Sequence[str] = ()) -> list[Job]: ...

    async def submit(
        self, request: JobRequest | Sequence[JobRequest], *, wait_s: float = 0.0, digests: Sequence[str] = ()
    ) -> Job | list[Job]:
        """Puts one job, or many in few calls, into the queue of the run. The same request again is the same job.

        An id whose result was acked, by an earlier process too, is used up: `results` passes over it, `Job.result` raises, and a warning
        says so.

        Args:
            request: what to do.
            wait_s: how long to wait while the queue is full.
            digests: of what each request was made of, kept with its job: the same id with another digest is refused. Without them whoever
                submits an id again gets its job, whatever the request says.

        Raises:
            InvalidRequest: nothing was submitted.
            IdTaken: an id is there with another digest; of many requests, the first may be in.
            QueueFull: still full after `wait_s`; of many requests, the first may be in. Submit the same ones again.
        """
        bounded_seconds(wait_s, "wait_s")
        if isinstance(request, Sequence):
            return await self._jobs.submit(request, wait_s=wait_s, digests=digests)
        return (await self._jobs.submit([request], wait_s=wait_s, digests=digests))[0]

    def job(self, job_id: str) -> Job:
        """A job that was submitted before, perhaps by an earlier process."""
        if not job_id.startswith(self.id + "."):
            raise InvalidRequest(f"expected the id of a job of run {self.id!r}, got {job_id!r}", field="job_id")
        return Job(job_id, self._jobs)

    async def results(self, jobs: Iterable[Job] | None = None, *, timeout_s: float | None = None) -> AsyncIterator[Result]:
        """Results of single jobs as they come, each once: first those that nobody has acked yet, those of earlier processes among them.

        Args:
            jobs: give out only these, and end when each was; None = all, without end.
            timeout_s: longest wait for the next one.

        Raises:
            WaitTimeout: says what stands in the way.
        """
        bounded_seconds(timeout_s, "timeout_s")
        left = None if jobs is None else {job.id for job in jobs if not self._inbox.was_acked(job.id)}
        with self._inbox.singles() as reader:
            while left is None or left:
                while not reader.waiting:
                    await self._life.wait(reader.arrival(), "the next result", timeout_s, lambda: self._why_no_result(left))
                result = reader.waiting.popleft()
                if left is None or result.job in left:
                    if left is not None:
                        left.discard(result.job)
                    result.was_given = True
                    yield result

    async def _why_no_result(self, left: set[str] | None) -> Sequence[Reason]:
        return await (self._reasons.of_job(min(left)) if left else self._reasons.of_run())

    async def ack(self, results: Iterable[Result]) -> None:
        """Lets go of many single results in few calls. Again: nothing happens.

        Raises:
            InvalidRequest: one is a member of a group, which is acked with its step.
        """
        found = list(results)
        member = next((result for result in found if result.record.group), None)
        if member is not None:
            raise InvalidRequest(f"{member.job} is a member of a group: ack the step that it belongs to", field="results")
        await self._ack([(result.record.entry, "job", result.job) for result in found])

    # ---- rewards from outside

    def awaiting(self, *, timeout_s: float | None = None) -> AsyncIterator[Awaiting]:
        """Jobs that await a reward from outside (`reward="outside"`), each once, without end: first those that wait already.

        Args:
            timeout_s: longest wait for the next one.

        Raises:
            WaitTimeout: says what stands in the way.
        """
        self._life.check()
        return self._outside.awaiting(bounded_seconds(timeout_s, "timeout_s"))

    async def report_reward(self, job: str | Job | Awaiting, score: float, components: Mapping[str, float] | None = None) -> ReportAnswer:
        """Gives a job its reward, and with it its end. The first report stands; the answer says what became of this one.

        Args:
            job: which one. An `Awaiting` says also which trajectory was judged.
            score: the unshaped task score.
            components: other parts by name, for the filter (`informative_on`) and for the trainer.

        Raises:
            InvalidRequest: no finite number, or outside the bounds of the job's step. The job goes on waiting.
        """
        from trainer_client.outside import Awaiting

        if isinstance(job, Awaiting):
            return await job.report(score, components)
        return await self._outside.report(job.id if isinstance(job, Job) else job, score, components)

    def group_hook(self, hook: GroupHook, *, deadline_s: float = 600.0) -> None:
        """Lets `hook` see each group of the steps that are opened from now on before it closes, when all its members have ended.

        What it returns, components by name for each member, is there for the filter and for the trainer. The score that the task gave
        stands; a member without one (`reward="outside"`) gets the hook's `score`. Groups are held for it at most `deadline_s`, then they
        close with what they have. An error of the hook is raised at the next step.

        Args:
            hook: a coroutine function, or a function, which is called in a thread.
            deadline_s: from the end of a group's last member.

        Raises:
            InvalidRequest: there is a hook, or steps are open that would not be held.
        """
        self._life.check(needs_open_run=True)
        if not callable(hook):
            raise InvalidRequest(f"expected something to call, got {type(hook).__name__}", field="hook")
        bounded_number(deadline_s, "deadline_s", low=0.1, high=30 * DAY_S, unit="seconds")
        if self._hold_s or self._steps.has_open:
            raise InvalidRequest("expected one hook a run, before its steps: groups that are in flight would not be held", field="hook")
        self._hold_s = float(deadline_s)
        self._spawn("hook", self._serving(hook))

    async def _serving(self, hook: GroupHook) -> None:
        try:
            await self._outside.serve(hook)
        except BaseExceptionGroup as group:
            error = group.exceptions[0]
            log.warning("hook_failed", run=self.id, error=repr(error))
            self._life.refuse(error if isinstance(error, Exception) else InvalidRequest(repr(error), field="group_hook"))

    # ---- the run

    async def cancel(self, reason: CancelReason = CancelReason.USER) -> dict[str, int]:
        """Cancels all of the run: counts of jobs settled at once, running (their workers are told), done before, unknown.

        The run takes no more work from then on; results go on to come.
        """
        return await self._cancels.ask("run", self.id, reason)

    async def cancel_step(self, index: int, reason: CancelReason = CancelReason.USER) -> dict[str, int]:
        """Cancels one step: it ends now, short, with the groups that joined it; what is in flight for it is given up, its prompts return.

        The step comes out of `steps` like any other, with `record.cancelled_for`. What joined it are its quicker groups: training on them
        favours short rollouts.

        Returns how many groups were given up, and of their jobs how many were settled at once, are running (their workers are told), or
        had ended.

        Raises:
            InvalidRequest: there is no such step, or it has ended.
        """
        return await self._cancels.ask("step", str(index), reason)

    async def cancel_group(self, group_id: str, reason: CancelReason = CancelReason.USER) -> dict[str, int]:
        """Cancels one group: counts as of `cancel`. Its prompt returns whole and may be drawn again.

        Raises:
            InvalidRequest: the id is not of this run.
        """
        if not group_id.startswith(self.id + "."):
            raise InvalidRequest(f"expected the id of a group of run {self.id!r}, got {group_id!r}", field="group_id")
        return await self._cancels.ask("group", group_id, reason)

    async def statistics(self) -> RunStatistics:
        """How the run is doing, in numbers."""
        from trainer_client.run_statistics import read_statistics

        return await self._calls.make(read_statistics, self._client, self._keys, self.id, self._seen)

    async def why_waiting(self) -> list[str]:
        """What stands in the way of the run, as far as is known, what to see to first before the rest: sentences for people."""
        self._life.check()
        return [str(reason) for reason in await self._reasons.of_run()]

    def state_dict(self) -> dict[str, object]:
        """Where the trainer stands, in plain values, for its checkpoint: pass it as `resume` to go back to here."""
        return self._progress.to_state()

    async def resubmit_unsettled(self) -> int:
        """Sends again what was asked for and has no end yet; returns how much of it Redis did not have.

        Done after every outage: a server that keeps its writes for a second before they are safe, or one that took over from another, may
        have lost the last of them. Steps that the trainer has had stand in any case (`history.py`).

        Raises:
            RunLost: it lost that this trainer has the run, more steps than the client remembers, or prompts of more than a minute ago.
        """
        await self._history.restore()
        await self.save_state()
        if "servers" in vars(self):  # else none were attached here
            await self.servers.repeat()
        await self._version.repeat()
        lost = await self._jobs.resubmit()
        if "_validations" in vars(self):  # else none was asked for here
            lost += await self._validations.resubmit()
        await self._steps.reopen()
        if "_outside" in vars(self):  # else nothing was reported here
            lost += await self._outside.repeat()
        if self._feed is not None:
            lost += await self._feed.repeat()
        await self._cancels.repeat()
        return lost

    @property
    def next_step(self) -> int | None:
        """The step after the last one that was acked; None before the first ack."""
        return self._progress.next_step

    def _make_result(self, record: JobResult) -> Result:
        self._jobs.on_result(record.job)
        self._seen.add(record)
        return Result(record, self._bodies, self._keys, self.ack)

    def _on_moved(self) -> None:
        if self._feed is not None:
            self._feed.wake()

    # ---- life

    async def start(self) -> None:
        await self._find_open_validations()
        await self._tasks.__aenter__()
        reader = ResultsReader(self._reader_client, self._keys.results(self.id), self._inbox, self._contact)
        self._spawn("results", reader.run(self._life.stop))
        self._spawn("beat", self._keeper.beat())
        self._spawn("extend", self._keeper.extend())
        self._spawn("tidy", self._keeper.tidy())
        self._spawn("repeat", self._keeper.repeat())
        self._spawn("sweep", self._run_blobs.sweep(self._life.stop))

    async def _find_open_validations(self) -> None:
        """Finds out which validations are not acked, before the first record is read."""
        lines = await self._calls.make(ask, self._client, "HVALS", self._keys.validations(self.id))
        words = [line.split() for line in lines]
        # one of a history that was given up is begun anew when it is asked for: nobody will ack what it left
        ours = [found for found in words if len(found) > 2 and found[0] == b"open" and int(found[2]) >= self._progress.base]
        self._inbox.open_validations |= {int(found[1]) for found in ours}

    def _spawn(self, name: str, work: Awaitable[None]) -> None:
        self._tasks.create_task(self._guarded(name, work), name=f"{name}-{self.id}")

    async def _guarded(self, name: str, work: Awaitable[None]) -> None:
        """A background task never fails alone: what ends it ends the client, which says it in every call."""
        try:
            await work
        except RollstreamError as error:
            self._life.end(error)
        except Exception as error:
            log.exception("client_failed", run=self.id, task=name)
            self._life.end(error)

    async def close(self) -> None:
        self._life.close()
        try:
            await self._tasks.__aexit__(None, None, None)
        finally:
            await self._reader_client.aclose()

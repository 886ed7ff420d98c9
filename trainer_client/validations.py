"""Asks for validations, and puts their results together.

Protocol (`docs/adr/0007-validation-and-admission.md`). A validation is opened under the trainer's index and gets a serial; its groups,
`<run>.v<serial>-<row>.0`, are accepted into the validation lane of the run; members that did not come out valid are drawn again, each as a
group of one, `<run>.v<serial>-<row>.<draw>` with a draw of its own, until they do or `max_redraws` is used up.

Invariants:
  1. All of it is idempotent: whoever asks for the same index again, in this process or the next, sends the same units, and what has ended
     is not run again.
  2. A member that is drawn again has the seeds it had: prompt, draw 0 and number are those of the member it stands for.
  3. Nothing here touches the ledger: no reserve, no step, no filter.
  4. A record of a validation that is not open (acked by a trainer that died in it, or of a history that was given up) is nobody's: it goes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.causes import Cause, Reason
from pipeline.codec import encode
from pipeline.errors import InvalidRequest, QueueFull
from pipeline.keys import Keys, group_id, job_id, validation_prompt
from pipeline.messages import JobTemplate, Outcome
from pipeline.prompts import encode_prompt
from pipeline.redis_client import AsyncClient, ask
from pipeline.requests import template_id
from pipeline.scripts.calls import MAX_BATCH, Accepted, Scripts, Unit
from pipeline.scripts.run_calls import OpenedValidation, RunScripts
from pipeline.settings import QueueSettings
from pipeline.validation_request import ValidationRequest
from trainer_client.bodies import BodyStore
from trainer_client.calls import Calls
from trainer_client.errors import FULL, WaitTimeout
from trainer_client.inbox import Inbox, Kind
from trainer_client.lifetime import Lifetime
from trainer_client.logs import Log
from trainer_client.results import Result
from trainer_client.validation import Validation, ValidationGroup, ValidationMember, member_of, other_version
from trainer_client.validation_numbers import score_of, why_invalid

log = Log(__name__)

JOBS_A_CALL = 256
"""Jobs that one accept takes in: some milliseconds of the server."""
BYTES_A_CALL = 4 * 1024 * 1024

Slot = tuple[int, int]
"""Row of the prompt, number of the member."""


@dataclass(slots=True)
class Asked:
    """A validation that goes on."""

    index: int
    serial: int
    pin: str
    request: ValidationRequest
    template: JobTemplate
    template_body: bytes
    names: Sequence[str]
    """Of the prompts, by content."""
    sent: dict[str, Unit] = field(default_factory=dict)
    """Units that were sent, by id."""


class Validations:
    """The validations of one client.

    Args:
        base: the incarnation in which the trainer went back last, asked when needed.
        why_waiting: asked about a job whose result does not come.
    """

    def __init__(
        self,
        *,
        run: str,
        incarnation: int,
        base: Callable[[], int],
        settings: QueueSettings,
        client: AsyncClient,
        keys: Keys,
        scripts: Scripts,
        run_scripts: RunScripts,
        inbox: Inbox,
        bodies: BodyStore,
        calls: Calls,
        life: Lifetime,
        why_waiting: Callable[[str], Awaitable[Sequence[Reason]]],
    ) -> None:
        self._run = run
        self._incarnation = incarnation
        self._base = base
        self._settings = settings
        self._client = client
        self._keys = keys
        self._scripts = scripts
        self._run_scripts = run_scripts
        self._inbox = inbox
        self._bodies = bodies
        self._calls = calls
        self._life = life
        self._why_waiting = why_waiting
        self._asked: dict[int, Asked] = {}

    async def validate(self, request: ValidationRequest, index: int | None, timeout_s: float | None) -> Validation:
        """See `Run.validate`."""
        ends_s = None if timeout_s is None else time.monotonic() + timeout_s
        asked = await self._open(request, index)
        draws: dict[Slot, list[Result]] = {}
        units = await asyncio.to_thread(self._first_units, asked)
        slots = {job_id(units[row].id, number): (row, number) for row in range(len(request.prompts)) for number in range(request.n)}
        await self._send(asked, units, ends_s)
        await self._collect(asked, slots, draws, ends_s)
        for again in range(1, request.max_redraws + 1):
            to_draw = await self._to_draw_again(asked, draws)
            if not to_draw:
                break
            log.info("validation_draws_again", run=self._run, validation=asked.index, members=len(to_draw), time=again)
            redraws = {slot: self._redraw(asked, slot, again) for slot in to_draw}
            await self._send(asked, list(redraws.values()), ends_s)
            await self._collect(asked, {job_id(unit.id, 0): slot for slot, unit in redraws.items()}, draws, ends_s)
        return self._put_together(asked, draws)

    async def resubmit(self) -> int:
        """Sends again what has not ended; returns how many jobs Redis did not have."""
        return sum([await self._accept(asked, batch) for asked in list(self._asked.values()) for batch in _batches(self._unended(asked))])

    # ---- asking

    async def _open(self, request: ValidationRequest, index: int | None) -> Asked:
        names = await asyncio.to_thread(request.prompt_names)
        digest = await asyncio.to_thread(request.digest)
        opened = await self._calls.make_if_open(
            self._run_scripts.open_validation,
            self._run,
            self._incarnation,
            index=index,
            digest=digest,
            base=self._base(),
            version=request.version,
        )
        self._refuse(opened)
        self._inbox.open_validations.add(opened.serial)
        template = request.template()
        asked = self._asked.setdefault(
            opened.serial, Asked(opened.index, opened.serial, opened.pin, request, template, encode(template), names)
        )
        return asked

    def _refuse(self, opened: OpenedValidation) -> None:
        match opened.state:
            case "acked":
                raise InvalidRequest(
                    f"validation {opened.index} of run {self._run!r} was acked: it is gone; take another index", field="index"
                )
            case "other":
                raise InvalidRequest(
                    f"validation {opened.index} of run {self._run!r} was asked for with other prompts, sampling or number of samples: "
                    "go on with those, or take another index",
                    field="index",
                )
            case "unversioned":
                raise InvalidRequest(
                    f"run {self._run!r} has no policy version to be pinned to: call run.set_policy_version first, or leave version out",
                    field="version",
                )

    def _first_units(self, asked: Asked) -> list[Unit]:
        return [self._unit(asked, row, 0, 0, asked.request.n) for row in range(len(asked.request.prompts))]

    def _redraw(self, asked: Asked, slot: Slot, again: int) -> Unit:
        row, number = slot
        return self._unit(asked, row, 1 + (again - 1) * asked.request.n + number, number, 1)

    def _unit(self, asked: Asked, row: int, draw: int, first_member: int, members: int) -> Unit:
        prompt = validation_prompt(asked.serial, row)
        body = encode_prompt(
            asked.names[row],
            asked.request.prompts[row],
            max_body_bytes=self._settings.max_body_bytes,
            field=f"prompts[{row}]",
            first_member=first_member,
        )
        # draw 0 in the seeds of model calls, whatever the group is called
        return Unit(group_id(self._run, prompt, draw), members, prompt, 0, asked.pin, body)

    async def _send(self, asked: Asked, units: Sequence[Unit], ends_s: float | None) -> None:
        """Puts units into the queue, and waits while it is full."""
        asked.sent.update({unit.id: unit for unit in units})
        started_s, told = time.monotonic(), False
        for batch in _batches([unit for unit in units if not self._has_ended(unit)]):
            while True:
                try:
                    await self._accept(asked, batch)
                    break
                except QueueFull as error:
                    if not told:
                        log.warning("validation_waits", run=self._run, validation=asked.index, why=error.why)
                        told = True
                    if ends_s is not None and time.monotonic() + error.retry_after_s > ends_s:
                        raise WaitTimeout(
                            _name(asked), time.monotonic() - started_s, [Reason(Cause.QUEUE_FULL, error.why, FULL)]
                        ) from error
                    await self._life.pause(error.retry_after_s)
                    self._life.check(needs_open_run=True)

    async def _accept(self, asked: Asked, batch: Sequence[Unit]) -> int:
        """Returns how many jobs were new."""
        accepted = await self._calls.make_if_open(
            self._scripts.accept,
            self._run,
            self._incarnation,
            asked.template,
            template_id(asked.template_body),
            asked.template_body,
            batch,
            max_waiting=self._settings.max_waiting,
            window=self._settings.admit_window,
            validation=asked.serial,
        )
        return sum(unit.members for unit, state in zip(batch, accepted, strict=True) if state is Accepted.NEW)

    def _unended(self, asked: Asked) -> list[Unit]:
        return [unit for unit in asked.sent.values() if not self._has_ended(unit)]

    def _has_ended(self, unit: Unit) -> bool:
        return all(job_id(unit.id, number) in self._inbox.jobs for number in range(unit.members))

    # ---- what comes

    async def _collect(self, asked: Asked, jobs: Mapping[str, Slot], draws: dict[Slot, list[Result]], ends_s: float | None) -> None:
        """Waits for all of these jobs."""
        for job, slot in jobs.items():
            left_s = None if ends_s is None else max(0.0, ends_s - time.monotonic())
            future = self._inbox.job_future(job)
            result = await self._life.wait(future, f"{_name(asked)}, job {job}", left_s, lambda job=job: self._why_waiting(job))  # type: ignore[misc]  # bound now
            draws.setdefault(slot, []).append(result)

    async def _to_draw_again(self, asked: Asked, draws: Mapping[Slot, Sequence[Result]]) -> list[Slot]:
        broken = [slot for slot, results in draws.items() if self._is_broken(asked, results[-1])]
        late = [slot for slot, results in draws.items() if slot not in broken and self._invalid_by_version(asked, results[-1])]
        # no later draw brings an old version back
        return broken + (late if late and await self._current_version() == asked.pin else [])

    def _is_broken(self, asked: Asked, result: Result) -> bool:
        return result.outcome is not Outcome.CANCELLED and score_of(result.record, asked.request.metric) is None

    def _invalid_by_version(self, asked: Asked, result: Result) -> str:
        return other_version(result, asked.pin) if asked.request.is_pinned and result.outcome is not Outcome.CANCELLED else ""

    async def _current_version(self) -> str:
        (number,) = await self._calls.make(ask, self._client, "HMGET", self._keys.run(self._run), "ver")
        return f"{self._incarnation}.{number.decode()}" if number else ""

    def _put_together(self, asked: Asked, draws: Mapping[Slot, Sequence[Result]]) -> Validation:
        request = asked.request
        groups = [
            ValidationGroup(row, request.prompts[row], [self._member(asked, number, draws[row, number]) for number in range(request.n)])
            for row in range(len(request.prompts))
        ]

        async def ack() -> None:
            await self._ack(asked)

        validation = Validation(asked.index, request, asked.pin, groups, self._bodies, ack)
        if found := validation.why_invalid:
            often, count = next(iter(found.items()))
            log.warning(
                "validation_members_not_valid",
                run=self._run,
                validation=asked.index,
                members=sum(found.values()),
                asked=validation.n_asked,
                most_often=often,
                times=count,
            )
        return validation

    def _member(self, asked: Asked, number: int, draws: Sequence[Result]) -> ValidationMember:
        request, last = asked.request, draws[-1]
        score, why = score_of(last.record, request.metric), ""
        if score is None:
            why = why_invalid(last.record, request.metric)
        elif other := self._invalid_by_version(asked, last):
            score, why = None, f"sampled by version {other}, pinned to {asked.pin}"
        return member_of(number, draws, score, why, request.threshold)

    # ---- letting go

    async def _ack(self, asked: Asked) -> None:
        if asked.serial not in self._asked:
            self._life.check()
            return
        await self._calls.make(self._run_scripts.end_validation, self._run, self._incarnation, asked.index, asked.serial)
        # what a later record says of it is nobody's; draws of an earlier process that were not asked for again go too
        self._inbox.open_validations.discard(asked.serial)
        jobs = self._inbox.jobs_of_validation(asked.serial)
        groups = dict.fromkeys([*asked.sent, *jobs])
        units: list[tuple[str, Kind, str]] = [("", "group", group) for group in groups]
        for at in range(0, len(units), MAX_BATCH):
            part = units[at : at + MAX_BATCH]
            await self._calls.make(self._scripts.ack, self._run, self._incarnation, part)
            for _, _, group in part:
                for job in jobs.get(group, ()):
                    self._inbox.drop("job", job)
        self._asked.pop(asked.serial, None)


def _name(asked: Asked) -> str:
    return f"validation {asked.index}"


def _batches(units: Iterable[Unit]) -> Iterator[list[Unit]]:
    """Units within the bounds of one call, in order; a larger one goes alone."""
    batch: list[Unit] = []
    jobs = n_bytes = 0
    for unit in units:
        if batch and (len(batch) == MAX_BATCH or jobs + unit.members > JOBS_A_CALL or n_bytes + len(unit.body) > BYTES_A_CALL):
            yield batch
            batch, jobs, n_bytes = [], 0, 0
        batch.append(unit)
        jobs += unit.members
        n_bytes += len(unit.body)
    if batch:
        yield batch


__all__ = ["Validations"]

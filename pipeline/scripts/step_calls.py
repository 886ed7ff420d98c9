"""One typed function for each script of the ledger: feeding prompts, opening steps, launching, accounting, reaching.

What changes a run's ledger on a decision carries the incarnation and the revision it was decided on (`Basis`) and is refused (`Moved`)
when either is another: whoever decided looks again. A call whose reply was lost is made again by the runner and is then refused the same
way, so it never acts twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import orjson

from pipeline.codec import encode
from pipeline.errors import InvalidRequest, QueueFull, RunClosed
from pipeline.keys import PROMPT_ID, Keys
from pipeline.messages import JobTemplate
from pipeline.redis_client import AsyncClient
from pipeline.scripts.calls import Scripts
from pipeline.scripts.replies import check_refusal, full_when_out_of_memory, text, whole
from pipeline.scripts.runner import Arg, ScriptRunner
from pipeline.supervisor.informative import check_policy
from pipeline.supervisor.step_spec import StepSpec

if TYPE_CHECKING:  # what supervisors call with; a trainer does not load it
    from pipeline.supervisor.actions import Account, Launch, Reach, Spare
    from pipeline.supervisor.views import Basis

PROMPTS_A_CALL = 128
BYTES_A_CALL = 4 * 1024 * 1024
"""Prompt bodies of one call: more would hold the server."""
ACCOUNTS_A_CALL = 16
JOBS_A_CALL = 256
"""Jobs that one launch accepts."""
GIVEN_UP_A_CALL = 256
"""Jobs of the groups that one script gives up: some milliseconds of the server."""
CANCELLED_GROUPS_A_CALL = 256
"""Groups of a cancelled step that one script marks."""

StepState = Literal["opened", "open", "reached"]
AccountWord = Literal["done", "parked", "again", "gone", "full"]


class Moved(Exception):
    """The ledger is not as it was when this was decided: look again."""


@dataclass(frozen=True, slots=True)
class Launched:
    """What a launch did."""

    revision: int
    groups: int
    announced: bool
    """The reserve had fewer than asked for, and the trainer was told."""


class StepScripts:
    """The ledger's scripts on one shard."""

    def __init__(self, client: AsyncClient, keys: Keys) -> None:
        self.keys = keys
        self.run_script = ScriptRunner(client, keys)

    async def push_prompts(self, run: str, incarnation: int, prompts: Sequence[tuple[str, bytes]]) -> list[bool]:
        """Puts prompts into the reserve, in order: (prompt id, encoded `Prompt`). True for each that is new.

        Safe to repeat: an id that is there, in flight or done with is left as it is. A refusal in the middle of many leaves the first in.

        Raises:
            InvalidRequest: an id that cannot name a group.
            QueueFull, StaleIncarnation, RunClosed
        """
        for prompt_id, _ in prompts:
            if not PROMPT_ID.match(prompt_id):
                raise InvalidRequest(f"expected 1 to 64 of A-Z, a-z, 0-9, _ and -, got {prompt_id!r}", field="prompt.id")
        fresh: list[bool] = []
        for chunk in _chunks(prompts):
            args: list[Arg] = [run, incarnation]
            for prompt in chunk:
                args += prompt
            with full_when_out_of_memory():
                reply = await self.run_script("push_prompts", *args)
            check_refusal(reply, run, incarnation)
            fresh += [word == b"ok" for word in reply]
            await asyncio.sleep(0)
        return fresh

    async def end_prompts(self, run: str, incarnation: int) -> None:
        """Says that no more prompts come. A later push takes it back.

        Raises:
            StaleIncarnation, RunClosed
        """
        reply = await self.run_script("end_prompts", run, incarnation)
        check_refusal(reply, run, incarnation)

    async def open_step(
        self,
        run: str,
        incarnation: int,
        index: int,
        spec: StepSpec,
        template: JobTemplate,
        template_id: str,
        template_body: bytes = b"",
        *,
        base: int = 0,
    ) -> StepState:
        """Asks for a step: `opened`, or how it stands when it was opened before.

        Args:
            base: incarnation in which the trainer went back last; what was opened before that did not happen.

        Raises:
            InvalidRequest: a negative index, or a policy that no living supervisor knows.
            QueueFull, StaleIncarnation, RunClosed
        """
        if index < 0:
            raise InvalidRequest(f"expected 0 or more, got {index}", field="step")
        check_policy(spec.policy, spec.policy_args)
        args: list[Arg] = [run, incarnation, index, template_id, template_body or encode(template), int(template.wall_s * 1000), base]
        fields: dict[str, Arg] = {
            **spec.fields(),
            "task": template.task,
            "cls": template.capability,
            "pri": template.priority,
            "mf": template.max_failed,
            "ml": template.max_lost,
            "res": template.expected_bytes,
            "recovery": template.recovery.value,
        }
        for field in fields.items():
            args += field
        with full_when_out_of_memory():
            reply = await self.run_script("open_step", *args)
        check_refusal(reply, run, incarnation)
        word = text(reply[0])
        if word == "policy":
            known = ", ".join(sorted(map(text, reply[1:])))
            raise InvalidRequest(
                f"expected a policy that a supervisor knows ({known}), got {spec.policy!r}: install its package where supervisors run",
                field="policy",
            )
        return "opened" if word == "opened" else "open" if word == "open" else "reached"

    async def account_groups(self, basis: Basis, accounts: Sequence[Account]) -> tuple[int, list[AccountWord]]:
        """Gives closed groups their verdicts, at most `ACCOUNTS_A_CALL`; returns the new revision and a word for each.

        Raises:
            Moved, RunClosed
        """
        from pipeline.supervisor.monitors import lengths_text

        args = _basis(basis)
        for account in accounts:
            args += [account.group, account.verdict.value, account.why, "" if account.step is None else account.step, account.want]
            args += [account.valid, _number(account.mean), _number(account.spread), account.sampled, account.total]
            args += [",".join(f"{fate}:{count}" for fate, count in account.tokens.items())]
            args += [",".join(_number(reward) for reward in account.rewards), account.first_version, account.last_version]
            args += [orjson.dumps(account.components), lengths_text(account.ended_lengths, account.cut_lengths), int(account.keeps_bodies)]
            args += [int(account.broken)]
        reply = await self.run_script("account_groups", *args)
        _moved(reply, basis)
        return whole(reply[1]), [_account_word(word) for word in reply[2:]]

    async def launch(self, basis: Basis, launch: Launch, *, window: int) -> Launched:
        """Takes prompts from the front of the reserve and puts all members of their groups into the queue.

        Raises:
            Moved, RunClosed
            QueueFull: Redis is at its memory bound.
        """
        with full_when_out_of_memory():
            reply = await self.run_script("launch", *_basis(basis), launch.step, launch.groups, launch.bound, window)
        _moved(reply, basis)
        if reply[0] == b"full":
            raise QueueFull(text(reply[1]), whole(reply[2]) / 1000)
        if reply[0] == b"template":
            raise InvalidRequest(f"template {text(reply[1])} of step {launch.step} is gone: open the step again", field="template")
        return Launched(whole(reply[1]), whole(reply[2]), text(reply[3]) == "1")

    async def note_shortage(self, basis: Basis, why: str) -> None:
        """Says what keeps the run from having enough groups at work from now on; empty = nothing.

        Raises:
            Moved, RunClosed
        """
        _moved(await self.run_script("note_shortage", *_basis(basis), why), basis)

    async def reach_step(self, basis: Basis, reach: Reach, figures: Mapping[str, float] | None = None) -> tuple[int, list[str]]:
        """Ends a step; returns the new revision and the groups that were given up, with at most `GIVEN_UP_A_CALL` jobs.

        Args:
            figures: of the monitors, for the record of the step.

        Raises:
            Moved, RunClosed
        """
        args = [
            *_basis(basis),
            reach.step,
            "short" if reach.short else "full",
            int(reach.spare),
            orjson.dumps(figures or {}),
            *reach.redundant,
        ]
        reply = await self.run_script("reach_step", *args)
        _moved(reply, basis)
        if reply[0] != b"reached":
            raise Moved
        return whole(reply[1]), [text(word) for word in reply[2:]]

    async def cancel_step(self, run: str, incarnation: int, index: int, reason: str) -> dict[str, int]:
        """Cancels a step: it ends short with what joined it, its groups in flight are given up, their prompts return whole.

        Returns how many groups were given up, and of their jobs how many were settled at once, marked as running, or had ended.

        Raises:
            InvalidRequest: there is no such step, or it has ended.
            StaleIncarnation, RunClosed
        """
        groups: list[str] = []
        more = True
        while more:
            reply = await self.run_script("cancel_step", run, incarnation, index, reason, CANCELLED_GROUPS_A_CALL)
            word = text(reply[0])
            if word == "unknown":
                raise InvalidRequest(f"run {run!r} has no step {index}", field="step")
            if word == "ended":
                raise InvalidRequest(
                    f"step {index} of run {run!r} has ended ({text(reply[1])}): nothing of it is left to cancel", field="step"
                )
            check_refusal(reply, run, incarnation)
            groups += [text(group) for group in reply[1:]]
            more = word == "more"
        counts = await Scripts(self.run_script.client, self.keys).cancel("group", groups, reason)
        return {"groups": len(groups), **counts}

    async def give_up_groups(
        self, basis: Basis, groups: Sequence[str], reason: str, *, spare: Spare, step: int | None = None
    ) -> tuple[int, list[str]]:
        """Gives up groups in flight, with at most `GIVEN_UP_A_CALL` jobs; their prompts return whole.

        Returns the new revision and the groups.

        Args:
            spare: which are left alone.
            step: the step that made them redundant.

        Raises:
            Moved, RunClosed
        """
        reply = await self.run_script("give_up_groups", *_basis(basis), reason, int(spare), "" if step is None else step, *groups)
        _moved(reply, basis)
        return whole(reply[1]), [text(word) for word in reply[2:]]

    async def end_late_groups(self, basis: Basis, groups: Sequence[str]) -> list[str]:
        """Ends groups that are past their deadline with what they have, with at most `GIVEN_UP_A_CALL` jobs; returns those that were.

        Raises:
            Moved: another incarnation has the run.
            RunClosed
        """
        reply = await self.run_script("end_late_groups", basis.run, basis.incarnation, *groups)
        _moved(reply, basis)
        return [text(word) for word in reply[1:]]

    async def announce_policies(self, names: Sequence[str]) -> None:
        """Says which informativeness policies this supervisor knows."""
        await self.run_script("announce_policies", *names)

    async def drop_closed(self, group: str, why: str) -> bool:
        """Takes a group that cannot be accounted out of the record of closed groups; False when it was not there any more."""
        reply = await self.run_script("drop_closed", group, why[:500])
        return reply[0] == 1


def _chunks(prompts: Sequence[tuple[str, bytes]]) -> list[list[tuple[str, bytes]]]:
    chunks: list[list[tuple[str, bytes]]] = []
    n_bytes = BYTES_A_CALL
    for prompt in prompts:
        if n_bytes >= BYTES_A_CALL or len(chunks[-1]) >= PROMPTS_A_CALL:
            chunks.append([])
            n_bytes = 0
        chunks[-1].append(prompt)
        n_bytes += len(prompt[1])
    return chunks


def _basis(basis: Basis) -> list[Arg]:
    return [basis.run, basis.incarnation, basis.revision]


def _moved(reply: Sequence[object], basis: Basis) -> None:
    if reply[0] == b"moved":
        raise Moved
    if reply[0] == b"closed":
        raise RunClosed(basis.run, text(reply[1]))


def _account_word(word: object) -> AccountWord:
    found: dict[str, AccountWord] = {"done": "done", "parked": "parked", "again": "again", "gone": "gone", "full": "full"}
    return found[text(word)]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.9g}"


__all__ = ["AccountWord", "Launched", "Moved", "StepScripts", "StepState"]

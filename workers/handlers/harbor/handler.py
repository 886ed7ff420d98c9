"""The task `harbor`: an instruction, a shell, and hidden tests that write the reward, as Harbor has them.

At the end of RUN everything of the agent's is ended, then `tests/` is brought into its sandbox and `test.sh` is run within its own time.
The reward file and the log are data of the trajectory, and EVAL reads the reward there. No reward file, or none that can be read, is no
reward of 0: EVAL raises, and after the second time asks the solution. If that scores, what the agent left broke the tests and the reward is
0; else it is the infrastructure's failure. Harbor has an error there, too.

`gold` and `empty` have no sandbox behind them: EVAL makes one, plays the solution or nothing, and runs the tests.
"""

from __future__ import annotations

import dataclasses
import gzip
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from pipeline.errors import InvalidRequest
from pipeline.messages import ChatMessage, Grade, JobSpec, Json, Trajectory
from workers.agent import AgentEnd
from workers.graders import GraderError
from workers.graders.harbor import HarborTask, Verified, reward_of, solve, verify
from workers.graders.harbor.reward import UnreadableReward
from workers.handlers.agent_handler import AgentHandler, Scene
from workers.handlers.base import EvalContext, RunContext, StageContext
from workers.handlers.graded_by import graded_by
from workers.handlers.harbor.layouts import LAYOUTS
from workers.handlers.submission import submitted
from workers.handlers.task_data import problem_in
from workers.handlers.task_options import Option, Text, TextsByName, Tools
from workers.sandbox.base import Sandbox
from workers.sandbox.spec import Isolation, Limits, SandboxHandle, SandboxSpec
from workers.tools import Tool, tools_called

SYSTEM = (
    "You work on a task in a Linux environment, with the tools that you are given. When you are done, tests that you do not see judge the "
    "state in which you leave it. You work on your own: nobody answers questions. Call `finish` when you are done."
)
DEFAULT_TOOLS = ("bash", "str_replace_editor", "think", "finish")
TOOLS = Option(
    name="tools",
    takes=Tools(usual=DEFAULT_TOOLS, more=("python",)),
    default=DEFAULT_TOOLS,
    about="what the model may call; `true` is the default",
)
IMAGES = Option[Mapping[str, str]](
    name="images",
    takes=TextsByName(),
    default={},
    without="*none*",
    about='`{"TASK": "IMAGE"}` for tasks that name no image, `*` for all of them; an empty image is the node\'s own programs',
)
REWARD_KEY = Option(
    name="reward_key", takes=Text(), default="", without="`reward`, or the only one", about="which part of a `reward.json` is the reward"
)
MARGIN_S = 60.0
"""For what is done beside running tests."""
KEPT_LOG_CHARS = 64 * 1024
"""Of the tests' output in the trajectory: its end. EVAL keeps that beside the grade."""
_PLAYED = "play"
MIB = 1024**2


class HarborHandler(AgentHandler):
    """Task folders of Harbor; `folders.py` has how they become rows."""

    name = "harbor"
    about = "A task folder of Harbor: an instruction, a shell, and tests that are brought in at the end and write the reward."
    layouts = LAYOUTS
    options = (IMAGES, REWARD_KEY, TOOLS)

    def sandbox_spec(self, spec: JobSpec) -> SandboxSpec:
        task = _task(spec)
        isolation = Isolation(spec.template.capability)
        image = task.image or _mapped(spec, task)
        if image and isolation is Isolation.NONE:
            raise InvalidRequest(f"image {image} needs walls: ask for the capability {Isolation.ISOLATED.value!r}", field="capability")
        limits = Limits()
        if task.memory_mb:
            limits = dataclasses.replace(limits, sandbox_memory_bytes=task.memory_mb * MIB)
        if task.storage_mb:
            limits = dataclasses.replace(limits, disk_bytes=task.storage_mb * MIB)
        return SandboxSpec(isolation=isolation, image=image, workdir=task.workdir, env=task.env, limits=limits)

    def messages(self, spec: JobSpec) -> Sequence[ChatMessage]:
        task = _task(spec)
        return (ChatMessage(role="system", content=SYSTEM), ChatMessage(role="user", content=task.instruction.strip()))

    @asynccontextmanager
    async def scene(self, context: RunContext, sandbox: Sandbox | None) -> AsyncIterator[Scene]:
        messages = self.messages(context.spec)
        if sandbox is not None and not _has_walls(context.spec):
            where = f"\n\nYour working directory, {sandbox.workdir}, stands for {_task(context.spec).workdir}."
            messages = (*messages[:-1], dataclasses.replace(messages[-1], content=messages[-1].content + where))
        yield Scene(messages=messages)

    def tools(self, spec: JobSpec, sandbox: Sandbox | None) -> Sequence[Tool]:
        return tools_called(TOOLS.of(spec), sandbox)

    async def collect(self, context: RunContext, sandbox: Sandbox, end: AgentEnd) -> Json:
        """Parked and taken over again: what the agent left running is ended, and meets no test."""
        task = _task(context.spec)
        context.progress(task.verifier_timeout_s + MARGIN_S)
        handle = await sandbox.park()
        async with await _again(context, handle) as quiet:
            verified = await verify(quiet, task, timeout_s=task.verifier_timeout_s, walls=_has_walls(context.spec))
        return {"verifier": _as_map(verified)}

    async def evaluate(self, context: EvalContext) -> Grade:
        extra, spec = context.trajectory.extra, context.spec
        verified = await self._played(context, str(extra[_PLAYED])) if _PLAYED in extra else _from_map(extra.get("verifier"))
        if verified.log:
            await context.attach("log", gzip.compress(verified.log.encode("utf-8", "replace"), 6))
        try:
            reward = reward_of(verified.reward_json, verified.reward_txt, key=REWARD_KEY.of(spec))
        except UnreadableReward as unreadable:
            how = "ran out of time" if verified.timed_out else f"ended with {verified.exit_code}"
            raise GraderError(f"{unreadable}; test.sh {how}: {verified.log[-300:].strip()}", grader="harbor") from unreadable
        details: Json = {
            "reason": "timed_out" if verified.timed_out else "tests_ran",
            "exit_code": verified.exit_code,
            "log": verified.log[-2_000:],
        }
        return Grade(
            reward=reward.value, components=dict(reward.parts), details=details, grader=graded_by(self.name), seconds=verified.took_s
        )

    def gold(self, spec: JobSpec) -> Trajectory | None:
        return submitted("", {_PLAYED: "solution"}) if _task(spec).solution else None

    def empty(self, spec: JobSpec) -> Trajectory:
        return submitted("", {_PLAYED: "nothing"})

    async def _played(self, context: EvalContext, what: str) -> Verified:
        task, walls = _task(context.spec), _has_walls(context.spec)
        room_s = max(1.0, context.spec.template.limits.eval_active_s - MARGIN_S)
        async with await context.provider().start(self.sandbox_spec(context.spec), context.owner) as sandbox:
            if what == "solution":
                await solve(sandbox, task, timeout_s=room_s, walls=walls)
            return await verify(sandbox, task, timeout_s=min(task.verifier_timeout_s, room_s), walls=walls)


async def _again(context: StageContext, handle: SandboxHandle) -> Sandbox:
    return await context.provider().attach(handle, context.owner)


def _as_map(verified: Verified) -> Json:
    return {**dataclasses.asdict(verified), "log": verified.log[-KEPT_LOG_CHARS:]}


def _from_map(found: object) -> Verified:
    if not isinstance(found, Mapping):
        raise GraderError("the trajectory holds nothing of the tests", grader="harbor")
    try:
        return Verified(**{field.name: found[field.name] for field in dataclasses.fields(Verified)})
    except KeyError as missing:
        raise GraderError(f"what the trajectory holds of the tests lacks {missing}", grader="harbor") from missing


def _mapped(spec: JobSpec, task: HarborTask) -> str:
    """The image of a task that names none.

    Raises:
        InvalidRequest: nobody says which.
    """
    images = IMAGES.of(spec)
    for name in (task.name, "*"):
        if name in images:
            return str(images[name])
    raise InvalidRequest(
        f"task {task.name} has a Dockerfile and names no image, and images are not built here: build it where Docker is, push it to a "
        f"registry, bring it to the nodes with `rollstream image pull`, and name it as docker_image in its task.toml, or in the option "
        f'images: {{"{task.name}": "registry/name:tag"}}',
        field="options.images",
    )


def _has_walls(spec: JobSpec) -> bool:
    return Isolation(spec.template.capability) is not Isolation.NONE


def _task(spec: JobSpec) -> HarborTask:
    return problem_in(spec.prompt.data, LAYOUTS)

"""The task `swe`: a repository with something wrong in it, tools to work there, and hidden tests that judge the patch.

INIT makes the repository ready and notes its base commit; RUN's end takes the patch out (`trajectory.extra["patch"]`), whatever ended the
loop; EVAL judges that patch, in a sandbox of its own. What the agent left running, installed or hid elsewhere is not there.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files

from pipeline.errors import InvalidRequest
from pipeline.failpoints import failpoint
from pipeline.messages import ChatMessage, Failure, Grade, JobSpec, Json, Trajectory
from workers.agent import AgentEnd
from workers.graders import GraderError
from workers.graders.swe import Patch, extract_patch, hide_future
from workers.graders.swe.evaluate import Evaluation, SweTests, evaluate
from workers.graders.swe.repository import prepare_repository
from workers.handlers.agent_handler import AgentHandler
from workers.handlers.base import Ended, Environment, EvalContext, RunContext, StageContext
from workers.handlers.graded_by import graded_by
from workers.handlers.submission import submitted
from workers.handlers.swe.layouts import LAYOUTS
from workers.handlers.swe.problem import SweProblem
from workers.handlers.task_data import problem_in
from workers.handlers.task_options import Number, Option, Truth
from workers.sandbox.base import Sandbox
from workers.sandbox.spec import Isolation, SandboxSpec
from workers.tools import Tool, tools_called

WORKDIR = "/workspace"
"""Where commands start, and what is `HOME`: never the repository, which what programs leave in `HOME` must not get into."""
EVAL_MARGIN_S = 45.0
"""Of EVAL's limit, for all that is not running tests."""
MIN_TEST_S = 5.0
SHOWN = 20
"""Names of tests and files in the details of a grade."""
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
SYSTEM = (
    "You repair software. You are given a repository and a description of what is wrong with it or missing. Find the cause, change the "
    "repository's source code so that what is described works, and check your change by running code and tests. Hidden tests will judge "
    "the state in which you leave the files of the repository; changes to tests and to the configuration of test runners do not count. "
    "You work on your own: nobody answers questions. When you are done, call `finish` and say in a sentence what you changed."
)


FRACTIONAL = Option(
    name="fractional",
    takes=Truth(),
    default=False,
    about="reward the share of `fail_to_pass` that passes, when nothing broke, in place of all or nothing",
)
PYTHON = Option(name="python", takes=Truth(), default=False, about="the model has the tool `python`, too")
HIDE_HISTORY = Option(
    name="hide_history", takes=Truth(), default=True, about="what is later than the base commit is taken out of the repository"
)
TEST_TIMEOUT_S = Option[float | None](
    name="test_timeout_s",
    takes=Number(above=0),
    default=None,
    without="*the row's*",
    about="seconds for the tests; never more than `eval_active_s` less 45",
)


class SweHandler(AgentHandler):
    """Repairs of repositories; `layouts.py` has how rows are written."""

    name = "swe"
    about = "A repository and what is wrong with it; hidden tests judge the patch in a fresh sandbox."
    layouts = LAYOUTS
    samples = (files("workers.handlers.swe.problems") / "repositories.jsonl",)
    options = (FRACTIONAL, PYTHON, HIDE_HISTORY, TEST_TIMEOUT_S)

    def sandbox_spec(self, spec: JobSpec) -> SandboxSpec:
        isolation = Isolation(spec.template.capability)
        image = _problem(spec).image
        if image and isolation is Isolation.NONE:
            raise InvalidRequest(f"image {image} needs walls: ask for the capability {Isolation.ISOLATED.value!r}", field="capability")
        return SandboxSpec(isolation=isolation, image=image, workdir=WORKDIR)

    # -- INIT and RUN -----------------------------------------------------------------------------------------------------------------

    async def init(self, context: StageContext) -> Environment:
        problem = await asyncio.to_thread(_problem, context.spec)
        sandbox = await context.provider().start(self.sandbox_spec(context.spec), context.owner)
        failpoint("sandbox_start")
        try:
            repository = await prepare_repository(sandbox, problem.source)
            if problem.source.also_removed:
                await sandbox.exec(["rm", "-rf", "--", *problem.source.also_removed], timeout_s=60)
            if HIDE_HISTORY.of(context.spec):
                await hide_future(sandbox, repository.folder, repository.base_commit)
            handle = await sandbox.park()
            failpoint("sandbox_park")
            return Environment(sandbox=handle.to_map(), data={"repository": repository.folder, "base_commit": repository.base_commit})
        except BaseException:
            await sandbox.kill()
            raise

    def messages(self, spec: JobSpec) -> Sequence[ChatMessage]:
        return (ChatMessage(role="system", content=SYSTEM), ChatMessage(role="user", content=_request(spec, _problem(spec))))

    def tools(self, spec: JobSpec, sandbox: Sandbox | None) -> Sequence[Tool]:
        names = ["bash", "str_replace_editor", "think", "finish"]
        return tools_called([*names[:1], "python", *names[1:]] if PYTHON.of(spec) else names, sandbox)

    async def collect(self, context: RunContext, sandbox: Sandbox, end: AgentEnd) -> Json:
        made = context.environment.data
        patch = await extract_patch(sandbox, str(made["repository"]), str(made["base_commit"]))
        return _collected(patch)

    # -- EVAL -------------------------------------------------------------------------------------------------------------------------

    async def evaluate(self, context: EvalContext) -> Grade:
        spec, extra = context.spec, context.trajectory.extra
        if "patch" not in extra:  # of a lost attempt that was salvaged: what the model did went with its sandbox, and is no empty patch
            raise InvalidRequest("no patch was taken out: the attempt was lost with its sandbox, and cannot be judged", field="patch")
        patch = patch_in(extra)
        if not patch.strip():
            why = str(extra.get("patch_trouble") or "empty_patch")
            return _graded(0.0, dict.fromkeys(("resolved", "f2p", "p2p", "tampering", "applied"), 0.0), {"reason": why, **_of_patch(extra)})
        problem = await asyncio.to_thread(_problem, spec)
        tests = _bounded(problem, spec)
        async with await context.provider().start(self.sandbox_spec(spec), context.owner) as sandbox:
            found = await evaluate(sandbox, problem.source, tests, patch)
        if found.log:
            await context.attach("log", await asyncio.to_thread(gzip.compress, found.log, 6))
        return graded(found, fractional=FRACTIONAL.of(spec), extra=extra)

    def eval_failed(self, context: StageContext, failure: Failure) -> Failure | Ended:
        """Tested code that breaks its sandbox twice is the model's doing, as in RUN."""
        return self.run_failed(context, failure)

    def gold(self, spec: JobSpec) -> Trajectory | None:
        gold = _problem(spec).gold
        return None if gold is None else submitted("", patch_as_extra(gold))

    def empty(self, spec: JobSpec) -> Trajectory:
        return submitted("", {"patch": ""})


def graded(found: Evaluation, *, fractional: bool, extra: Json) -> Grade:
    """The grade of an evaluation."""
    verdict = found.verdict
    fixed = _share(verdict.fixed, verdict.fail_to_pass) if verdict and found.trusted else 0.0
    kept = (_share(verdict.kept, verdict.pass_to_pass) if verdict.pass_to_pass else 1.0) if verdict and found.trusted else 0.0
    reward = 1.0 if found.resolved else 0.0
    if fractional and not found.resolved and found.reason in ("not_fixed", "broke_tests"):
        reward = fixed if kept == 1.0 else 0.0
    components = {
        "resolved": 1.0 if found.resolved else 0.0,
        "f2p": fixed,
        "p2p": kept,
        "tampering": 1.0 if found.tampering else 0.0,
        "applied": 1.0 if found.applied.applies else 0.0,
    }
    warnings = [
        *(f"{folder} is outside of the repository and may hold its later history" for folder in found.outside),
        *(f"{path} was dropped from the patch: a submodule, or a binary change without its data" for path in found.applied.dropped),
    ]
    details: Json = {
        "reason": found.reason,
        "detail": found.detail[:2000],
        "not_fixed": list(verdict.not_fixed[:SHOWN]) if verdict else [],
        "broken": list(verdict.broken[:SHOWN]) if verdict else [],
        "applied_by": found.applied.how,
        "dropped": list(found.applied.dropped[:SHOWN]),
        "put_back": list((*found.put_back.steering, *found.put_back.tests, *found.put_back.compiled)[:SHOWN]),
        "tampering": list(found.tampering[:SHOWN]),
        "exit_code": found.returncode,
        "timed_out": found.reason == "timed_out",
        "log_bytes": len(found.log),
        "notices": list(found.notices),
        **({"warnings": warnings[:SHOWN]} if warnings else {}),
        **_of_patch(extra),
    }
    return replace(_graded(reward, components, details), seconds=found.took_s)


def patch_as_extra(patch: bytes) -> dict[str, object]:
    """A patch as it travels: text where it is one, else base64, since files are in any encoding."""
    try:
        return {"patch": patch.decode()}
    except UnicodeDecodeError:
        return {"patch": "", "patch_base64": base64.b64encode(patch).decode()}


def patch_in(extra: Json) -> bytes:
    """The patch of a trajectory; empty when it has none.

    Raises:
        GraderError: it is not as we write it.
    """
    text, packed = extra.get("patch", ""), extra.get("patch_base64", "")
    if not isinstance(text, str) or not isinstance(packed, str):
        raise GraderError(f"expected a patch as text, found {type(text).__name__}", grader="swe")
    try:
        return base64.b64decode(packed, validate=True) if packed else text.encode()
    except ValueError as broken:
        raise GraderError(f"a patch that cannot be read: {broken}", grader="swe") from broken


def _collected(patch: Patch) -> Json:
    collected: dict[str, object] = {**patch_as_extra(patch.diff), "base_commit": patch.base_commit, "patch_paths": list(patch.paths)}
    if patch.left_out:
        collected["patch_left_out"] = list(patch.left_out)
    if patch.trouble:
        collected |= {"patch_trouble": patch.trouble, "patch_detail": patch.detail}
    return collected


def _of_patch(extra: Json) -> dict[str, object]:
    return {name: extra[name] for name in ("patch_trouble", "patch_detail", "patch_left_out") if name in extra}


def _problem(spec: JobSpec) -> SweProblem:
    return problem_in(spec.prompt.data, LAYOUTS)


def _request(spec: JobSpec, problem: SweProblem) -> str:
    if problem.source.files:
        walls = Isolation(spec.template.capability) is not Isolation.NONE
        where = f"in {WORKDIR}/{problem.source.folder}" if walls else f"in the folder `{problem.source.folder}` of your working directory"
    else:
        where = f"in {problem.source.folder}"
    return f"The repository is {where}.\n\n<issue>\n{problem.statement.strip()}\n</issue>\n"


def _bounded(problem: SweProblem, spec: JobSpec) -> SweTests:
    """Tests with their time within what EVAL has, so that running out of it is a verdict."""
    asked = TEST_TIMEOUT_S.of(spec) or problem.tests.timeout_s
    room = max(MIN_TEST_S, spec.template.limits.eval_active_s - EVAL_MARGIN_S)
    offline = problem.is_offline and Isolation(spec.template.capability) is not Isolation.ISOLATED_NETWORK
    env = {**(OFFLINE if offline else {}), **problem.tests.env}
    return replace(problem.tests, timeout_s=min(asked, room), env=env)


def _share(some: Sequence[str], every: Mapping[str, str]) -> float:
    return len(some) / len(every) if every else 0.0


def _graded(reward: float, components: dict[str, float], details: Json) -> Grade:
    return Grade(reward=reward, components=components, details=details, grader=graded_by("swe"))

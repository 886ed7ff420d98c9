"""One job in the foreground on a terminal: each turn as it ends, then the grade."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ops.job.as_map import record_as_map
from ops.tasks.attempt import Attempt, attempt, tokenizer_of
from ops.tasks.foreground import foreground
from ops.tasks.model_server import ask_server
from ops.tasks.rows import read_rows, spec_of
from ops.tasks.scripts import scripted_problems
from ops.trajectory.growing import GrowingTrajectory
from ops.visible_text import visible, visible_line
from pipeline.messages import JobTemplate
from workers.agent.trajectory import TurnDelta
from workers.llm.connect import connect_backend
from workers.llm.scripted import ScriptedServer
from workers.stages.sandbox_record import SANDBOX


async def show_attempt(
    console: Console | None,
    template: JobTemplate,
    *,
    data: Path | None,
    row: str,
    server: str = "",
    api_key: str = "",
    whole: bool = False,
    config: Path | None = None,
) -> Attempt:
    """Runs the job of a row and shows it.

    Args:
        console: None = nothing is shown.
        server: address of the model; empty = the scripted one, which is started here and knows the rows' references.

    Raises:
        InvalidRequest: no such task, no such option, no such row, or a row that is no problem.
        NotReachable
        Exception: what broke the job.
    """
    async with AsyncExitStack() as stack:
        stages = await stack.enter_async_context(foreground(config))
        handler = await stages.handler(template.task)
        handler.check_options(template.options)
        rows = read_rows(handler, data)
        spec = spec_of(template, rows.named(row))
        if server:
            await ask_server(server, template.model, api_key=api_key)
        else:
            scripted = ScriptedServer(problems=scripted_problems(handler, template, rows.rows))
            server = (await stack.enter_async_context(scripted)).url
        model = await stack.enter_async_context(connect_backend(server, model=template.model, api_key=api_key))
        if console is None:
            return await attempt(stages, spec, model, journal=_not_shown)
        console.print(Text.assemble((f"task {template.task}, row {visible_line(spec.prompt.id)}", "bold"), f"  at {server}"))
        growing = GrowingTrajectory(console, tokenizer_of(spec), whole=whole)
        done = await attempt(stages, spec, model, journal=growing.journal, ran=growing.end)
        show_grade(console, done)
        return done


def show_grade(console: Console, done: Attempt) -> None:
    """What it was given, and why."""
    grade = done.judged.grade
    parts = " · ".join(f"{name} {value:g}" for name, value in grade.components.items())
    console.print(
        Text.assemble((f"reward {grade.reward:g}", "bold"), f"  {parts}  by {visible_line(grade.grader)} in {grade.seconds:.2f} s")
    )
    if done.judged.broke:
        console.print(Text(f"the answer broke the grader: {visible(done.judged.broke)}", "bold"))
    for name, value in grade.details.items():
        if name != SANDBOX:
            console.print(Text(f"  {name}: {visible(str(value))}"), soft_wrap=True)
    for name, content in done.judged.attached.items():
        console.print(Text(f"  attached: {name}, {len(content):,} bytes"))


def attempt_as_map(done: Attempt) -> Mapping[str, Any]:
    """The same for a program."""
    return {
        "trajectory": record_as_map(done.trajectory),
        "grade": record_as_map(done.judged.grade),
        "attached": {name: len(content) for name, content in done.judged.attached.items()},
    }


async def _not_shown(delta: TurnDelta) -> None:
    return None

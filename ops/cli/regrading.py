"""What `rollstream job regrade` and `rollstream run regrade` share: where cases come from, the work, the words, the exit code."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from ops.cli.interrupted import quietly

if TYPE_CHECKING:
    from ops.regrade import Case, Regraded, Summary

Parallel = Annotated[int | None, typer.Option(min=1, max=1024, help="Judged at a time. Default: as many as an EVAL worker has slots.")]
Results = Annotated[Path | None, typer.Option(help="File of JSON lines. One that is there is gone on with.")]
Every = Annotated[bool, typer.Option("--all", help="A line for those that did not change or were skipped, too.")]
Json = Annotated[bool, typer.Option("--json", help="For a program.")]
Config = Annotated[Path | None, typer.Option(help="A rollstream.toml.")]

EXIT_SAME, EXIT_DIFFERENT, EXIT_NOTHING, EXIT_ERRORS = 0, 1, 2, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be judged again: jobs and saved records, or a run."""

    sources: Sequence[str] = ()
    run: str = ""
    since_h: float | None = None
    limit: int | None = None


def regrade_command(wanted: Wanted, *, parallel: int | None, results: Path | None, every: bool, as_json: bool, config: Path | None) -> None:
    """Judges again, says what changed, and ends with the exit code of it."""
    from ops.regrade import Change, Summary
    from ops.regrade.words import line_of, summary_lines
    from pipeline.logs import configure_logs

    configure_logs(as_json=False, level="error")
    began_s = time.monotonic()

    def say(one: Regraded) -> None:
        # those that are skipped are told once a reason, at the end: a run that was acknowledged has thousands
        if not as_json and (every or one.change not in (Change.SAME, Change.SKIPPED) or one.has_another_reason):
            typer.echo(line_of(one))

    kept = f"; {results} has what was found so far" if results else ""
    found = quietly(_regrade(wanted, parallel, results, config, say), said=f"stopped{kept}")
    summary = Summary.of(found)
    if as_json:
        typer.echo(orjson.dumps({"jobs": [one.as_map() for one in found], "summary": summary.as_map()}).decode())
    else:
        for line in summary_lines(summary, seconds=time.monotonic() - began_s):
            typer.echo(line)
    raise typer.Exit(exit_code_of(summary))


def exit_code_of(summary: Summary) -> int:
    """What the shell is told. An error weighs more than a difference: what could not be judged may differ, too."""
    if summary.counts["error"]:
        return EXIT_ERRORS
    if summary.judged == 0:
        return EXIT_NOTHING
    return EXIT_DIFFERENT if summary.is_different else EXIT_SAME


async def _regrade(
    wanted: Wanted, parallel: int | None, results: Path | None, config: Path | None, say: Callable[[Regraded], None]
) -> list[Regraded]:
    from ops.regrade import Regrader, ResultsFile, regrade
    from ops.tasks import SandboxesOnDemand
    from ops.tasks.progress import ProgressLine
    from pipeline.messages import Stage
    from pipeline.settings import QueueSettings
    from workers.handlers import Handlers
    from workers.settings import WorkerSettings

    found: list[Regraded] = []
    async with AsyncExitStack() as stack:
        names, read = await _cases(stack, wanted)
        file = stack.enter_context(ResultsFile(results))
        handlers = await stack.enter_async_context(Handlers(config=config))
        sandboxes = await stack.enter_async_context(SandboxesOnDemand(config))
        regrader = Regrader(handlers, sandboxes, max_attached_bytes=QueueSettings.load(config).max_body_bytes)
        progress = stack.enter_context(ProgressLine())

        def told(one: Regraded) -> None:
            found.append(one)
            if file.found.get(one.job) is not one:
                file.add(one)
            say(one)
            progress.say(f"{len(found)} of {len(names)} looked at")

        most = parallel or WorkerSettings(stage=Stage.EVAL).slot_count
        await regrade(names, read, regrader, parallel=most, told=told, done=file.done)
    return found


async def _cases(stack: AsyncExitStack, wanted: Wanted) -> tuple[Sequence[str], Callable[[str], Awaitable[Case]]]:
    """Names of what is wanted, and how the case of a name is read. Redis is asked only where a job or a run is named."""
    from ops.cli.connection import connected, keys_of
    from ops.job.story import NoSuchJob
    from ops.regrade import NOT_KEPT, NotGradable, case_of, jobs_of_run
    from ops.run_report import UnknownRun
    from ops.trajectory.source import NothingThere, files_of, record_of_job
    from pipeline.redis_client import ask, redis_now_ms
    from pipeline.trajectory_file import UnreadableTrajectory, read

    files: dict[str, Path] = {}
    names: list[str] = []
    for source in wanted.sources:
        paths = files_of(source)
        files |= {str(path): path for path in paths or ()}
        names += [source] if paths is None else map(str, paths)
    names = list(dict.fromkeys(names))

    async def of_file(name: str) -> Case:
        try:
            return case_of(read(files[name]))
        except UnreadableTrajectory as error:
            raise NotGradable(name, error.why) from error

    if not wanted.run and len(files) == len(names):
        return names, of_file
    settings, client = await stack.enter_async_context(connected())

    async def of_any(name: str) -> Case:
        if name in files:
            return await of_file(name)
        try:
            return case_of(await record_of_job(client, keys_of(settings, name), name))
        except (NoSuchJob, NothingThere, UnreadableTrajectory) as error:
            raise NotGradable(name, str(error) if isinstance(error, UnreadableTrajectory) else f"{error}. {NOT_KEPT}") from error

    if wanted.run:
        keys = keys_of(settings, wanted.run)
        if not await ask(client, "EXISTS", keys.run(wanted.run)):
            raise UnknownRun(wanted.run)
        since_ms = 0 if wanted.since_h is None else await redis_now_ms(client) - int(wanted.since_h * 3_600_000)
        names = await jobs_of_run(client, keys, wanted.run, since_ms=max(0, since_ms), limit=wanted.limit)
    return names, of_any

"""`rollstream trajectory check|show|save`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

if TYPE_CHECKING:
    from ops.trajectory.verdict import Check
    from pipeline.trajectory_file import TrajectoryRecord, UnreadableTrajectory
    from workers.llm.logprob_distance import Tolerance

app = typer.Typer(no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="For a program.")]
Sources = Annotated[list[str], typer.Argument(help="Files, folders of *.trajectory files, patterns, or ids of jobs.")]


@app.command("check")
def check(
    sources: Sources,
    server: Annotated[str, typer.Option(help="http://host:port or unix:/path of a server that recomputes the logprobs.")] = "",
    model: Annotated[str, typer.Option(help="Name of the model at that server; empty = its first.")] = "",
    version: Annotated[str, typer.Option(help="Label of the weights it holds, where it does not say.")] = "",
    precision: Annotated[str, typer.Option(help="Of the engine: bf16 or fp32. Gives the tolerances.")] = "bf16",
    mean_abs: Annotated[float | None, typer.Option(min=0, help="Most mean |d|, nats, in place of the precision's.")] = None,
    p999_abs: Annotated[float | None, typer.Option(min=0, help="Most 99.9th percentile of |d|.")] = None,
    signed_mean: Annotated[float | None, typer.Option(min=0, help="Most |mean of d|.")] = None,
    max_abs: Annotated[float | None, typer.Option(min=0, help="Most |d|.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Nothing about records that are fine.")] = False,
    as_json: Json = False,
) -> None:
    """Prove that records keep their promises: prompts extend what was before them, masks, logprobs, versions, checksums; with --server also
    that their logprobs are what its weights give. Ends with 1 when one is broken, 2 when there is nothing of that name."""
    from ops.trajectory.report import as_map, lines_of
    from workers.llm.logprob_distance import TOLERANCES

    if precision not in TOLERANCES:
        raise typer.BadParameter(f"must be {' or '.join(TOLERANCES)}", param_hint="--precision")
    given = {"mean_abs": mean_abs, "p999_abs": p999_abs, "signed_mean": signed_mean, "max_abs": max_abs}
    if not server and (model or version or any(value is not None for value in given.values())):
        raise typer.BadParameter("is needed for what says how to compare with it", param_hint="--server")
    tolerance = replace(TOLERANCES[precision], **{name: value for name, value in given.items() if value is not None})
    found = asyncio.run(_check(sources, server, model, version, tolerance))
    if as_json:
        typer.echo(orjson.dumps(as_map(found)).decode())
    else:
        for line in lines_of(found, quiet=quiet):
            typer.echo(line)
    raise typer.Exit(0 if found.is_fine else 1)


async def _check(sources: list[str], server: str, model: str, version: str, tolerance: Tolerance) -> Check:
    from contextlib import AsyncExitStack

    from ops.trajectory.verdict import Check, Server, Verdict, compare, judge
    from pipeline.trajectory_file import UnreadableTrajectory
    from workers.llm.teacher_forcing import TeacherForcing

    verdicts = []
    async with AsyncExitStack() as stack:
        forcing, asked = None, None
        if server:
            forcing = await stack.enter_async_context(TeacherForcing(server, model=model, version=version))
            caps = await forcing.caps()
            asked = Server(
                url=server,
                model=caps.model,
                server_version=caps.server_version,
                logprobs_mode=caps.logprobs_mode,
                version=await forcing.version(),
            )
        async for found in _records(sources):
            if isinstance(found, UnreadableTrajectory):
                verdicts.append(Verdict(name=found.name, unreadable=found.why))
                continue
            verdict = judge(found)
            verdicts.append(verdict if forcing is None else await compare(forcing, found, verdict))
        return Check(verdicts=verdicts, server=asked, tolerance=tolerance)


@app.command("show")
def show(
    source: Annotated[str, typer.Argument(help="A file, or the id of a job.")],
    turn: Annotated[int | None, typer.Option(min=0, help="Only this one; the first is 0.")] = None,
    tokenizer: Annotated[str, typer.Option(help="tokenizer.json or its folder; default: what the job named, else our own.")] = "",
    ids: Annotated[bool, typer.Option("--ids", help="Ids in place of text.")] = False,
    logprobs: Annotated[bool, typer.Option("--logprobs", help="Behind every sampled token, not only improbable ones.")] = False,
    whole: Annotated[bool, typer.Option("--whole", help="Context uncut.")] = False,
    as_json: Json = False,
) -> None:
    """A trajectory token by token: context dim, sampled text by probability. Without colour, sampled stretches stand between ⟦ and ⟧."""
    from ops.console import open_console
    from ops.trajectory.view import blobs_of, image_maps, parts_as_maps, render
    from ops.visible_text import visible_line
    from pipeline.trajectory_file import UnreadableTrajectory
    from workers.agent.invariants import BAD_ARRAYS, faults_of
    from workers.llm.tokenizer import load

    async def only() -> TrajectoryRecord:
        found = [record async for record in _records([source])]
        if len(found) != 1:
            raise typer.BadParameter(f"means {len(found)} records; show one", param_hint="SOURCE")
        if isinstance(found[0], UnreadableTrajectory):
            raise found[0]
        return found[0]

    try:
        record = asyncio.run(only())
    except UnreadableTrajectory as error:
        typer.echo(f"rollstream: {visible_line(str(error))}", err=True)
        raise typer.Exit(1) from error
    try:
        loaded = load(tokenizer or record.facts.get("tokenizer", ""))
    except (OSError, ValueError) as error:
        if tokenizer:
            raise typer.BadParameter(str(error), param_hint="--tokenizer") from error
        typer.echo(f"the record's tokenizer: {visible_line(str(error))}", err=True)
        loaded = None
    if broken := [fault for fault in faults_of(record.trajectory) if fault.what == BAD_ARRAYS]:
        typer.echo(f"rollstream: {visible_line(record.name)} cannot be shown: {broken[0]}", err=True)
        raise typer.Exit(1)
    if turn is not None and all(known.index != turn for known in record.trajectory.turns):
        raise typer.BadParameter(f"the record has {len(record.trajectory.turns)} turns, from 0 on", param_hint="--turn")
    if as_json:
        blobs = [{"segment": number, **blob} for number, blob in blobs_of(record.trajectory)]
        shown = {"name": record.name, "facts": dict(record.facts), "ended": record.ended, "blobs": blobs}
        shown["images"] = image_maps(record.trajectory)
        typer.echo(orjson.dumps({**shown, "parts": list(parts_as_maps(record, loaded, turn=turn))}).decode())
    else:
        render(open_console(), record, loaded, turn=turn, ids=ids, every_logprob=logprobs, whole=whole)


@app.command("save")
def save(
    job: Annotated[str, typer.Argument(help="Its id.")],
    file: Annotated[str, typer.Argument(help="Where to; a folder = <job>.trajectory in it. With a / at its end it is made.")],
) -> None:
    """Write what Redis has of a job's trajectory to a file that can be checked and shown alone; of a running job, its finished turns.
    Images that the model saw come into a folder beside it."""
    from ops.cli.connection import connected, keys_of
    from ops.trajectory.image_files import images_of, save_images
    from ops.trajectory.source import record_of_job
    from ops.trajectory.view import blob_lines, image_lines
    from ops.visible_text import visible_line
    from pipeline.blobs import BlobSettings, open_store
    from pipeline.trajectory_file import SUFFIX, write

    async def act() -> tuple[TrajectoryRecord, str]:
        async with connected() as (settings, client):
            return await record_of_job(client, keys_of(settings, job), job), settings.namespace

    record, namespace = asyncio.run(act())
    path = Path(file)
    try:
        if file.endswith("/"):  # also where no folder is yet; a path forgets the slash
            path.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            path /= f"{job.replace('/', '_')}{SUFFIX}"
        n_bytes = write(path, record)
        store = open_store(BlobSettings.load(), namespace) if images_of(record.trajectory) else None
        saved = [] if store is None else [*save_images(record.trajectory, job, path.with_suffix(".images"), store)]
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="FILE") from error
    typer.echo(f"{path}: {n_bytes:,} bytes, {len(record.trajectory.turns)} turns{'' if record.ended else ' so far'}")
    for line in blob_lines(record.trajectory):
        typer.echo(f"not in it, and gone with the ack: {line}")
    for image, why in saved:
        typer.echo(f"not saved, {image}: {visible_line(why)}" if why else f"{image}: {image.stat().st_size:,} bytes")
    for line in image_lines(record.trajectory) if store is None else ():
        typer.echo(f"not saved, as no folder for blobs is set here (ROLLSTREAM_BLOBS_DIR): {line}")


async def _records(sources: list[str]) -> AsyncIterator[TrajectoryRecord | UnreadableTrajectory]:
    """The records that some names mean; one that cannot be read is given as its error. Redis is asked only for names of jobs."""
    from ops.cli.connection import connected, keys_of
    from ops.trajectory.source import files_of, record_of_job
    from pipeline.trajectory_file import UnreadableTrajectory, read

    places = [(source, files_of(source)) for source in sources]
    jobs = [source for source, files in places if files is None]
    for _, files in places:
        for path in files or ():
            try:
                yield read(path)
            except UnreadableTrajectory as error:
                yield error
    if jobs:
        async with connected() as (settings, client):
            for job in jobs:
                try:
                    yield await record_of_job(client, keys_of(settings, job), job)
                except UnreadableTrajectory as error:
                    yield error

"""`rollstream image pull|build|list|check|prune|worker`."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

if TYPE_CHECKING:
    from ops.housekeeping import HousekeepingQueue
    from ops.images import Wanted
    from workers.sandbox.images import ImageState, ImageStore

app = typer.Typer(no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="For a program.")]
Config = Annotated[Path | None, typer.Option(help="A rollstream.toml.")]
Queued = Annotated[bool, typer.Option("--queue", help="Ask a `rollstream image worker` to do it, and end.")]
Share = Annotated[bool, typer.Option("--share", help="Also pack it into a SIF in the shared store, for other nodes.")]

GIB = 1024**3


@app.command("pull")
def pull(
    names: Annotated[list[str] | None, typer.Argument(help="docker://repo:tag, oci-archive:PATH, oci:PATH, sif:PATH, folder:PATH.")] = None,
    source: Annotated[str, typer.Option(help="Where the one image comes from, when its name does not say it.")] = "",
    tasks: Annotated[Path | None, typer.Option("--from", help="A task file, .jsonl or .parquet: all images that it names.")] = None,
    field: Annotated[str, typer.Option(help="Field of a task that names its image; default: image, docker_image or image_name.")] = "",
    parallel: Annotated[int | None, typer.Option(min=1, max=64, help="Images at once.")] = None,
    refresh: Annotated[bool, typer.Option("--refresh", help="Fetch also what is there: a tag may mean another image now.")] = False,
    extract: Annotated[bool, typer.Option("--extract/--no-extract", help="Also make SIF images ready on this node.")] = True,
    share: Share = False,
    queue: Queued = False,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Bring images. What is there is not fetched again: after an interruption the same command does the rest. Ends with 1 if one failed."""
    from ops.images import Wanted, images_of_tasks, pull_many

    if source and (tasks is not None or len(names or ()) != 1):
        raise typer.BadParameter("is for one name", param_hint="--source")
    wanted = [Wanted(name=name, source=source) for name in names or ()]
    if tasks is not None:
        found = images_of_tasks(tasks, field)
        wanted += [Wanted(name=name) for name in found.names]
        _say(f"{tasks}: {len(found.names):,} images in {found.rows:,} tasks" + (f", {found.without:,} without" if found.without else ""))
    if not wanted:
        raise typer.BadParameter("name an image, or a task file with --from", param_hint="NAMES")
    if queue:
        jobs = _enqueue(config, "pull", wanted, refresh=refresh, extract=extract, share=share)
        return _print_jobs(jobs, as_json)
    with _store(config, parallel=parallel) as (store, stop):
        report = pull_many(
            store,
            wanted,
            parallel=store.settings.parallel,
            stop=stop,
            refresh=refresh,
            extract=extract,
            share=share,
            progress=lambda name, words: _say(f"{name}: {words}"),
        )
    if as_json:
        typer.echo(orjson.dumps(report.as_map()).decode())
    else:
        counts = f"{len(report.pulled)} brought, {len(report.present)} there before, {len(report.failed)} failed"
        typer.echo(counts + (f", {len(report.interrupted)} interrupted" if report.interrupted else ""))
        for name, why in report.failed.items():
            typer.echo(f"  {name}: {why}")
    raise typer.Exit(130 if report.interrupted else 0 if report.is_complete else 1)


@app.command("build")
def build(
    definition: Annotated[Path, typer.Argument(help="A TOML file: base, files to copy, scripts.")],
    name: Annotated[str, typer.Option(help="What tasks shall call it; default: as the definition says.")] = "",
    backend: Annotated[str | None, typer.Option(help="Sandboxes that its scripts run in; default: those of this node.")] = None,
    refresh: Annotated[bool, typer.Option("--refresh", help="Make all levels again.")] = False,
    share: Share = False,
    queue: Queued = False,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Build an image from a base, files and scripts, from the most exact level that is there."""
    if queue:
        with _housekeeping(config) as housekeeping:
            path = str(definition.absolute())
            return _print_jobs([housekeeping.enqueue_image("build", definition=path, name=name, refresh=refresh, share=share)], as_json)
    from ops.images.building import build_image
    from workers.sandbox.service.settings import SandboxSettings

    settings = SandboxSettings.load(config, backend=backend)
    with _store(config) as (store, _), _images_that_fail():
        built = asyncio.run(build_image(store, definition, name=name, settings=settings, refresh=refresh, share=share, say=_say))
    if as_json:
        typer.echo(orjson.dumps({"name": built.record.name, "digest": built.record.digest, "began_from": built.began_from}).decode())
    else:
        typer.echo(f"{built.record.name}: {built.record.digest[:12]}, from {built.began_from}")


@app.command("list")
def list_images(as_json: Json = False, config: Config = None) -> None:
    """What names mean, and what of it is on this node."""
    with _store(config) as (store, _):
        states, problems = store.states()
        budget = store.budget
        used = sum(image.record.size_bytes for image in store.node.images())
    for problem in problems:
        _say(f"cannot be read: {problem}")
    if as_json:
        typer.echo(
            orjson.dumps({"images": [_as_map(state) for state in states], "node_bytes": used, "budget_bytes": budget.max_bytes}).decode()
        )
        return
    from rich.table import Table

    from ops.console import open_console

    table = Table(box=None, pad_edge=False)
    for column in ("image", "digest", "kind", "GiB", "node", "shared", "source"):
        table.add_column(column, justify="right" if column == "GiB" else "left", overflow="fold")
    for state in states:
        record = state.record
        size = state.tree.size_bytes if state.tree else record.size_bytes
        here = ("in use" if state.is_leased else "ready") if state.tree else "-"
        table.add_row(
            record.name, record.digest[:12], record.kind, f"{size / GIB:.2f}", here, "SIF" if state.has_sif else "-", record.source
        )
    open_console().print(table)
    typer.echo(f"this node: {used / GIB:.2f} GiB of {budget.max_bytes / GIB:g}; images go above {budget.high_bytes / GIB:g}")


@app.command("check")
def check(
    names: Annotated[list[str] | None, typer.Argument(help="Images; default: all.")] = None, as_json: Json = False, config: Config = None
) -> None:
    """Read every byte of images and hold them against their digests. Ends with 1 when one is damaged."""
    with _store(config) as (store, _):
        found: dict[str, list[str]] = {}
        for name, wrong in store.damages(frozenset(names or ())):
            found[name] = wrong
            if not as_json:
                typer.echo(
                    f"{name}: " + ("; ".join(wrong[:5]) + (f" and {len(wrong) - 5} more" if len(wrong) > 5 else "") if wrong else "whole")
                )
    if as_json:
        typer.echo(orjson.dumps(found).decode())
    raise typer.Exit(1 if any(found.values()) else 0)


@app.command("prune")
def prune(
    to_gib: Annotated[
        float | None, typer.Option(min=0, help="Remove unused images down to this; default: only what the budget says.")
    ] = None,
    damaged: Annotated[bool, typer.Option("--damaged", help="Also remove extracted images that check finds damaged.")] = False,
    forget: Annotated[list[str] | None, typer.Option(help="Take a name away first; its files go when nothing else means them.")] = None,
    queue: Queued = False,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Remove what dead processes left half made, and images that nobody uses, the longest unused first."""
    if queue:
        with _housekeeping(config) as housekeeping:
            return _print_jobs([housekeeping.enqueue_image("prune", to_gib=to_gib)], as_json)
    with _store(config) as (store, _):
        forgotten = {name: store.shared.forget(name) for name in forget or ()}
        removed = store.remove_damaged() if damaged else []
        done = store.prune(target_bytes=None if to_gib is None else int(to_gib * GIB))
    result = {
        "removed": [*removed, *done.removed],
        "freed_bytes": done.freed_bytes,
        "size_bytes": done.size_bytes,
        "in_use": list(done.leased),
        "swept": done.swept,
        "forgotten": [name for name, was_there in forgotten.items() if was_there],
    }
    if as_json:
        typer.echo(orjson.dumps(result).decode())
    else:
        words = f"{len(removed) + len(done.removed)} images removed, {done.swept} leftovers; {done.size_bytes / GIB:.2f} GiB are left"
        typer.echo(words + (f"; {len(done.leased)} are in use" if done.leased else ""))
    unknown = [name for name, was_there in forgotten.items() if not was_there]
    if unknown:
        _say(f"not known: {', '.join(unknown)}")
        raise typer.Exit(1)


@app.command("worker")
def worker(burst: Annotated[bool, typer.Option("--burst", help="End when nothing is left to do.")] = False, config: Config = None) -> None:
    """Do what `--queue` asked for, until SIGTERM: pulls, builds and prunes on this machine."""
    with _housekeeping(config) as housekeeping:
        housekeeping.work(housekeeping.images, burst=burst)


# -- parts -----------------------------------------------------------------------------------------------------------------------------


@contextmanager
def _store(config: Path | None, **arguments: object) -> Iterator[tuple[ImageStore, threading.Event]]:
    from workers.sandbox.images import ImageSettings, ImageStore

    stop = threading.Event()
    with _images_that_fail():
        yield ImageStore.here(ImageSettings.load(config, **arguments), stop=stop), stop


@contextmanager
def _images_that_fail() -> Iterator[None]:
    """An image that could not be had is a command that did not work, not one that was used wrongly."""
    from workers.sandbox.errors import ImageError

    try:
        yield
    except ImageError as error:
        _say(f"rollstream: {error}")
        raise typer.Exit(1) from error


@contextmanager
def _housekeeping(config: Path | None) -> Iterator[HousekeepingQueue]:
    from ops.cli.connection import queue_settings
    from ops.housekeeping import HousekeepingQueue, HousekeepingSettings

    with queue_settings() as queue, HousekeepingQueue(HousekeepingSettings.load(config), queue) as housekeeping:
        yield housekeeping


def _enqueue(config: Path | None, what: str, wanted: list[Wanted], **arguments: Any) -> list[str]:
    """A job an image: several workers share them, and one that fails is seen by itself."""
    from workers.sandbox.images.names import source_of

    unique = {one.name: one for one in wanted}.values()
    for one in unique:
        source_of(one.source or one.name)  # said now, to whoever asks, and not to a worker's log
    with _housekeeping(config) as housekeeping:
        return [housekeeping.enqueue_image(what, images=[{"name": one.name, "source": one.source}], **arguments) for one in unique]


def _print_jobs(jobs: list[str], as_json: bool) -> None:
    typer.echo(orjson.dumps({"jobs": jobs}).decode() if as_json else f"{len(jobs)} queued; rollstream image worker does them")


def _as_map(state: ImageState) -> dict[str, object]:
    record, tree = state.record, state.tree
    return {
        "name": record.name,
        "digest": record.digest,
        "kind": record.kind,
        "source": record.source,
        "size_bytes": tree.size_bytes if tree else record.size_bytes,
        "entries": tree.entries if tree else None,
        "on_node": tree is not None,
        "in_use": state.is_leased,
        "used_s": state.used_s,
        "has_sif": state.has_sif,
        "by": record.by,
        "at_s": record.at_s,
    }


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)

"""`rollstream plan`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

if TYPE_CHECKING:
    from ops.plan.measured import Measured

Number = float | None
Count = int | None


def plan(
    groups: Annotated[Count, typer.Option(help="Groups that a step trains on.")] = None,
    group_size: Annotated[Count, typer.Option(help="Jobs of a group.")] = None,
    step_s: Annotated[Number, typer.Option(help="Seconds from a step to the next.")] = None,
    filtered: Annotated[Number, typer.Option(help="Share of closed groups that is filtered out.")] = None,
    wasted: Annotated[Number, typer.Option(help="Share of jobs that are cancelled, expire or break.")] = None,
    turns: Annotated[Number, typer.Option(help="Model calls of a job.")] = None,
    prompt_tokens: Annotated[Number, typer.Option(help="Before the first turn.")] = None,
    sampled_tokens: Annotated[Number, typer.Option(help="Of a turn.")] = None,
    observation_tokens: Annotated[Number, typer.Option(help="Of a turn's tool answers.")] = None,
    init_s: Annotated[Number, typer.Option(help="Seconds of INIT.")] = None,
    model_s: Annotated[Number, typer.Option(help="Seconds of a model call.")] = None,
    tool_s: Annotated[Number, typer.Option(help="Seconds between two model calls.")] = None,
    eval_s: Annotated[Number, typer.Option(help="Seconds of EVAL.")] = None,
    server_calls: Annotated[Count, typer.Option(help="Calls that a model server has at once.")] = None,
    unread_steps: Annotated[Number, typer.Option(help="Steps whose results are kept at once.")] = None,
    reserve: Annotated[Count, typer.Option(help="Prompts that wait to be drawn.")] = None,
    head_room: Annotated[Number, typer.Option(help="Share that is left free.")] = None,
    cores: Annotated[Count, typer.Option(help="Of a node; default: as many as here.")] = None,
    from_run: Annotated[str, typer.Option("--from-run", help="Take from this run what is not said here.")] = "",
    export_dir: Annotated[Path | None, typer.Option("--export", help="An export of that run, for what was acknowledged since.")] = None,
    config: Annotated[Path | None, typer.Option(help="A rollstream.toml.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For a program.")] = False,
) -> None:
    """How much a goal needs: slots, nodes, model servers, Redis. Option > the run of --from-run > environment > table [plan] > default."""
    from ops.node.settings import NodeSettings
    from ops.plan import PlanSettings, as_map, as_text, make_plan
    from pipeline.errors import InvalidRequest
    from pipeline.messages import Stage
    from pipeline.settings import QueueSettings
    from pipeline.usable_cores import usable_cores

    said = {name: value for name, value in locals().items() if name in PlanSettings.model_fields and value is not None}
    if export_dir is not None and not from_run:
        raise InvalidRequest("an export is of a run: name it with --from-run", field="--export")
    measured = asyncio.run(_measure(from_run, export_dir)) if from_run else None
    asked = PlanSettings.load(config, **{**(measured.values if measured else {}), **said})
    node = NodeSettings.load(config)
    sizes = {stage: node.size(stage, asked.cores or usable_cores()).total for stage in Stage}
    if empty := [stage.value for stage in Stage if sizes[stage] == 0]:
        raise InvalidRequest(f"[node] gives a node no slots of {', '.join(empty)}: say a size of each stage", field=f"node.{empty[0]}")
    lease_s = QueueSettings.load(config).lease_s
    found = make_plan(asked, sizes, measured.trajectory_bytes if measured else None, lease_s=lease_s)
    if as_json:
        typer.echo(orjson.dumps(as_map(found, measured)).decode())
    else:
        typer.echo("\n".join(as_text(found, measured)))


async def _measure(run: str, export: Path | None) -> Measured:
    from ops.cli.connection import connected, keys_of
    from ops.plan import measured_in_run

    async with connected() as (settings, client):
        return await measured_in_run(client, settings, keys_of(settings, run), run, export)

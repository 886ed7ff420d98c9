"""`rollstream doctor`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import orjson
import typer


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="For a program.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Also what is as it should be.")] = False,
    config: Annotated[Path | None, typer.Option(help="A rollstream.toml.")] = None,
) -> None:
    """Examine this machine, the settings and the Redis in use: each finding with what to do about it. Changes nothing. Exit code: 0
    nothing is wrong, 1 something will hurt, 2 something does not work, 3 Redis gives no answer."""
    import os
    from dataclasses import asdict

    from ops.doctor.examine import examine, exit_code
    from ops.doctor.finding import Grade
    from ops.status.verdict import one_line
    from pipeline.settings import QueueSettings

    named = os.environ.get("ROLLSTREAM_WORKER_MODEL_KEY_FILE")
    findings = asyncio.run(examine(QueueSettings.load(config), config=config, key_file=Path(named) if named else None))
    if as_json:
        typer.echo(orjson.dumps([asdict(finding) for finding in findings]).decode())
    else:
        for finding in findings:
            if everything or finding.grade is not Grade.OK:
                typer.echo(f"{finding.grade.value:5s} {finding.check}: {one_line(finding.what)}")
                if finding.do:
                    typer.echo(f"      -> {one_line(finding.do)}")
        counts = {grade: sum(finding.grade is grade for finding in findings) for grade in Grade}
        typer.echo(", ".join(f"{count} {grade.value}" for grade, count in counts.items()))
    raise typer.Exit(exit_code(findings))

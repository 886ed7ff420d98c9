"""The job `export`: results of the runs that `export_runs` names, into `export_dir`, each into a folder of its own."""

from __future__ import annotations

from fnmatch import fnmatchcase

import structlog

from ops.export import ExportError, ExportWishes, export_run
from ops.housekeeping.places import Found, Workplace
from pipeline.keys import run_ids
from pipeline.redis_client import ask

log = structlog.get_logger(__name__)


async def export(place: Workplace) -> Found:
    """Exports what is new; one run that cannot be exported keeps no other from it."""
    settings = place.housekeeping
    if settings.export_dir is None or not settings.export_runs:
        return {"runs": {}, "why": "export_dir or export_runs of [housekeeping] is not set"}
    runs: dict[str, object] = {}
    failed: dict[str, str] = {}
    async with place.client() as client:
        for keys in place.shards():
            for run in run_ids(await ask(client, "ZRANGE", keys.runs, 0, -1)):  # a folder gets its name
                if not any(fnmatchcase(run, pattern) for pattern in settings.export_runs):
                    continue
                if place.dry_run:
                    runs[run] = {"unread": int(await ask(client, "XLEN", keys.results(run)))}
                    continue
                try:
                    wishes = ExportWishes(format=settings.export_format)
                    runs[run] = (await export_run(client, keys, run, settings.export_dir / run, wishes)).as_map()
                except (ExportError, OSError) as error:
                    log.error("run_not_exported", run=run, error=str(error))
                    failed[run] = str(error)
    return {"runs": runs, "failed": failed}


__all__ = ["export"]

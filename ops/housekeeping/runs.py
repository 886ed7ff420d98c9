"""The job `runs`: forgets runs whose trainer never came back, a while after a janitor closed them."""

from __future__ import annotations

from functools import partial

from ops.housekeeping.places import Found, Workplace, leaving_room
from pipeline.keys import run_ids
from pipeline.redis_client import ask


async def forget(place: Workplace) -> Found:
    """Forgets each run that was closed as abandoned `gone_run_keep_s` ago; nothing when that is 0."""
    keep_s = place.housekeeping.gone_run_keep_s
    forgotten: list[Found] = []
    if keep_s:
        async with place.client() as client:
            for keys in place.shards():
                scripts = place.scripts(client, keys)
                for name in run_ids(await ask(client, "ZRANGE", keys.runs, 0, -1)):
                    gone = await leaving_room(partial(scripts.forget_run, name, closed_ms=int(keep_s * 1000)))
                    if gone is not None:
                        forgotten.append({"run": gone.run, "unread": gone.records, "closed_s": round(gone.closed_s)})
    return {"removed": len(forgotten), "runs": forgotten}


__all__ = ["forget"]

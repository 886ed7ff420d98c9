"""The job `streams`: trims the streams that tell, by age, and never past what one of their groups has not read (`trim_stream.lua`)."""

from __future__ import annotations

from functools import partial

from ops.housekeeping.places import Found, Workplace, leaving_room


async def trim(place: Workplace) -> Found:
    """Trims `s:reward`, `s:cancel` and `s:dead` of each shard."""
    settings = place.housekeeping
    kept_s = {"s:reward": settings.events_keep_s, "s:cancel": settings.events_keep_s, "s:dead": settings.dead_letters_keep_s}
    trimmed = dict.fromkeys(kept_s, 0)
    async with place.client() as client:
        for keys in place.shards():
            scripts = place.scripts(client, keys)
            for stream, keep_s in kept_s.items():
                more = True
                while more:
                    went, more = await leaving_room(partial(scripts.trim_stream, stream, older_ms=int(keep_s * 1000)))
                    trimmed[stream] += went
                    more = more and not place.dry_run  # a dry run would see the same entries again
    return {"removed": sum(trimmed.values()), "streams": trimmed}


__all__ = ["trim"]

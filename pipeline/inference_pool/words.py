"""The state of a pool in sentences, for people. Nothing decides on them."""

from __future__ import annotations

from pipeline.causes import Cause, Reason
from pipeline.inference_pool.labels import label_in_record, unproven_label
from pipeline.inference_pool.records import Pause, PoolState, ServerState


def pause_words(state: PoolState) -> list[str]:
    """Who paused the run and since when, also when that lapsed; empty when nobody did."""
    if state.pause is None:
        return []
    if not state.is_paused:
        return [_lapsed(state, state.pause)]
    return [f"{_paused(state, state.pause)}: no model call begins until {state.pause.holder} ends that"]


def why_waiting(state: PoolState) -> list[Reason]:
    """Why calls of a run cannot begin; empty when some can."""
    add = f"rollstream llm add --run {state.run} URL"
    if state.pause is not None and state.is_paused:
        do = f"no model call begins until {state.pause.holder} ends that (rollstream llm list --run {state.run})"
        return [Reason(Cause.SERVERS_PAUSED, _paused(state, state.pause), do)]
    if not state.servers:
        return [Reason(Cause.NO_SERVER, "No model server is attached to the run", f"{add} (a task that calls none needs none)")]
    usable = [server for server in state.servers if server.is_usable]
    if usable and all(server.engine_paused for server in usable):
        what = f"The engine of each server is paused, by nobody that the pool knows of ({', '.join(server.url for server in usable)})"
        return [Reason(Cause.SERVERS_PAUSED, what, "resume it (POST /resume), or let the next weight_update do it")]
    if usable:
        return []
    what = f"No synced server ({'; '.join(f'{server.url} {standing(server, state)}' for server in state.servers)})"
    if any(server.standing == "unsynced" for server in state.servers):
        why = Reason(Cause.SERVER_UNSYNCED, what, "run.weight_update loads and labels them")
    else:
        why = Reason(Cause.SERVER_DOWN, what, f"start one again, or add another ({add})")
    return [why, *(Reason(Cause.SERVER_UNSYNCED, word) for word in pause_words(state))]


def standing(server: ServerState, state: PoolState) -> str:
    """How one server stands, and why."""
    drains = ", draining" if server.draining and server.standing != "draining" else ""
    match server.standing:
        case "down":
            return f"is down since {_ago(server.since_ms, state)}: {server.why or 'no answer'}{drains}"
        case "unsynced":
            return f"is unsynced since {_ago(server.since_ms, state)}: {_unsynced(server, state)}{drains}"
        case "draining":
            return f"is draining: it keeps {server.jobs} jobs and gets no new ones"
        case _:
            if server.engine_paused and not state.is_paused:
                return "is up, but its engine is paused, by nobody that the pool knows of"
            return "is up" if server.looked_ms else "is up, as far as is known: nobody has looked yet"


def _unsynced(server: ServerState, state: PoolState) -> str:
    run, wanted = state.run, label_in_record(state.allowed.highest, state.run)
    if wanted == "none":
        return "the run has had no weight update yet"
    if not server.version:
        return f"it reports no label, and no update of this run reached it since it started; the run is at {wanted}"
    if server.version == unproven_label(run):
        return f"it started anew as an update labelled it, so what it holds is not known; the run is at {wanted}"
    if server.version.startswith(f"{run}/updating-"):
        return f"an update began and did not end there; the run is at {wanted}"
    return f"it holds {label_in_record(server.version, run)!r}, the run is at {wanted}"


def _paused(state: PoolState, pause: Pause) -> str:
    to = f" to {label_in_record(pause.to, state.run)}" if pause.to else ""
    what = {"away": "Its engines are away", "leaving": "Its engines are about to be away"}.get(pause.why, f"Its weights are updated{to}")
    return f"{what}, since {_ago(pause.since_ms, state)}"


def _lapsed(state: PoolState, pause: Pause) -> str:
    return f"The update by {pause.holder} lapsed {_ago(pause.until_ms, state)} ago: the next one mends the servers that it left"


def _ago(at_ms: int, state: PoolState) -> str:
    seconds = max(0, state.now_ms - at_ms) / 1000
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"

"""The state of a pool in sentences, for people. Nothing decides on them."""

from __future__ import annotations

from pipeline.inference_pool.labels import label_in_record, unproven_label
from pipeline.inference_pool.records import Pause, PoolState, ServerState


def pause_words(state: PoolState) -> list[str]:
    """Who paused the run and since when, also when that lapsed; empty when nobody did."""
    if state.pause is None:
        return []
    return [_paused(state, state.pause) if state.is_paused else _lapsed(state, state.pause)]


def why_waiting(state: PoolState) -> list[str]:
    """Why calls of a run cannot begin; empty when some can."""
    if state.is_paused:
        return pause_words(state)
    if not state.servers:
        return [f"No model server is attached to the run: rollstream llm add --run {state.run} URL (a task that calls none needs none)"]
    if any(server.is_usable for server in state.servers):
        return []
    said = "; ".join(f"{server.url} {standing(server, state)}" for server in state.servers)
    return [f"No synced server: {said}", *pause_words(state)]


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
    return f"{what}, since {_ago(pause.since_ms, state)}: no model call begins until {pause.holder} ends that"


def _lapsed(state: PoolState, pause: Pause) -> str:
    return f"The update by {pause.holder} lapsed {_ago(pause.until_ms, state)} ago: the next one mends the servers that it left"


def _ago(at_ms: int, state: PoolState) -> str:
    seconds = max(0, state.now_ms - at_ms) / 1000
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"

"""The inference pool of a run, for people and for programs."""

from __future__ import annotations

from pipeline.counts import counted
from pipeline.inference_pool import PoolState, ServerState, label_in_record, pause_words, standing
from pipeline.messages import Json


def as_text(state: PoolState) -> str:
    """Two lines a server: how it stands, what it has to do; first what holds for the run."""
    lines = pause_words(state)
    wanted = "any" if state.allowed.any else label_in_record(state.allowed.highest, state.run)
    lines.append(
        f"weights: {wanted} · calls that went on at another server: {state.rerouted}, {state.lost_tokens:,} tokens of their prefixes lost "
        f"· calls aborted for dead processes: {state.aborted}"
    )
    for server in state.servers:
        lines.append(f"{server.url} {standing(server, state)}")
        lines.append(f"    {_work(server)} · {_who(server, state)}")
    return "\n".join(lines)


def as_map(state: PoolState) -> Json:
    """The same as values. Times are seconds before now; None = never."""
    pause = state.pause
    return {
        "run": state.run,
        "allowed": "" if state.allowed.any else state.allowed.highest,
        "paused": None
        if pause is None
        else {
            "by": pause.holder,
            "why": pause.why,
            "mode": pause.mode,
            "to": pause.to,
            "since_s": _before_s(pause.since_ms, state),
            "lapsed": not state.is_paused,
        },
        "rerouted": state.rerouted,
        "lost_tokens": state.lost_tokens,
        "aborted": state.aborted,
        "servers": [_server_map(server, state) for server in state.servers],
    }


def _server_map(server: ServerState, state: PoolState) -> Json:
    return {
        "url": server.url,
        "standing": server.standing,
        "why": standing(server, state),
        "draining": server.draining,
        "since_s": _before_s(server.since_ms, state),
        "version": server.version,
        "model": server.model,
        "kind": server.kind,
        "control": server.control,
        "shared": server.shared,
        "jobs": server.jobs,
        "calls": server.calls,
        "to_abort": server.to_abort,
        "engine_paused": server.engine_paused,
        "running": server.running,
        "waiting": server.waiting,
        "kv_used": None if server.kv_used < 0 else server.kv_used,
        "looked_s": _before_s(server.looked_ms, state),
        "seen_s": _before_s(server.seen_ms, state),
    }


def _work(server: ServerState) -> str:
    words = [counted(server.jobs, "job"), f"{counted(server.calls, 'call')} in flight"]
    if server.to_abort:
        words.append(f"{server.to_abort} calls to be aborted")
    if server.seen_ms:
        kv = "" if server.kv_used < 0 else f", KV cache {server.kv_used:.0%}"
        words.append(f"engine: {server.running} running, {server.waiting} waiting{kv}")
    return " · ".join(words)


def _who(server: ServerState, state: PoolState) -> str:
    looked = _before_s(server.looked_ms, state)
    words = [
        f"model {server.model or '-'}",
        f"version {label_in_record(server.version, state.run) or '-'}",
        "never looked at" if looked is None else f"looked at {looked:.1f} s ago",
    ]
    if server.control == "trainer":
        words.append("controlled by the trainer")
    if server.shared:
        words.append("shared")
    return " · ".join(words)


def _before_s(at_ms: int, state: PoolState) -> float | None:
    return max(0, state.now_ms - at_ms) / 1000 if at_ms else None

"""What people are told of a run's servers: each state by name, with why and since when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ops.llm_view import as_map, as_text
from pipeline.causes import Cause
from pipeline.inference_pool import AllowedLabels, Pause, PoolState, ServerState, standing, why_waiting

NOW_MS = 1_000_000
LABEL = "run1/1.4"
UP = ServerState(
    url="http://a",
    model="",
    control="ops",
    kind="vllm",
    shared=False,
    standing="up",
    draining=False,
    version=LABEL,
    since_ms=NOW_MS - 40_000,
    why="",
    engine_paused=False,
    started="1",
    running=3,
    waiting=1,
    kv_used=0.25,
    looked_ms=NOW_MS - 500,
    seen_ms=NOW_MS - 500,
    jobs=5,
    calls=4,
    to_abort=0,
)
PAUSE = Pause(holder="t1", why="update", mode="keep", to="run1/1.5", since_ms=NOW_MS - 7_000, until_ms=NOW_MS + 1_000)


def a_state(*servers: ServerState, pause: Pause | None = None, allowed: str = LABEL) -> PoolState:
    labels = AllowedLabels(allowed, allowed)
    return PoolState(
        run="run1", now_ms=NOW_MS, allowed=labels, pause=pause, rerouted=2, lost_tokens=3456, aborted=1, servers=tuple(servers)
    )


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (UP, "is up"),
        (replace(UP, looked_ms=0), "nobody has looked yet"),
        (replace(UP, standing="down", why="connection refused"), "is down since 40 s: connection refused"),
        (replace(UP, standing="unsynced", version="default"), "is unsynced since 40 s: it holds 'default', the run is at 1.4"),
        (replace(UP, standing="unsynced", version=""), "it reports no label"),
        (replace(UP, standing="unsynced", version="run1/updating-t1"), "an update began and did not end there"),
        (replace(UP, standing="unsynced", version="run1/updating-unproven"), "it started anew as an update labelled it"),
        (replace(UP, standing="draining", draining=True), "is draining: it keeps 5 jobs and gets no new ones"),
        (replace(UP, standing="down", draining=True), "is down since 40 s: no answer, draining"),
        (replace(UP, engine_paused=True), "paused, by nobody that the pool knows of"),
    ],
)
def test_each_standing_says_why(server: ServerState, said: str) -> None:
    assert said in standing(server, a_state(server))


def test_who_waits_is_told_what_for_and_what_to_do() -> None:
    down, unsynced = replace(UP, standing="down", why="connection refused"), replace(UP, standing="unsynced")
    lapsed = replace(PAUSE, until_ms=NOW_MS - 2_000)

    def told(*servers: ServerState, **state: Any) -> list[tuple[Cause, str]]:
        return [(reason.cause, str(reason)) for reason in why_waiting(a_state(*servers, **state))]

    assert told(UP) == told(UP, down) == told(UP, replace(UP, engine_paused=True)) == told(UP, pause=lapsed) == []
    assert told(down) == [
        (
            Cause.SERVER_DOWN,
            "No synced server (http://a is down since 40 s: connection refused): start one again, or add another (rollstream llm add "
            "--run run1 URL)",
        )
    ]
    [(cause, said)] = told()
    assert cause is Cause.NO_SERVER
    assert "rollstream llm add --run run1 URL" in said
    [(cause, said)] = told(unsynced, allowed="run1/none")
    assert cause is Cause.SERVER_UNSYNCED
    assert "has had no weight update yet): run.weight_update" in said
    [(cause, said)] = told(UP, pause=PAUSE)
    assert cause is Cause.SERVERS_PAUSED
    assert said.startswith("Its weights are updated to 1.5, since 7 s: no model call begins until t1 ends that")
    assert told(UP, pause=replace(PAUSE, why="away", to=""))[0][1].startswith("Its engines are away, since 7 s")
    [(cause, said)] = told(replace(UP, engine_paused=True), down)
    assert cause is Cause.SERVERS_PAUSED
    assert "(http://a): resume it" in said
    assert told(down, pause=lapsed)[1][1].startswith("The update by t1 lapsed 2 s ago")


def test_the_list_says_what_each_has_to_do() -> None:
    state = a_state(UP, replace(UP, url="http://b", control="trainer", shared=True, to_abort=2, seen_ms=0, looked_ms=0), pause=PAUSE)

    text = as_text(state)

    assert "until t1 ends that" in text
    assert "weights: 1.4" in text
    assert "5 jobs · 4 calls in flight · engine: 3 running, 1 waiting, KV cache 25%" in text
    assert "2 calls to be aborted" in text
    assert "never looked at · controlled by the trainer · shared" in text
    shown = as_map(state)
    assert shown["paused"] == {"by": "t1", "why": "update", "mode": "keep", "to": "run1/1.5", "since_s": 7.0, "lapsed": False}
    assert [(server.url, server.looked_ms) for server in state.servers] == [("http://a", NOW_MS - 500), ("http://b", 0)]

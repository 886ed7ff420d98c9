"""Promise 5, for dialogues drawn at random: the trainer reads what the server sampled, bit for bit; history is never tokenized again."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal, get_args

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeline import codec
from pipeline.engines import ModelError
from pipeline.messages import Stage, StopReason, Trajectory
from pipeline.redis_client import ask
from pipeline.scripts import Scripts
from pipeline.scripts.calls import Held, JournalTurn
from pipeline.testing import ManualWorker, a_template, a_unit, carry
from pipeline.testing.builders import A_RUN
from tests.integration.agent.dialogues import (
    TOKENIZER,
    DrawnDialogue,
    DrawnTurn,
    HeldDialogue,
    assert_faithful,
    assert_same_bits,
    dialogues,
    hold,
)
from workers.agent import TrajectoryRecorder, TurnDelta
from workers.llm import HttpBackend, connect_backend
from workers.llm.scripted import DictatedModel, Dictation, Fault, InProcessBackend, ScriptedServer, ServerOptions
from workers.llm.scripted.faults import Corruption, Faults

WIRES: dict[str, tuple[ServerOptions, Literal["auto", "completions"]]] = {
    "generate-0.31": (ServerOptions(wire="0.31"), "auto"),
    "generate-0.32": (ServerOptions(wire="0.32"), "auto"),
    "completions-0.32": (ServerOptions(wire="0.32"), "completions"),
    "completions-0.33": (ServerOptions(wire="0.33"), "completions"),
    "sglang": (ServerOptions(wire="sglang-0.5"), "auto"),
    "sglang-0.5.10": (ServerOptions(wire="sglang-0.5.10"), "auto"),
}
NUMBERS = itertools.count()


@dataclass
class Line:
    """A server and a client of it."""

    server: ScriptedServer
    client: HttpBackend
    path: str
    """Of its generation."""

    def dictate(self, drawn: DrawnDialogue) -> HeldDialogue:
        """A dialogue to hold, whose turns this server says."""
        self.server.requests.clear()
        return HeldDialogue(drawn, DictatedModel(self.client, [Dictation(turn.ids, turn.logprobs) for turn in drawn.turns]))

    async def hold(self, drawn: DrawnDialogue) -> HeldDialogue:
        """Hold it."""
        return await hold(self.dictate(drawn), lambda _, turn: self.server.engine.set_version(turn.version))


@asynccontextmanager
async def line(wire: str) -> AsyncIterator[Line]:
    options, endpoint = WIRES[wire]
    async with ScriptedServer(options) as server, connect_backend(server.url, endpoint=endpoint) as client:
        path = {"generate": "/inference/v1/generate", "completions": "/v1/completions", "sglang": "/generate"}
        yield Line(server, client, path[(await client.probe()).endpoint])


@pytest.fixture(params=[pytest.param(wire, marks=() if wire == "generate-0.32" else pytest.mark.slow) for wire in WIRES])
async def over_http(request: pytest.FixtureRequest) -> AsyncIterator[Line]:
    async with line(request.param) as opened:
        yield opened


@given(dialogues())
async def test_the_record_is_what_was_sampled(drawn: DrawnDialogue) -> None:
    backend = InProcessBackend([turn.ids for turn in drawn.turns], tokenizer=TOKENIZER)

    held = await hold(HeldDialogue(drawn, DictatedModel(backend)), lambda _, turn: backend.engine.set_version(turn.version))

    assert_faithful(held, held.trajectory(), dictated_logprobs=False)
    assert_same_bits(codec.decode(Trajectory, codec.encode(held.trajectory())), held.trajectory())
    replayed = TrajectoryRecorder.replay(codec.decode(TurnDelta, codec.encode(delta)) for delta in held.journal)
    assert_same_bits(replayed.trajectory(StopReason.FINISHED), held.trajectory())


@settings(max_examples=40)
@given(drawn=dialogues())
async def test_the_record_is_what_a_server_sampled_over_its_wire(over_http: Line, drawn: DrawnDialogue) -> None:
    held = await over_http.hold(drawn)

    assert_faithful(held, codec.decode(Trajectory, codec.encode(held.trajectory())))
    read = [next(body[name] for name in ("token_ids", "prompt", "input_ids") if name in body) for _, body in over_http.server.requests]
    assert read == [list(request.prompt_ids) for request in held.model.requests]


@settings(max_examples=40)
@given(drawn=dialogues(), corruption=st.sampled_from(get_args(Corruption)), place=st.integers(0, 4))
async def test_an_answer_that_was_bent_is_not_recorded(over_http: Line, drawn: DrawnDialogue, corruption: Corruption, place: int) -> None:
    """The turns before it stay as they were sampled."""
    place %= len(drawn.turns)
    assume(len(set(drawn.turns[place].ids[-2:])) == 2)  # else there is nothing to swap
    over_http.server.faults = Faults()
    fault = [Fault(kind="corrupt", path=over_http.path, corruption=corruption)]
    held = over_http.dictate(drawn)

    def label_and_bend(number: int, turn: DrawnTurn) -> None:
        over_http.server.engine.set_version(turn.version)
        if number == place and fault:
            over_http.server.faults.arm(fault.pop())

    try:
        await hold(held, label_and_bend)
    except ModelError:
        assert len(held.model.requests) == place + 1
        del held.model.requests[-1]
    else:
        assert len(held.model.requests) <= place, "the bent answer was believed"
    if held.model.requests:
        assert_faithful(held, held.trajectory())
    assert len(held.recorder.turns) == len(held.model.requests)


@pytest.mark.slow
@settings(max_examples=8)
@given(drawn=dialogues())
async def test_the_trainer_reads_from_redis_what_a_server_sampled(scripts: Scripts, drawn: DrawnDialogue) -> None:
    """The journal's turns and the trajectory that RUN hands over, as they lie in Redis."""
    async with line("generate-0.32") as opened:
        held = await opened.hold(drawn)
    worker, at_work = await _a_job_in_run(scripts, f"e0-i{next(NUMBERS)}")
    turns = [JournalTurn(at_work.job, at_work.attempt, delta.index, codec.encode(delta)) for delta in held.journal]

    kept = await scripts.journal(turns, ttl_ms=60_000)
    journal = await ask(worker.client, "LRANGE", scripts.keys.body(at_work.job, at_work.attempt, "turns"), 0, -1)
    await worker.hand_off(at_work, body=codec.encode(held.trajectory()))
    body = await ask(worker.client, "GET", scripts.keys.body(at_work.job, at_work.attempt, Stage.RUN.value))

    assert set(kept) == {"1"}
    assert_faithful(held, codec.decode(Trajectory, body))
    replayed = TrajectoryRecorder.replay(codec.decode(TurnDelta, entry) for entry in journal)
    assert_same_bits(replayed.trajectory(StopReason.FINISHED), held.trajectory())


async def _a_job_in_run(scripts: Scripts, prompt: str) -> tuple[ManualWorker, Held]:
    """A job that was accepted, passed INIT and is at work in RUN."""
    run = await scripts.connect_run(A_RUN, nonce="trainer", ttl_s=3600.0, weight=1.0, quota=0)
    accepted = [a_unit(prompt=prompt)]
    await scripts.accept(A_RUN, run, a_template(), "tpl1", codec.encode(a_template()), accepted, max_waiting=1000, window=1000)
    (held,) = await carry(scripts, to=Stage.RUN)
    return ManualWorker(scripts, Stage.RUN), held

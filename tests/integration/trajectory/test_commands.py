"""`rollstream trajectory check|show|save` as a person runs them, on files and on jobs in Redis."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import orjson
import pytest

from pipeline.codec import encode
from pipeline.messages import Sampling, Stage, Trajectory
from pipeline.scripts import JournalTurn, Scripts
from pipeline.scripts.calls import Held
from pipeline.settings import QueueSettings
from pipeline.testing.builders import a_template, a_unit
from pipeline.testing.manual_worker import ManualWorker, carry
from pipeline.trajectory_file import SUFFIX, read, record_of, write
from tests.model_answers import a_result
from tests.recorded_trajectories import PROBLEMS, record, several
from workers.agent import TrajectoryRecorder, TurnDelta
from workers.llm import connect_backend
from workers.llm.scripted import InProcessBackend, ScriptedServer

pytestmark = [pytest.mark.one_server, pytest.mark.slow]  # each starts the command, half a second of CPU, and some several times


@dataclass(frozen=True, slots=True)
class Said:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Awaitable[Said]]


async def run_command(*words: str, environment: dict[str, str] | None = None) -> Said:
    """`rollstream trajectory WORDS`, in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ops.cli", "trajectory", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "COLUMNS": "80", **(environment or {})},
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    assert b"Traceback" not in err, err.decode()
    return Said(process.returncode, out.decode(), err.decode())


async def a_trajectory(sampling: Sampling | None = None) -> Trajectory:
    """One of two turns."""
    call = '<tool_call>\n{"name": "python", "arguments": {"code": "print(7)"}}\n</tool_call>'
    return await record(InProcessBackend([call, "It is \\boxed{7}."]), sampling=sampling)


def saved(path: Path, trajectory: Trajectory) -> Path:
    """Its file."""
    write(path, record_of(path.stem, encode(trajectory), {"job": path.stem}))
    return path


def spoilt(trajectory: Trajectory) -> Trajectory:
    """With one id other than was sampled."""
    segment = trajectory.segments[0]
    ids = segment.token_ids.copy()
    ids[trajectory.turns[0].start] += 1
    return replace(trajectory, segments=(replace(segment, token_ids=ids),))


# ---- files


async def test_a_folder_of_records_is_checked_and_each_fault_is_told(tmp_path: Path) -> None:
    trajectory = await a_trajectory()
    saved(tmp_path / f"good{SUFFIX}", trajectory)
    saved(tmp_path / f"spoilt{SUFFIX}", spoilt(trajectory))
    (tmp_path / f"cut{SUFFIX}").write_bytes((tmp_path / f"good{SUFFIX}").read_bytes()[:-10])
    (tmp_path / "notes.txt").write_text("no record", encoding="utf-8")

    said = await run_command("check", str(tmp_path))

    assert said.code == 1
    assert f"✓ {tmp_path}/good{SUFFIX}: 2 turns in 1 segment" in said.out
    assert "segment 0, turn 0, token" in said.out
    assert "ids or logprobs other than were sent and sampled" in said.out
    assert "cut or grown" in said.out
    assert "1 of 3 keep their promises; 2 broken" in said.out


async def test_for_programs_a_check_is_json_with_the_place_of_each_fault(tmp_path: Path) -> None:
    path = saved(tmp_path / f"spoilt{SUFFIX}", spoilt(await a_trajectory()))

    said = await run_command("check", str(path), "--json")

    found = orjson.loads(said.out)
    (verdict,) = found["records"]
    assert (said.code, found["fine"], found["broken"], verdict["fine"]) == (1, False, 1, False)
    assert (verdict["faults"][0]["segment"], verdict["faults"][0]["turn"]) == (0, 0)
    assert {"what", "expected", "found", "place"} <= verdict["faults"][0].keys()


async def test_records_that_are_fine_end_with_0_and_are_told_only_when_wanted(tmp_path: Path) -> None:
    for name in "ab":
        saved(tmp_path / f"{name}{SUFFIX}", await a_trajectory())

    said = await run_command("check", f"{tmp_path}/*{SUFFIX}", "--quiet")

    assert (said.code, said.out) == (0, "2 of 2 keep their promises\n")


async def test_sampling_that_biases_a_ratio_is_reported_and_breaks_nothing(tmp_path: Path) -> None:
    path = saved(tmp_path / f"warm{SUFFIX}", await a_trajectory(Sampling(top_p=0.9)))

    said = await run_command("check", str(path))

    assert said.code == 0
    assert "! 2 turns would bias a trainer's ratio: top_p cut the distribution" in said.out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["check", "nowhere/x.trajectory"], "no such file"),
        (["check", "*.nothing"], "no file matches"),
        (["check", "EMPTY"], "no file *.trajectory in this folder"),
        (["check"], "Missing argument"),
        (["check", "x.trajectory", "--precision", "fp8"], "must be bf16 or fp32"),
        (["check", "x.trajectory", "--max-abs", "1"], "is needed for"),
        (["show", "GOOD", "--turn", "9"], "has 2 turns"),
        (["show", "GOOD", "--tokenizer", "/nowhere"], "no tokenizer at /nowhere"),
    ],
)
async def test_what_is_not_there_or_not_meant_ends_with_2(tmp_path: Path, words: list[str], why: str) -> None:
    good = saved(tmp_path / f"good{SUFFIX}", await a_trajectory())
    (tmp_path / "empty").mkdir()
    places = {"GOOD": str(good), "EMPTY": str(tmp_path / "empty")}

    said = await run_command(*(places.get(word, word) for word in words))

    assert said.code == 2
    assert why in " ".join(said.err.replace("│", " ").split())


async def test_a_damaged_file_cannot_be_shown_and_says_why(tmp_path: Path) -> None:
    path = tmp_path / f"x{SUFFIX}"
    path.write_bytes(b"\x00\x93abc")
    odd = await a_trajectory()
    ragged = saved(tmp_path / f"r{SUFFIX}", replace(odd, segments=(replace(odd.segments[0], loss_mask=np.zeros(3, np.uint8)),)))

    damaged, cannot = await run_command("show", str(path)), await run_command("show", str(ragged))

    assert (damaged.code, "no trajectory can be read" in damaged.err) == (1, True)
    assert (cannot.code, "cannot be shown: segment 0" in cannot.err) == (1, True)


async def test_a_record_is_shown_token_by_token(tmp_path: Path) -> None:
    path = saved(tmp_path / f"good{SUFFIX}", await a_trajectory())

    shown = await run_command("show", str(path))
    second = await run_command("show", str(path), "--turn", "1", "--json")

    assert shown.code == 0
    assert "⟦<tool_call>" in shown.out
    assert "\x1b" not in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    (part,) = orjson.loads(second.out)["parts"]
    said = "".join(piece["text"] for piece in part["pieces"] if piece["sampled"])
    assert (part["turn"], said) == (1, "It is \\boxed{7}.<|im_end|>")


# ---- jobs


@pytest.fixture
def run(settings: QueueSettings) -> Run:
    """The command on this test's Redis."""
    environment = {"ROLLSTREAM_REDIS_URL": settings.redis_url, "ROLLSTREAM_NAMESPACE": settings.namespace}

    async def command(*words: str) -> Said:
        return await run_command(*words, environment=environment)

    return command


async def a_running_job(scripts: Scripts) -> Held:
    """A job whose RUN attempt this test holds."""
    incarnation = await scripts.connect_run("run1", nonce="n", ttl_s=3600)
    await scripts.accept("run1", incarnation, a_template(), "t", encode(a_template()), [a_unit()], max_waiting=100, window=64)
    (held,) = await carry(scripts, to=Stage.RUN)
    return held


async def test_a_jobs_trajectory_is_saved_checked_and_shown(scripts: Scripts, run: Run, tmp_path: Path) -> None:
    held = await a_running_job(scripts)
    body = encode(await a_trajectory())
    await ManualWorker(scripts, Stage.RUN).hand_off(held, body=body)

    kept, checked, shown = await run("save", held.job, str(tmp_path)), await run("check", held.job), await run("show", held.job)

    found = read(tmp_path / f"{held.job}{SUFFIX}")
    assert (kept.code, found.body, found.facts["job"], found.ended) == (0, body, held.job, True)
    assert (checked.code, f"✓ {held.job}: 2 turns" in checked.out) == (0, True)
    assert (shown.code, "⟦<tool_call>" in shown.out) == (0, True)


async def test_a_folder_with_a_slash_at_its_end_is_made(scripts: Scripts, run: Run, tmp_path: Path) -> None:
    held = await a_running_job(scripts)
    await ManualWorker(scripts, Stage.RUN).hand_off(held, body=encode(await a_trajectory()))

    first, again = await run("save", held.job, f"{tmp_path}/a/records/"), await run("save", held.job, f"{tmp_path}/a/records/")
    (tmp_path / "taken").touch()
    refused = await run("save", held.job, f"{tmp_path}/taken/")

    assert (first.code, again.code, refused.code) == (0, 0, 2)
    assert [path.name for path in (tmp_path / "a/records").iterdir()] == [f"{held.job}{SUFFIX}"]
    assert "taken: File exists" in refused.err


async def test_of_a_running_job_there_are_the_turns_that_it_finished(scripts: Scripts, run: Run, tmp_path: Path) -> None:
    held = await a_running_job(scripts)

    early = await run("check", held.job)
    for delta in await deltas():
        await scripts.journal([JournalTurn(held.job, held.attempt, delta.index, encode(delta), 1)], ttl_ms=60_000)
    checked, shown, kept = await run("check", held.job), await run("show", held.job), await run("save", held.job, str(tmp_path / "x"))

    assert (early.code, "no turn of a running attempt is finished" in early.err) == (2, True)
    assert (checked.code, f"✓ {held.job} (so far): 2 turns" in checked.out) == (0, True)
    assert "it runs; these are its finished turns" in shown.out
    assert (kept.code, read(tmp_path / "x").ended) == (0, False)


async def deltas() -> list[TurnDelta]:
    """The journal of a trajectory, a turn each."""
    whole = await a_trajectory()
    segment = whole.segments[0]
    recorder = TrajectoryRecorder()
    found = []
    for turn in whole.turns:
        recorder.add_prompt(segment.token_ids[: turn.start].tolist())
        said = slice(turn.start, turn.end)
        recorder.add_call(a_result(segment.token_ids[said].tolist(), segment.logprobs[said].tolist()), turn)
        found.append(recorder.take_delta())
    return found


@pytest.mark.parametrize("job", ["run1.nobody", f"run1.{'x' * 300}"])
async def test_a_job_that_is_not_known_ends_with_2(run: Run, job: str) -> None:
    """Of an id that no file can be called, too: looking for the file ended in a traceback."""
    said = await run("show", job)

    assert (said.code, f"no job '{job}'" in said.err) == (2, True)


# ---- against a server


async def test_logprobs_are_compared_with_a_servers_and_other_weights_are_found(tmp_path: Path) -> None:
    async with ScriptedServer(problems=PROBLEMS) as server, connect_backend(server.url) as backend:
        for number, trajectory in enumerate(await several(backend, 4)):
            saved(tmp_path / f"{number}{SUFFIX}", trajectory)

        same = await run_command("check", str(tmp_path), "--server", server.url, "--precision", "fp32")
        server.engine.load("others")
        other = await run_command("check", str(tmp_path), "--server", server.url)
        server.engine.set_version("1.9")
        none = await run_command("check", str(tmp_path), "--server", server.url)
    gone = await run_command("check", str(tmp_path), "--server", server.url)

    assert same.code == 0, same.out
    assert "tokens compared" in same.out
    assert (other.code, "✗ mean |d|: expected at most 0.02 nats" in other.out) == (1, True)
    assert (none.code, "no token could be compared with a server that holds '1.9'" in none.out) == (1, True)
    assert (gone.code, "unreachable" in gone.err) == (2, True)

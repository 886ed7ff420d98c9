"""What a worker counts: read from outside, kept over its death, never in its way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from pipeline.attempts import Awaiting, End, GivenUp, HandedOff, Settled
from pipeline.messages import Outcome, Settlement, Stage
from workers.stages.measures import (
    BUCKETS,
    FILE_SUFFIX,
    LENGTH,
    MEASURES,
    PLACES,
    SECONDS,
    end_word,
    kept_measures,
    read_measures,
)


def the_file(folder: Path) -> Path:
    (path,) = folder.glob(f"*{FILE_SUFFIX}")
    return path


def test_each_series_has_places_of_its_own() -> None:
    taken = [
        place + at
        for measure in MEASURES
        for values in measure.combinations
        for at in range(measure.places)
        for place in [PLACES[measure.name, values]]
    ]

    assert sorted(taken) == list(range(LENGTH))


def test_what_is_counted_is_read_by_others(tmp_path: Path) -> None:
    measures = kept_measures(Stage.RUN, tmp_path / "m", "run-0")

    measures.claims.add()
    measures.busy_slots.add(3)
    measures.busy_slots.add(-1)
    measures.sampled_tokens.add(17)
    for seconds in (0.01, 0.011, 7200.0, 9999.0):
        measures.turn_seconds.observe(seconds)

    path = the_file(tmp_path / "m")
    read = read_measures(path)
    assert path.name == f"run-0.{os.getpid()}{FILE_SUFFIX}"
    assert read is not None
    assert (read[PLACES["claims", ("run",)]], read[PLACES["claims", ("init",)]]) == (1, 0)
    assert (read[PLACES["busy_slots", ("run",)]], read[PLACES["sampled_tokens", ()]]) == (2, 17)
    at = PLACES["turn_seconds", ()]
    assert read[at] == pytest.approx(0.01 + 0.011 + 7200 + 9999)
    assert [bucket for bucket in range(BUCKETS) for _ in range(int(read[at + 1 + bucket]))] == [0, 1, len(SECONDS) - 1, BUCKETS - 1]


def test_what_a_process_counted_before_it_was_killed_is_there(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path; from pipeline.messages import Stage; "
        "from workers.stages.measures import kept_measures; m = kept_measures(Stage.EVAL, Path(sys.argv[1]), 'eval-3'); "
        "m.attempts['ok'].add(5); os.kill(os.getpid(), signal.SIGKILL)"
    )

    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path / "m")], check=False, timeout=30)

    assert ended.returncode == -signal.SIGKILL
    read = read_measures(the_file(tmp_path / "m"))
    assert read is not None
    assert read[PLACES["attempts", ("eval", "ok")]] == 5


@pytest.mark.parametrize("spoil", ["head", "short", "long", "gone"])
def test_a_file_of_another_list_is_not_read(tmp_path: Path, spoil: str) -> None:
    kept_measures(Stage.RUN, tmp_path / "m", "run-0")
    path = the_file(tmp_path / "m")
    whole = path.read_bytes()
    path.unlink()

    if spoil != "gone":
        path.write_bytes({"head": whole[:9] + b"?" + whole[10:], "short": whole[:-8], "long": whole + bytes(8)}[spoil])

    assert read_measures(path) is None


def test_a_folder_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "m").write_text("a file")

    measures = kept_measures(Stage.INIT, tmp_path / "m", "init-0")

    measures.claims.add()


SETTLED = Settlement(outcome=Outcome.MODEL_FAILURE)
UNUSABLE = Settled(Settlement(outcome=cast(Outcome, "made up")))


@pytest.mark.parametrize(
    ("end", "word"),
    [
        (None, "dropped"),
        (HandedOff(b""), "handed_off"),
        (Settled(SETTLED), "model_failure"),
        (Awaiting(SETTLED), "awaiting"),
        (GivenUp("lost", "why"), "lost"),
        (GivenUp("back", "why"), "back"),
        (UNUSABLE, "failed"),
        (cast(End, "nonsense"), "failed"),
    ],
)
def test_each_end_has_its_word(end: End | None, word: str) -> None:
    assert end_word(end) == word

"""What a launcher makes of the files of its processes."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from ops.metrics.node import NodeMetrics
from ops.metrics.node_listener import NodeListener
from ops.metrics.settings import MetricsSettings
from ops.node.supervision import Process
from pipeline.messages import Stage
from tests.integration.metrics.scraping import get, samples
from workers.stages.measures import FILE_SUFFIX, HEAD_BYTES, PLACES, kept_measures


@dataclass
class Stands:
    """As much of a process as is asked for."""

    pid: int
    runs: bool = True
    state: str = "up"


def a_process(folder: Path, pid: int, *, claims: int, busy: int) -> Stands:
    """Its file, as it would be there after such a life."""
    measures = kept_measures(Stage.RUN, folder, f"run-{pid}")
    measures.slots.add(4)
    measures.busy_slots.add(busy)
    measures.claims.add(claims)
    for _ in range(claims):
        measures.turn_seconds.observe(0.2)
    (made,) = folder.glob(f"run-{pid}.*{FILE_SUFFIX}")
    made.rename(folder / f"run-{pid}.{pid}{FILE_SUFFIX}")
    return Stands(pid)


def said(metrics: NodeMetrics, *processes: Stands) -> tuple[float, ...]:
    found = samples(metrics.text([cast(Process, each) for each in processes]))
    names = ('claims_total{stage="run"}', "turn_seconds_count", 'slots{stage="run"}', 'busy_slots{stage="run"}')
    return tuple(found[f"rollstream_worker_{name}"] for name in names)


def test_what_a_killed_process_did_stays_done_and_it_has_no_slots_any_more(tmp_path: Path) -> None:
    folder = tmp_path / "measures"
    with NodeMetrics("n1", folder) as metrics:
        first, second = a_process(folder, 11, claims=3, busy=2), a_process(folder, 12, claims=5, busy=1)
        both = said(metrics, first, second)
        first.runs, first.state = False, "waiting"
        one_killed = said(metrics, first, second)
        again = said(metrics, first, second)
        successor = a_process(folder, 13, claims=1, busy=0)
        metrics.forget_ended({12, 13})
        renewed = said(metrics, successor, second)

        assert (both, one_killed, again, renewed) == ((8, 8, 8, 3), (8, 8, 4, 1), (8, 8, 4, 1), (9, 9, 8, 1))
        assert sorted(path.name.split(".")[1] for path in folder.iterdir()) == ["12", "13"]
    assert not folder.exists()


def test_what_an_earlier_launcher_left_is_not_counted(tmp_path: Path) -> None:
    folder = tmp_path / "measures"
    left = a_process(folder, 11, claims=3, busy=2)

    with NodeMetrics("n1", folder) as metrics:
        assert said(metrics, left) == (0, 0, 0, 0)


def test_a_file_that_is_none_stops_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "measures"
    with NodeMetrics("n1", folder) as metrics:
        well = a_process(folder, 11, claims=3, busy=2)
        (folder / f"run-1.12{FILE_SUFFIX}").write_bytes(b"of another version")
        (folder / f"run-1.dead{FILE_SUFFIX}").write_bytes(b"")

        assert said(metrics, well, Stands(12)) == (3, 3, 4, 2)


@pytest.mark.parametrize("runs", [True, False])
def test_what_lies_in_the_folder_in_place_of_a_file_stops_nothing(tmp_path: Path, runs: bool) -> None:
    """A folder cannot be unlinked: that ended the launcher at its next crashed process, and all processes of the node with it. A pipe was
    waited for on its loop. What is no number would have stayed in the sum for good."""
    folder = tmp_path / "measures"
    with NodeMetrics("n1", folder) as metrics:
        well = a_process(folder, 11, claims=3, busy=2)
        (folder / f"run-1.12{FILE_SUFFIX}").mkdir()
        os.mkfifo(folder / f"run-1.13{FILE_SUFFIX}")
        (folder / f"run-1.14{FILE_SUFFIX}").symlink_to("/dev/zero")
        endless = a_process(folder, 15, claims=1, busy=1)
        with (folder / f"run-15.15{FILE_SUFFIX}").open("r+b") as file:
            file.seek(HEAD_BYTES + 8 * PLACES["claims", ("run",)])
            file.write(struct.pack("d", float("inf")))
        others = [Stands(pid, runs) for pid in (12, 13, 14)]
        endless.runs = runs

        assert said(metrics, well, endless, *others) == said(metrics, well) == (3, 3, 4, 2)


async def test_a_node_that_answers_nowhere_keeps_nothing(tmp_path: Path) -> None:
    settings = MetricsSettings(targets_dir=tmp_path / "targets")

    async with NodeListener(settings, -1, "rs", "n1", tmp_path / "measures", tuple) as nowhere:
        assert (nowhere.begin(), nowhere.url) == ({}, "")
        nowhere.on_change()
        nowhere.end()

    assert os.listdir(tmp_path) == []


async def test_a_launcher_without_its_name_says_nothing_of_the_node(tmp_path: Path) -> None:
    async with NodeListener(MetricsSettings(), 0, "rs", "n1", tmp_path / "measures", tuple) as waiting:
        before = (await get(waiting.url))[2]
        environment = waiting.begin()
        after = samples((await get(waiting.url))[2])

    assert before == ""
    assert environment == {"ROLLSTREAM_WORKER_MEASURES_DIR": str(tmp_path / "measures")}
    assert after['rollstream_launcher_processes{state="up"}'] == 0

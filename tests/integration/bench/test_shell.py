"""The benchmark of shells measures calls that worked, on the kinds of sandboxes that it says, and leaves nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ops.bench.shell_bench import BOUNDS, Figures, Plan, measure, percentile, report_of, run
from ops.bench.shell_node import NoImage
from ops.bench.shell_rivals import PROGRAMS, RivalFailed, running
from tests.contract.sandbox.kinds import usable
from workers.sandbox import Isolation, SandboxSpec

RIVAL = """
import sys
sys.path.insert(0, sys.argv[1])
from asked_calls import serve
answers = iter(["hi", "hi", "$ echo hi\\r\\nhi", "none"])
serve(lambda: lambda: next(answers))
"""
"""Its first answer is that of its start; one of the others is wrong, and none is left for a fifth call."""


@pytest.mark.slow
async def test_tools_starts_and_the_warm_pool_are_measured_through_a_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usable("bubblewrap")
    monkeypatch.setenv("ROLLSTREAM_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("ROLLSTREAM_SCRATCH_DIR", str(tmp_path / "scratch"))
    nodes_own = SandboxSpec(isolation=Isolation.ISOLATED)
    plan = Plan(spec=nodes_own, rounds=1, calls=3, cells=1, starts=1, warm_starts=1, at_once=3)

    figures = await measure(lambda _: None, ("bubblewrap",), plan)

    assert {what: len(took_ms) for what, took_ms in figures.of.items()} == {
        "bubblewrap_echo": 3,
        "bubblewrap_print": 1,
        "bubblewrap_local_echo": 3,
        "bubblewrap_local_print": 1,
        "bubblewrap_cold_start": 1,
        "bubblewrap_idle_start": 1,
        "bubblewrap_warm_start": 1,
    }
    assert figures.failed == {"bubblewrap": 0}
    assert [why.split(":")[0] for why in figures.left_out] == ["openhands_tmux", "openhands_pty", "swerex"]
    left = {path.name for path in (tmp_path / "scratch").iterdir()}
    assert left <= {"images"}, "no sandbox is left, nor where they were"


async def test_a_call_of_a_rival_that_fails_is_counted_and_has_no_time(tmp_path: Path) -> None:
    async with running("rival", Path(sys.executable), ("-c", RIVAL, str(PROGRAMS)), tmp_path) as rival:
        await rival.ask(4)

        assert (len(rival.calls_ms), rival.failed) == (2, 2)


async def test_a_rival_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(RivalFailed, match="no such terminal"):
        async with running("rival", Path(sys.executable), ("-c", "raise SystemExit('no such terminal')"), tmp_path):
            pass


def test_a_bound_is_held_by_the_median_or_the_slowest_hundredth() -> None:
    figures = Figures(at_once_s={"bubblewrap": 2.0}, failed={"bubblewrap": 1}, rivals_failed={"swerex": 2}, left_out=["apptainer: none"])
    figures.note("bubblewrap_echo", [0.5] * 90 + [9.0] * 10)
    figures.note("bubblewrap_cold_start", [70.0, 50.0, 61.0])
    figures.note("swerex_echo", [110.0])

    report = report_of(figures)

    assert report.metrics["bubblewrap_echo_p50_ms"] == 0.5
    assert report.metrics["bubblewrap_echo_p99_ms"] == 9.0
    assert report.metrics["swerex_failed_calls"] == 2
    assert report.as_map()["missed"] == ["bubblewrap_cold_start_ms", "bubblewrap_at_once_failed"]
    assert set(report.bounds) < set(BOUNDS), "what was not measured has no bound"
    assert report.left_out == ("apptainer: none",)
    assert any(line.split() == ["swerex", "110.00", "110.00"] for line in report.table)


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (0.991, 100), (1.0, 100)])
def test_percentile(share: float, expected: int) -> None:
    assert percentile(range(100, 0, -1), share) == expected


@pytest.mark.skipif(os.geteuid() == 0, reason="root goes on as another user, or leaves")
def test_its_image_needs_something_to_be_made_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLSTREAM_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("ROLLSTREAM_TEST_IMAGE", str(tmp_path / "none"))

    with pytest.raises(NoImage, match="makes one"):
        run(lambda _: None)

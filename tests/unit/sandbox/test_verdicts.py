"""Who has to go when a sandbox is over a bound."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.sandbox.limits.disk import DiskUse
from workers.sandbox.limits.process_table import Process
from workers.sandbox.limits.verdicts import MIB, Weighed, busy, over_by, size_text, too_heavy, writers
from workers.sandbox.limits.watch import COUNT_EVERY_S, FILLED_BYTES, DiskState
from workers.sandbox.spec import GIB, Limits


def a_process(pid: int, *, cpu_s: float = 0.0, parent: int = 1, state: str = "S") -> Process:
    return Process(
        pid=pid, started=pid, parent=parent, name="p", state=state, threads=1, rss_bytes=0, cpu_s=cpu_s, reaped_cpu_s=0.0
    )  # fmt: skip


@given(sizes=st.lists(st.integers(min_value=0, max_value=100), max_size=30), limit=st.integers(min_value=0, max_value=500))
def test_no_more_than_the_largest_are_chosen_and_what_is_left_fits(sizes: list[int], limit: int) -> None:
    weighed = [Weighed(a_process(pid), size) for pid, size in enumerate(sizes)]

    chosen = too_heavy(weighed, limit)

    left = [one.bytes for one in weighed if one not in chosen]
    assert sum(left) <= limit
    assert not chosen or sum(left) + chosen[-1].bytes > limit
    assert not chosen or not left or min(one.bytes for one in chosen) >= max(left)


def test_who_has_no_cpu_time_left_keeps_a_shell_that_only_waits() -> None:
    idle, busy_kernel, child, dead = a_process(1, cpu_s=5.0), a_process(2, cpu_s=7.0), a_process(3, parent=2), a_process(4, state="Z")
    before = {(1, 1): 5.0, (2, 2): 6.0}

    chosen = busy([idle, busy_kernel, child, dead], before, lambda process: process.pid in (1, 2))

    assert chosen == [busy_kernel, child]


def test_writers_are_those_whose_count_has_grown_and_those_who_hide_it() -> None:
    still, grew, new, hidden = (a_process(pid) for pid in (1, 2, 3, 4))
    before = {(1, 1): 5 * MIB, (2, 2): 5 * MIB}

    chosen = writers({still: 5 * MIB, grew: 6 * MIB, new: 1, hidden: None}, before)
    at_first = writers({still: 5 * MIB, new: 1, hidden: None}, None)

    assert chosen == [grew, new, hidden]
    assert at_first == [still, hidden]


def test_sizes_are_said_with_three_digits() -> None:
    assert [size_text(count) for count in (8 * GIB, 8.35 * GIB, 300 * MIB, 1023 * MIB, 12)] == [
        "8 GiB",
        "8.35 GiB",
        "300 MiB",
        "1023 MiB",
        "12 bytes",
    ]


def test_files_are_counted_when_the_disk_fills_or_time_has_passed_and_never_for_who_does_nothing() -> None:
    limits = Limits(disk_bytes=GIB)
    state = DiskState(at_s=100.0, took_s=0.1, cpu_s=3.0, free_bytes=50 * GIB, free_files=10**6)
    free, files = 50 * GIB, 10**6

    assert not state.is_due(110.0, 4.0, free, files, limits), "the disk shows no sign"
    assert state.is_due(110.0, 4.0, free - FILLED_BYTES, files, limits), "it fills"
    assert state.is_due(110.0, 4.0, free, files - 5_000, limits), "files come"
    assert not state.is_due(110.0, 3.0, free - FILLED_BYTES, files, limits), "somebody else fills it"
    assert not state.is_due(101.5, 4.0, free - FILLED_BYTES, files, limits), "so soon that counting would cost too much"
    assert state.is_due(100.0 + COUNT_EVERY_S, 4.0, free, files, limits), "long ago"
    assert not state.is_due(100.0 + COUNT_EVERY_S, 3.0, free, files, limits), "it sleeps"
    assert replace(state, is_over=True).is_due(110.0, 3.0, free, files, limits), "it may have deleted some"
    nearly_full = replace(state, counted=DiskUse(bytes=GIB - 2 * MIB))
    assert nearly_full.is_due(110.0, 4.0, free - MIB, files, limits), "little is left for it"


@pytest.mark.parametrize(
    ("named", "with_deleted", "cause"),
    [
        (DiskUse(bytes=90, files=9), 90, ""),
        (DiskUse(bytes=90, files=9), 101, "deleted"),
        (DiskUse(bytes=101, files=9), 101, "bytes"),
        (DiskUse(bytes=101, files=11), 101, "files"),
        (DiskUse(bytes=1, files=1, uncounted=1), 1, "depth"),
    ],
)
def test_the_disk_is_over_by_what_its_owner_can_change(named: DiskUse, with_deleted: int, cause: str) -> None:
    assert over_by(named, with_deleted, Limits(disk_bytes=100, files=10)) == cause

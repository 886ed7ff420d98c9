"""What awaits a reward is given to each reader once, however often its record is read."""

from __future__ import annotations

import pytest

from trainer_client.outside_inbox import OutsideInbox
from trainer_client.records import AwaitingRecord, HeldRecord, Unreadable, read_record


def an_awaiting(job: str = "run1.p.0", *, run_attempt: int = 2, entry: str = "1-0") -> AwaitingRecord:
    fields = {"kind": "awaiting", "job": job, "run": "run1", "out": "ok", "ra": str(run_attempt), "sampled": "7", "due": "5"}
    record = read_record(entry, [word.encode() for pair in fields.items() for word in pair])
    assert isinstance(record, AwaitingRecord)
    return record


def a_held(entry: str = "2-0") -> HeldRecord:
    fields = {"kind": "held", "run": "run1", "grp": "run1.p.0", "prompt": "p", "want": "2", "due": "5"}
    record = read_record(entry, [word.encode() for pair in fields.items() for word in pair])
    assert isinstance(record, HeldRecord)
    return record


def test_a_stream_that_is_read_again_from_its_beginning_takes_nothing_from_a_reader() -> None:
    """The record that a reader is about to be given stays the one that counts. Were it replaced, the reader would take it for one that has
    ended meanwhile and skip it, and nobody would judge that job before its deadline."""
    inbox = OutsideInbox()
    with inbox.awaiting_reader() as reader:
        inbox.take_awaiting(an_awaiting())
        inbox.take_awaiting(an_awaiting(entry="9-0"))

        assert len(reader.waiting) == 1
        assert inbox.awaiting["run1.p.0"] is reader.waiting[0]


def test_a_job_that_waits_with_another_trajectory_is_given_again() -> None:
    inbox = OutsideInbox()
    with inbox.awaiting_reader() as reader:
        inbox.take_awaiting(an_awaiting())
        inbox.take_awaiting(an_awaiting(run_attempt=5))

        assert [record.run_attempt for record in reader.waiting] == [2, 5]
        assert inbox.awaiting["run1.p.0"] is reader.waiting[1]


def test_a_reader_that_comes_later_is_given_what_waits_already() -> None:
    inbox = OutsideInbox()
    inbox.take_awaiting(an_awaiting("run1.a.0"))
    inbox.take_awaiting(an_awaiting("run1.b.0"))
    inbox.job_ended("run1.a.0")
    inbox.take_held(a_held())
    inbox.take_held(a_held("9-0"))

    with inbox.awaiting_reader() as awaiting, inbox.held_reader() as held:
        assert [record.job for record in awaiting.waiting] == ["run1.b.0"]
        assert [record.entry for record in held.waiting] == ["2-0"]
    inbox.group_closed("run1.p.0")
    assert inbox.held == {}


def test_a_record_without_its_job_is_none_of_ours() -> None:
    with pytest.raises(Unreadable, match="'job' is missing"):
        read_record("1-0", [b"kind", b"awaiting", b"run", b"run1", b"out", b"ok"])

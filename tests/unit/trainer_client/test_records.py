"""Entries of the results stream, written by the scripts as plain text, read as records."""

from __future__ import annotations

import math

import pytest

from pipeline.messages import JobResult, Outcome, SegmentSize, TrajectoryCounts
from pipeline.supervisor.actions import Verdict
from trainer_client.records import GroupRecord, Note, StepRecord, Unreadable, read_record

JOB = {
    "kind": "job",
    "job": "r.e0-1.0.3",
    "run": "r",
    "grp": "r.e0-1.0",
    "n": "3",
    "task": "math",
    "out": "model_failure",
    "why": "turns",
    "rew": "0.25",
    "comps": '{"score":0.25,"format":1}',
    "stop": "turns",
    "att": "7",
    "ra": "5",
    "ea": "7",
    "sampled": "12",
    "total": "40",
    "turns": "2",
    "v0": "1.3",
    "v1": "1.4",
    "segs": "30/8 10/4",
    "counts": "calls:3 errors:1 prompt:60 cached:16 nll:7.250 model:1.400 tools:0.050 newer:9",
    "began": "98005 98055 99855",
    "init_ms": "10",
    "run_ms": "1500",
    "eval_ms": "0",
    "all_ms": "2000",
    "inc": "1",
    "stage": "eval",
}
GROUP = {
    "kind": "group",
    "run": "r",
    "grp": "r.e0-1.0",
    "prompt": "e0-1",
    "draw": "0",
    "verdict": "informative",
    "why": "",
    "step": "4",
    "want": "4",
    "valid": "3",
    "mean": "0.5",
    "spread": "1",
    "sampled": "100",
    "total": "400",
    "rews": "1,0,,0.5",
    "v0": "1.3",
    "v1": "1.4",
    "inc": "1",
}
STEP = {
    "kind": "step",
    "run": "r",
    "k": "4",
    "groups": "r.e0-1.0 r.e0-7.1",
    "target": "2",
    "n": "4",
    "short": "0",
    "filtered": "5",
    "redundant": "3",
    "tokens_kept": "99",
    "took_ms": "1234",
    "inc": "2",
}


def flat(fields: dict[str, str]) -> list[bytes]:
    return [word.encode() for pair in fields.items() for word in pair]


def test_a_job() -> None:
    record = read_record("100000-0", flat(JOB))

    assert isinstance(record, JobResult)
    assert (record.entry, record.job, record.group, record.member) == ("100000-0", "r.e0-1.0.3", "r.e0-1.0", 3)
    assert (record.outcome, record.reason, record.reward) == (Outcome.MODEL_FAILURE, "turns", 0.25)
    assert record.components == {"score": 0.25, "format": 1.0}
    assert (record.run_attempt, record.eval_attempt) == (5, 7)
    assert record.seconds == {"init": 0.01, "run": 1.5, "eval": 0.0, "total": 2.0}
    assert record.segments == (SegmentSize(tokens=30, loss_tokens=8), SegmentSize(tokens=10, loss_tokens=4))
    assert record.counts == TrajectoryCounts(
        tool_calls=3, tool_errors=1, prompt_tokens=60, cached_tokens=16, neg_logprob=7.25, model_s=1.4, tools_s=0.05
    )
    assert record.waits == {"init": 0.005, "run": 0.04, "eval": 0.3}


@pytest.mark.parametrize("field", ["", "calls", "calls:x", "calls:1.5", "other:1", "calls:-1", "calls:" + "9" * 30])
def test_counts_that_nobody_can_read_are_unknown_and_the_record_stands(field: str) -> None:
    record = read_record("1-0", flat({**JOB, "counts": field, "began": "a b"}))

    assert isinstance(record, JobResult)
    assert (record.counts, record.waits) == (None, {})


@pytest.mark.parametrize("field", ["", "30/8 10", "30/8  10/4", "8/30", "-3/1", "a/b", "30/8 10/4 ", "1/1 " * 64 + "1/1"])
def test_sizes_that_nobody_can_read_are_unknown_and_the_record_stands(field: str) -> None:
    """They are a hint: the trajectory tells what they do not. A record that is refused for them would be a job that never ended."""
    record = read_record("1-0", flat({**JOB, "segs": field}))

    assert isinstance(record, JobResult)
    assert record.segments == ()


def test_no_reward_is_none_and_never_0() -> None:
    record = read_record("1-0", flat({**JOB, "out": "infra_failure", "rew": "", "comps": ""}))

    assert isinstance(record, JobResult)
    assert (record.reward, record.components) == (None, {})


def test_a_component_that_is_no_number_is_nan_and_the_result_is_read() -> None:
    record = read_record("1-0", flat({**JOB, "rew": "nan", "comps": '{"score":null,"format":1}'}))

    assert isinstance(record, JobResult)
    assert math.isnan(record.components["score"])
    assert math.isnan(record.reward or 0.0)


def test_a_group() -> None:
    record = read_record("2-0", flat(GROUP))

    assert isinstance(record, GroupRecord)
    assert (record.verdict, record.step, record.prompt) == (Verdict.INFORMATIVE, 4, "e0-1")
    assert record.values == (1.0, 0.0, None, 0.5)


def test_a_group_of_no_step() -> None:
    record = read_record("2-0", flat({**GROUP, "verdict": "cancelled", "step": "", "mean": "", "spread": "", "rews": ""}))

    assert isinstance(record, GroupRecord)
    assert (record.step, record.mean, record.values) == (None, None, ())


def test_a_step_and_what_an_older_writer_left_out() -> None:
    record = read_record("3-0", flat(STEP))

    assert isinstance(record, StepRecord)
    assert record.groups == ("r.e0-1.0", "r.e0-7.1")
    assert (record.index, record.filtered, record.dropped, record.took_s, record.is_short) == (4, 5, 0, 1.234, False)


def test_a_short_step_without_groups() -> None:
    record = read_record("3-0", flat({**STEP, "groups": "", "short": "1"}))

    assert isinstance(record, StepRecord)
    assert (record.groups, record.is_short) == ((), True)


def test_a_note_and_fields_of_a_newer_writer() -> None:
    assert read_record("4-0", flat({"kind": "note", "run": "r", "note": "need_prompts", "want": "3"})) == Note("4-0", "need_prompts")
    assert read_record("1-0", flat({**JOB, "colour": "blue"})) == read_record("1-0", flat(JOB))


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "tea"},
        {},
        {**JOB, "out": "great"},
        {**JOB, "n": "three"},
        {**JOB, "comps": "{"},
        {**JOB, "comps": "[1]"},
        {name: value for name, value in JOB.items() if name != "job"},
        {**GROUP, "verdict": "superb"},
        {name: value for name, value in STEP.items() if name != "k"},
    ],
)
def test_what_is_no_record_is_unreadable(fields: dict[str, str]) -> None:
    with pytest.raises(Unreadable):
        read_record("1-0", flat(fields))


def test_bytes_that_are_no_text_are_unreadable() -> None:
    with pytest.raises(Unreadable):
        read_record("1-0", [b"kind", b"\xff\xfe"])

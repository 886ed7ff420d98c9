"""The line that says how a step comes along."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pipeline.causes import Reason
from pipeline.supervisor.actions import Verdict
from tests.integration.trainer_client.terminal import Terminal
from tests.unit.trainer_client.run_records import a_closed_group, a_job_record
from trainer_client.inbox import Inbox
from trainer_client.progress_line import ProgressLine, StepProgress, clock, line_of
from trainer_client.results import Result


def an_inbox() -> Inbox:
    return Inbox(1, lambda record: Result(record, None, None, None), lambda _: None)  # type: ignore[arg-type]  # bodies are not asked for


def test_it_says_groups_rates_and_the_time_left() -> None:
    progress = StepProgress(index=12, target=64, joined=41, filtered=12, ended=1212, waited_s=124, groups_per_s=0.085, tokens_per_s=3410.4)

    assert line_of(progress) == (
        "step 12   41/64 groups   12 filtered (23 %)   1,212 rollouts   5.1 groups/min   3,410 tokens/s   4:31 left   waits 2:04"
    )


def test_it_says_why_where_nothing_comes() -> None:
    progress = StepProgress(index=1, target=2, joined=0, filtered=0, ended=0, waited_s=70, why="no worker of stage RUN is alive")

    assert line_of(progress) == "step 1   0/2 groups   waits 1:10   no worker of stage RUN is alive"


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (271, "4:31"), (3729, "1:02:09")])
def test_times_are_read_as_clocks(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_rates_are_over_what_came_since_it_was_awaited() -> None:
    """Groups that joined while the trainer trained the step before say nothing about how fast they come now."""
    inbox, line = an_inbox(), ProgressLine(an_inbox())
    line = ProgressLine(inbox)
    for number in range(3):
        inbox.take(a_closed_group(Verdict.INFORMATIVE, group=f"r.e0-{number}.0"))
        inbox.take(a_job_record(f"r.e0-{number}.0.0", group=f"r.e0-{number}.0", sampled_tokens=100))
    inbox.take(a_closed_group(Verdict.FILTERED, group="r.e0-9.0"))
    inbox.take(a_job_record("r.v3-0.0.0", group="r.v3-0.0"))

    first = line.look(4, 8, 100.0, 100.0)
    inbox.take(a_closed_group(Verdict.INFORMATIVE, group="r.e0-5.0"))
    inbox.take(a_job_record("r.e0-5.0.0", group="r.e0-5.0", sampled_tokens=60))
    inbox.take(a_job_record("r.e0-6.0.0", group="r.e0-6.0", sampled_tokens=40))
    second = line.look(4, 8, 100.0, 110.0)

    assert (first.joined, first.filtered, first.ended, first.groups_per_s) == (3, 1, 3, 0.0)
    assert (second.joined, second.ended) == (4, 5), "an open group's members count, a validation's do not"
    assert (second.groups_per_s, second.tokens_per_s) == (0.1, 10.0)


async def test_it_is_written_over_on_a_terminal_and_gone_when_the_step_is_there() -> None:
    out = Terminal()

    async with ProgressLine(an_inbox(), out).shown(1, 2, no_reason):
        await out.wrote.wait()

    assert out.getvalue().startswith("\r\x1b[2Kstep 1   0/2 groups   waits 0:00")
    assert out.getvalue().endswith("\r\x1b[2K")


async def no_reason() -> Sequence[Reason]:
    return []

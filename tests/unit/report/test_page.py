"""The page of a run: its figures, that it needs no network, and that nothing a model wrote is obeyed by a browser."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from ops.look import RunLook
from ops.report import RunFacts, page
from ops.report.charts import line_chart, number
from ops.report.facts import GroupFacts, JobFacts, StepFacts, histogram, latencies, over_time, reward_by_step, spread
from ops.run_report import RunReport
from pipeline.supervisor.monitors import Starvation, length_bias
from pipeline.supervisor.run_account import Monitors

EVIL = "<script>alert(1)</script>\x1b]0;x\x07\"'><img src=http://evil/x>"
NO_END_TAG = frozenset({"meta", "br", "line"})


def a_report(**changes: object) -> RunReport:
    look = RunLook(
        name="swe-7b", state="open", incarnation=2, version="2.7", weight=1.0, quota=0, waiting=0, in_flight=3, reserve=5,
        outcomes={"ok": 60, "model_failure": 4}, groups={"informative": 12, "filtered": 4, "launched": 20}, groups_in_flight=1,
        tokens={"kept": 9000, "filtered": 3000}, shortage="", steps=(), contact_s=1.0, places=0, places_bound=0, held=0, acting=0, unread=0,
    )  # fmt: skip
    monitors = Monitors(length=length_bias([]), starvation=Starvation(watched_s=0.0, short_s={}), shortage="")
    whole = RunReport(look=replace(look, **changes), prompts={}, parked=0, monitors=monitors, steps=(), why_waiting=())  # type: ignore[arg-type]
    return whole


def some_facts(**changes: object) -> RunFacts:
    """Four steps of four groups, three of which joined."""
    groups = tuple(
        GroupFacts(
            group=f"g{step}.{number}",
            verdict="filtered" if number == 3 else "informative",
            step=step,
            mean=(0.0 if number == 3 else 0.25 * step),
            valid=4,
            sampled_tokens=1000,
            closed_s=1_796_000_000.0 + 60 * step + number,
        )
        for step in range(4)
        for number in range(4)
    )
    jobs = tuple(
        JobFacts(
            entry=f"{1_796_000_000_000 + number}-0",
            outcome="ok" if number % 8 else "model_failure",
            reason="" if number % 8 else EVIL,
            reward=float(number % 2),
            seconds={"init": 0.5, "run": float(number), "eval": 0.25, "total": number + 1.0},
            waits={"init": 0.01, "run": 0.02, "eval": 0.03},
            sampled_tokens=250,
        )
        for number in range(64)
    )
    steps = tuple(
        StepFacts(
            index=step, accepted=3, target=3, is_short=False, counts={"filtered": 1}, tokens={"kept": 3000, "filtered": 1000},
            took_s=60.0, starved_share=0.1 * step, cancel_settled_s=None,
        )
        for step in range(4)
    )  # fmt: skip
    facts = RunFacts(
        now_s=1_796_001_000.0, report=a_report(), steps=steps, groups=groups, jobs=jobs, jobs_counted={"ok": 60, "model_failure": 4}
    )
    return replace(facts, **changes)  # type: ignore[arg-type]


class Reading(HTMLParser):
    """A page as a browser takes it apart."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in NO_END_TAG:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_page_has_every_part_and_closes_what_it_opens() -> None:
    reading = Reading(page(some_facts()))

    assert reading.open == []
    for heading in (
        "Throughput",
        "Reward",
        "Where the tokens went",
        "Time of a job",
        "Does training see",
        "Did the fleet wait",
        "Steps",
        "How jobs ended",
    ):
        assert heading in reading.words
    assert reading.tags.count("svg") >= 8
    assert "25%" in reading.words  # filtered groups among those that were judged


def test_text_of_models_and_tasks_is_shown_and_never_obeyed() -> None:
    text = page(some_facts(report=a_report(name=EVIL, state=EVIL, version=EVIL), export=EVIL))
    reading = Reading(text)

    assert {"script", "img", "iframe", "object", "link"} & set(reading.tags) == set()
    assert "<script>alert(1)</script>" in reading.words
    assert "\x1b" not in text
    assert [name for name, _ in reading.attributes if name.startswith("on")] == []


def test_the_page_needs_no_network_and_forbids_it() -> None:
    facts = some_facts()
    text = page(replace(facts, jobs=tuple(replace(job, reason="tests failed") for job in facts.jobs)))

    assert re.findall(r"https?://|//cdn|@import|url\(", text) == []
    assert "default-src 'none'" in text
    assert not [value for name, value in Reading(text).attributes if name in ("src", "href")]


@pytest.mark.parametrize(
    "missing", [{"jobs": ()}, {"groups": ()}, {"steps": ()}, {"jobs": (), "groups": (), "steps": (), "jobs_counted": {}}]
)
def test_a_run_of_which_little_is_left_has_a_page(missing: dict[str, object]) -> None:
    reading = Reading(page(some_facts(**missing)))

    assert reading.open == []
    assert ("they go with the ack" in reading.words) == ("jobs" in missing)


def test_times_and_rewards_are_those_of_the_records() -> None:
    facts = some_facts()

    found = latencies(facts.jobs)
    assert list(found) == ["wait for INIT", "INIT", "wait for RUN", "RUN", "wait for EVAL", "EVAL", "accepted to ended"]
    assert (found["RUN"].count, found["RUN"].p50, found["RUN"].p99, found["RUN"].most) == (64, 31.0, 63.0, 63.0)
    assert reward_by_step(facts.groups, frozenset(("informative", "filtered"))) == {0: 0.0, 1: 0.1875, 2: 0.375, 3: 0.5625}
    assert reward_by_step(facts.groups, frozenset(("informative",)))[2] == 0.5


def test_rates_over_time_add_up_to_what_there_was() -> None:
    line = over_time([(float(second), 10.0) for second in range(101)])

    width = line[1][0] - line[0][0]
    assert sum(rate * width for _, rate in line) == pytest.approx(1010.0)
    assert over_time([(1.0, 1.0)]) == []


def test_distributions_of_nothing_and_of_one_value() -> None:
    assert spread([]) is None
    assert spread([math.nan, 2.0]) == spread([2.0])
    assert histogram([1.0, 1.0]) == [(1.0, 1.0, 2)]
    assert sum(count for _, _, count in histogram([0.0, 0.5, 1.0, math.nan])) == 3
    assert [number(value) for value in (0, 12_300, 0.5, math.inf, -4e6)] == ["0", "12.3k", "0.5", "-", "-4M"]
    assert line_chart({"one": [(1.0, 2.0)]}, x_label="x", y_label="y", x_ticks=[]).count("<circle") == 1

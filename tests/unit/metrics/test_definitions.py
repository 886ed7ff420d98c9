"""The page of metrics has what the code says, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ops.metrics.definitions import OF_A_NODE, OF_THE_QUEUE, PAGE, Definition, Families
from ops.metrics.queue import STANDINGS
from ops.status.trouble import ORDER
from pipeline.messages import Outcome
from pipeline.supervisor.token_fates import TokenFate
from workers.stages.measures import ENDS, MEASURES, SECONDS

TEXT = (Path(__file__).parents[3] / PAGE).read_text(encoding="utf-8")


def shown(heading: str) -> list[Definition]:
    """The rows of one part of the page."""
    part = TEXT.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (gauge|counter|histogram) \|([^|]*)\| .*\|$", part, re.MULTILINE)
    assert len(rows) == part.count("\n| `rollstream_"), "a row that cannot be read"
    return [Definition(name, kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows]


@pytest.mark.parametrize(("heading", "definitions"), [("The queue", OF_THE_QUEUE), ("A node", OF_A_NODE)])
def test_the_page_has_each_metric_with_its_type_and_labels(heading: str, definitions: tuple[Definition, ...]) -> None:
    assert shown(heading) == list(definitions)


def test_names_say_their_unit_and_no_two_are_the_same() -> None:
    every = [*OF_THE_QUEUE, *OF_A_NODE]

    assert len({each.name for each in every}) == len(every)
    for each in every:
        assert each.name.endswith("_total") == (each.kind == "counter"), each
        assert each.kind != "histogram" or each.name.endswith("_seconds"), each


def test_each_measure_of_a_worker_is_a_metric_of_its_node() -> None:
    of_workers = {
        Definition(
            f"rollstream_worker_{each.name}" + ("_total" if each.kind == "counter" else ""),
            each.kind,
            tuple(name for name, _ in each.labels),
        )
        for each in MEASURES
    }

    assert of_workers == {each for each in OF_A_NODE if each.name.startswith("rollstream_worker_")}


def test_words_of_labels_stand_on_the_page() -> None:
    outcomes = {outcome.value for outcome in Outcome}
    buckets = ", ".join(f"{bound:g}" for bound in SECONDS)

    for word in [*(end for end in ENDS if end not in outcomes), *TokenFate, *STANDINGS]:
        assert f"`{word}`" in TEXT, word
    assert f"in seconds: {buckets}." in TEXT
    assert len(ORDER) == len(set(ORDER))


def test_nothing_can_be_said_that_is_not_in_the_list() -> None:
    families = Families(OF_A_NODE)

    with pytest.raises(KeyError):
        families.say("rollstream_worker_mood", 1)
    with pytest.raises(AssertionError):
        families.say("rollstream_worker_slots", 1)
    families.say("rollstream_worker_slots", None, "run")
    assert families.text() == b""


def test_a_histogram_is_said_cumulated() -> None:
    families = Families(OF_A_NODE)

    families.say_histogram("rollstream_worker_turn_seconds", (0.5, 1.0), (2, 0, 1), 9.5)

    lines = [line for line in families.text().decode().splitlines() if not line.startswith("#")]
    assert lines == [
        'rollstream_worker_turn_seconds_bucket{le="0.5"} 2.0',
        'rollstream_worker_turn_seconds_bucket{le="1.0"} 2.0',
        'rollstream_worker_turn_seconds_bucket{le="+Inf"} 3.0',
        "rollstream_worker_turn_seconds_count 3.0",
        "rollstream_worker_turn_seconds_sum 9.5",
    ]

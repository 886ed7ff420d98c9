from __future__ import annotations

import pytest

from pipeline.messages import Outcome
from pipeline.supervisor.loading import parse_member

LINE = "ok|1.0|finished|120|300|4|1|1.3|1.4|1700-0|{why}|{components}"


def test_a_line_is_read_field_by_field() -> None:
    member = parse_member(LINE.format(why="", components='{"score":1.0,"format":0.5}'))

    assert (member.outcome, member.reward, member.stop) == (Outcome.OK, 1.0, "finished")
    assert (member.sampled_tokens, member.total_tokens) == (120, 300)
    assert (member.first_version, member.last_version) == ("1.3", "1.4")
    assert member.components == {"score": 1.0, "format": 0.5}


@pytest.mark.parametrize("components", ["", '{"a|b":1}', '{"a|{b":1}', '{"|{":1,"score":0.5}'])
@pytest.mark.parametrize("why", ["", "exit code 2 | see log", "a|b|", "{|"])
def test_a_reason_may_hold_the_separator(why: str, components: str) -> None:
    member = parse_member(LINE.format(why=why, components=components))

    assert member.reason == why
    assert bool(member.components) is bool(components)


def test_no_reward_is_none_and_not_nought() -> None:
    assert parse_member("infra_failure||||0|0|0|1|||1-0|sandbox gone|".replace("||||", "|||0|", 1)).reward is None


def test_a_component_that_was_not_a_number_is_none() -> None:
    assert parse_member(LINE.format(why="", components='{"score":null}')).components == {"score": None}


@pytest.mark.parametrize("line", ["", "ok|1.0", "fine|1.0|finished|1|1|1|1|||1-0||", "ok|one|finished|1|1|1|1|||1-0||"])
def test_a_line_that_is_none_of_ours_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_member(line)

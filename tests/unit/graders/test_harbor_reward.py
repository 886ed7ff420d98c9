"""What a reward file of Harbor says, whoever wrote it."""

import pytest

from workers.graders.harbor import reward_of
from workers.graders.harbor.reward import UnreadableReward


@pytest.mark.parametrize(
    ("as_json", "as_text", "key", "value"),
    [
        (None, "1\n", "", 1.0),
        (None, " 0.25 ", "", 0.25),
        (None, "-1", "", -1.0),
        ("0.5", "1", "", 0.5),
        ('{"reward": 1, "style": 0.5}', None, "", 1.0),
        ('{"reward": 1, "style": 0.5}', None, "style", 0.5),
        ('{"accuracy": 0.75}', None, "", 0.75),
    ],
)
def test_a_reward_is_read(as_json: str | None, as_text: str | None, key: str, value: float) -> None:
    assert reward_of(as_json, as_text, key=key).value == value


@pytest.mark.parametrize(
    ("as_json", "as_text", "key"),
    [
        (None, None, ""),
        (None, "", ""),
        (None, "passed", ""),
        (None, "nan", ""),
        ("1e999", "1", ""),
        ("[" * 5000, "1", ""),
        ('{"a": "1"}', None, ""),
        ('{"a": 1, "b": 0}', None, ""),
        ('{"reward": 1}', None, "style"),
        ("{}", None, ""),
        ("null", "1", ""),
    ],
)
def test_what_is_no_reward_is_none(as_json: str | None, as_text: str | None, key: str) -> None:
    """A `reward.json` that cannot be read is not passed over for a `reward.txt`: which of them counts would be the agent's choice."""
    with pytest.raises(UnreadableReward):
        reward_of(as_json, as_text, key=key)

"""`config show`: what a setting is, where it comes from, and what is not shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.effective_settings import effective, shown
from pipeline.errors import InvalidRequest
from pipeline.settings import QueueSettings

QUEUE = {"queue": QueueSettings}


def test_environment_goes_before_file_and_file_before_default(tmp_path: Path) -> None:
    file = tmp_path / "rollstream.toml"
    file.write_text('[queue]\nshards = 4\nnamespace = "file"\n')

    found = {setting.name: setting for setting in effective(QUEUE, file, {"ROLLSTREAM_NAMESPACE": "env"})}

    assert (found["namespace"].value, found["namespace"].origin) == ("env", "environment ROLLSTREAM_NAMESPACE")
    assert (found["shards"].value, found["shards"].origin) == ("4", f"file {file}")
    assert (found["lease_s"].value, found["lease_s"].origin) == ("30.0", "default")


def test_a_setting_that_there_is_not_is_said(tmp_path: Path) -> None:
    file = tmp_path / "rollstream.toml"
    file.write_text("[queue]\nshard = 4\n")

    with pytest.raises(InvalidRequest, match="no setting 'shard'"):
        list(effective(QUEUE, file, {}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("redis_url", "redis://user:hidden@host:6379/0"),
        ("redis_url", "redis://host:6379/0?username=me&password=hidden"),
        ("url", "unix:///s?password=hidden&db=0"),
        ("api_token", "hidden"),
        ("password", "hidden"),
    ],
)
def test_no_secret_is_shown(name: str, value: str) -> None:
    assert "hidden" not in shown(name, value)


def test_the_path_of_a_file_with_a_password_is_shown() -> None:
    assert shown("redis_password_file", "/run/secrets/redis") == "/run/secrets/redis"

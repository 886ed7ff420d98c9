"""The forms of `redis_url`, and what is no address is refused without its password being shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from pipeline.redis_address import RedisServers, SetUp, parse_redis_url
from pipeline.settings import QueueSettings

FORMS = {
    "redis://h:7000/2": RedisServers(set_up=SetUp.SINGLE, tls=False),
    "rediss://h": RedisServers(set_up=SetUp.SINGLE, tls=True),
    "unix:///tmp/s?db=3": RedisServers(set_up=SetUp.SINGLE, tls=False),
    "redis+sentinel://a:1,b,[::1]:3/main": RedisServers(
        set_up=SetUp.SENTINEL, tls=False, nodes=(("a", 1), ("b", 26379), ("::1", 3)), master="main"
    ),
    "rediss+sentinel://worker:p%40ss@a:1/my%20main/4": RedisServers(
        set_up=SetUp.SENTINEL, tls=True, nodes=(("a", 1),), master="my main", db=4, user="worker", password="p@ss"
    ),
    "redis+cluster://a:1,b": RedisServers(set_up=SetUp.CLUSTER, tls=False, nodes=(("a", 1), ("b", 6379))),
    "rediss+cluster://a/0": RedisServers(set_up=SetUp.CLUSTER, tls=True, nodes=(("a", 6379),)),
}
REFUSED = {
    "localhost:6379": "expected redis://host:port/0",
    "http://u:hunter2@h": "expected redis://host:port/0",
    "redis://u:hunter2@h:port": "the port is no number",
    "redis+sentinel://u:hunter2@a:x/main": "the port is no number",
    "redis+sentinel://u:hunter2@a:1": "the name of the master",
    "redis+sentinel://a:1/main/zero": "the number of a database",
    "redis+sentinel://a:1/main/0/1": "the number of a database",
    "redis+sentinel://a:1/main?db=1": "takes no options",
    "redis+cluster://a:1/3": "no database but 0",
    "redis+cluster://a:1,:2": "a host is missing",
}


@pytest.mark.parametrize("url", FORMS)
def test_each_form_says_where_the_servers_are(url: str) -> None:
    assert parse_redis_url(url) == FORMS[url]


@pytest.mark.parametrize("url", REFUSED)
def test_what_is_no_address_is_told_what_one_looks_like(url: str) -> None:
    with pytest.raises(ValidationError, match=REFUSED[url]) as refused:
        QueueSettings(redis_url=url)
    assert all("hunter2" not in row["msg"] for row in refused.value.errors())


def test_files_of_tls_are_for_addresses_with_tls_and_come_in_pairs() -> None:
    with pytest.raises(ValidationError, match="redis_url must begin with rediss"):
        QueueSettings(redis_url="redis://h", redis_ca_file=Path("ca"))
    with pytest.raises(ValidationError, match="go together"):
        QueueSettings(redis_url="rediss://h", redis_cert_file=Path("cert"))
    assert QueueSettings(redis_url="rediss+cluster://h", redis_ca_file=Path("ca")).redis_ca_file == Path("ca")


def test_a_user_in_the_address_and_a_password_in_a_file_are_told_apart() -> None:
    with pytest.raises(ValidationError, match="name the user in redis_user"):
        QueueSettings(redis_url="redis://worker@h", redis_password_file=Path("secret"))

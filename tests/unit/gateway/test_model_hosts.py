"""Which hosts clients may name as model servers, however an address is written."""

from __future__ import annotations

import pytest

from ops.gateway.model_hosts import ModelHosts
from ops.gateway.settings import GatewaySettings
from pipeline.errors import InvalidRequest

CONFIGURED = ("10.1.0.0/16", "192.168.7.9", "fd00::/8", "node*", "*.gpu.example")


@pytest.mark.parametrize(
    "address",
    ["http://127.0.0.1:8000", "https://localhost", "http://LocalHost:1", "http://[::1]:8000", "http://127.9.9.9", "unix:/run/model.sock"],
)
def test_this_machine_may_always_be_named(address: str) -> None:
    assert ModelHosts().may_be_named(address)
    assert ModelHosts(CONFIGURED).may_be_named(address)


@pytest.mark.parametrize(
    "address",
    [
        "http://10.1.255.1:8000",
        "http://192.168.7.9",
        "http://[fd00::7]:1",
        "http://node7:8000",
        "http://NODE7",
        "http://a.gpu.example/base",
    ],
)
def test_other_hosts_are_named_by_the_settings(address: str) -> None:
    assert ModelHosts(CONFIGURED).may_be_named(address)
    assert ModelHosts(("*",)).may_be_named(address)
    assert not ModelHosts().may_be_named(address)


@pytest.mark.parametrize(
    "address",
    [
        "http://169.254.169.254/latest",
        "http://10.2.0.1",
        "http://[::ffff:10.2.0.1]",
        "http://0.0.0.0:6379",
        "http://[::]:6379",
        "http://node7.evil.example",
        "http://a.b.gpu.example",
        "http://gpu.example",
        "http://a.gpu.example.evil.example",
        "http://localhost.evil.example",
    ],
)
def test_what_only_looks_like_an_allowed_host_is_another_one(address: str) -> None:
    assert not ModelHosts(CONFIGURED).may_be_named(address)
    assert ModelHosts(("*",)).may_be_named(address)


@pytest.mark.parametrize(
    "address",
    ["http://127.1", "http://2130706433", "http://0x7f.0.0.1", "http://0xa9fea9fe", "http://evil.example\\.gpu.example", "http://node%2e7"],
)
def test_what_two_readers_could_take_for_two_hosts_is_none(address: str) -> None:
    """Some resolvers read numbers as IPv4 addresses, and some readers end a host at a backslash."""
    assert not ModelHosts(("*", *CONFIGURED)).may_be_named(address)


def test_an_ipv4_address_in_the_clothes_of_ipv6_is_itself() -> None:
    assert ModelHosts(("10.1.0.0/16",)).may_be_named("http://[::ffff:10.1.0.1]:8000")
    assert ModelHosts().may_be_named("http://[::ffff:127.0.0.1]:8000")


@pytest.mark.parametrize("entry", ["10.1.0.1/16", "http://node7", "node7:8000", "", "node 7", "10.1.0.0/40", "nöde"])
def test_settings_that_name_no_host_are_refused(entry: str) -> None:
    with pytest.raises(InvalidRequest, match="expected a host such as node7"):
        GatewaySettings.load(None, model_hosts=(entry,))

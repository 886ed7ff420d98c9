"""The list of hosts of a sandbox with a network: how people write it, and what it lets through."""

from __future__ import annotations

import ipaddress

import pytest

from workers.sandbox.network.requests import BadRequest, read_request
from workers.sandbox.network.rules import NetworkRules, carried, is_own

RULES = NetworkRules.parse(["pypi.org", "*.pythonhosted.org:443", "10.1.0.0/16", "192.0.2.7:8080", "[2001:db8::1]:443"])


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("pypi.org", 443),
        ("PyPI.org.", 80),
        ("files.pythonhosted.org", 443),
        ("10.1.2.3", 80),
        ("192.0.2.7", 8080),
        ("2001:db8::1", 443),
        ("::ffff:10.1.2.3", 443),
    ],
)
def test_what_is_on_the_list_may_be_reached(host: str, port: int) -> None:
    assert RULES.refuse_name(host, port) == ""


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("pypi.org", 22),
        ("evil-pypi.org", 443),
        ("pypi.org.evil.net", 443),
        ("pythonhosted.org", 443),
        ("files.pythonhosted.org", 80),
        ("127.0.0.1", 80),
        ("10.2.0.1", 80),
        ("192.0.2.7", 80),
        ("::1", 443),
        ("localhost", 80),
        ("0x7f000001", 80),
        ("2130706433", 80),
    ],
)
def test_what_is_not_on_the_list_is_refused_and_named(host: str, port: int) -> None:
    refused = RULES.refuse_name(host, port)

    assert host.lower() in refused
    assert "not on the list" in refused


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.2.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "224.0.0.1", "::1", "fe80::1", "fd00::1", "::ffff:127.0.0.1",
     "64:ff9b::7f00:1", "2002:7f00:1::", "::127.0.0.1"],
)  # fmt: skip
def test_an_allowed_name_does_not_lead_into_the_node_or_its_network(address: str) -> None:
    assert "not of the public internet" in RULES.refuse_address(ipaddress.ip_address(address), 443, by_name=True)


def test_an_allowed_name_leads_to_public_addresses_and_to_private_ones_that_are_listed() -> None:
    assert RULES.refuse_address(ipaddress.ip_address("151.101.0.223"), 443, by_name=True) == ""
    assert RULES.refuse_address(ipaddress.ip_address("10.1.9.9"), 443, by_name=True) == ""


def test_an_address_that_carries_another_is_judged_as_that() -> None:
    assert carried(ipaddress.ip_address("::ffff:8.8.8.8")) == ipaddress.ip_address("8.8.8.8")
    assert carried(ipaddress.ip_address("2606:4700::1")) == ipaddress.ip_address("2606:4700::1")


@pytest.mark.parametrize("pattern", ["", "*", "http://pypi.org", "pypi.org:0", "pypi.org:https", "a b", "*.*.org", "pypi.org/simple"])
def test_an_entry_that_means_nothing_is_refused_when_the_list_is_read(pattern: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        NetworkRules.parse([pattern])


def test_a_tunnel_is_read() -> None:
    request = read_request(b"CONNECT pypi.org:443 HTTP/1.1\r\nHost: pypi.org:443\r\n\r\n")

    assert (request.host, request.port, request.is_tunnel) == ("pypi.org", 443, True)


def test_a_request_is_passed_on_without_what_was_meant_for_the_proxy_and_for_the_host_that_was_judged() -> None:
    head = (
        b"GET http://pypi.org:8080/simple?a=1#x HTTP/1.1\r\nHost: elsewhere\r\nProxy-Authorization: Basic c2VjcmV0\r\nAccept: */*\r\n\r\n"
    )

    request = read_request(head)

    assert (request.host, request.port) == ("pypi.org", 8080)
    assert request.forward == b"GET /simple?a=1 HTTP/1.1\r\nHost: pypi.org:8080\r\nAccept: */*\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"GET /path HTTP/1.1\r\n\r\n",
        b"CONNECT pypi.org HTTP/1.1\r\n\r\n",
        b"CONNECT pypi.org:99999 HTTP/1.1\r\n\r\n",
        b"CONNECT a@b:443 HTTP/1.1\r\n\r\n",
        b"GET http://user@pypi.org/ HTTP/1.1\r\n\r\n",
        b"GET https://pypi.org/ HTTP/1.1\r\n\r\n",
        b"GET http://pypi.org/ HTTP/1.1\r\nA: b\nHost: c\r\n\r\n",
        b"GET http://pypi.org/ HTTP/1.1\r\n folded\r\n\r\n",
        b"\xff\xfe\r\n\r\n",
        b"\r\n\r\n",
    ],
)
def test_what_is_no_request_of_a_proxy_is_refused(head: bytes) -> None:
    with pytest.raises(BadRequest):
        read_request(head)


def test_an_address_that_an_interface_of_this_node_has_is_its_own() -> None:
    assert is_own(ipaddress.ip_address("127.0.0.1"))
    assert not is_own(ipaddress.ip_address("192.0.2.1"))


@pytest.mark.parametrize("address", ["fec0::1", "64:ff9b:1::a00:1", "169.254.169.254", "fd00:ec2::254"])
def test_addresses_that_are_a_sites_own_are_not_public_in_any_version_of_python(address: str) -> None:
    assert "not of the public internet" in NetworkRules.parse(["some.test"]).refuse_address(ipaddress.ip_address(address), 80, by_name=True)

"""What may be the address of a model server."""

from __future__ import annotations

import pytest

from pipeline.inference_pool import wrong_address


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "https://engine.example/a/", "http://[::1]:8000", "unix:/run/llm.sock"])
def test_addresses(url: str) -> None:
    assert wrong_address(url) == ""


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8000",
        "ftp://h",
        "http://",
        "http://h:0",
        "http://h:x",
        "http://h /",
        "http://h\x00",
        "http://\u00e9",
        "unix:",
        "unix:/",
        "http:h",
        5,
    ],
)
def test_no_addresses(url: object) -> None:
    assert "http://host:port" in wrong_address(url)


def test_a_password_is_not_repeated() -> None:
    why = [wrong_address("http://user:hunter22@h:1"), wrong_address("http://user:hunter22@h:99999")]

    assert all(why)
    assert "hunter22" not in str(why)

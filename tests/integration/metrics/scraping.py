"""Scrapes, and reads what came as Prometheus would."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families


async def get(url: str, *headers: str, method: str = "GET", host: str | None = None) -> tuple[int, dict[str, str], str]:
    """Status, headers and body of one request."""
    where = urlsplit(url)
    assert where.hostname is not None
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        writer.write("\r\n".join((f"{method} {where.path} HTTP/1.1", f"Host: {host or where.netloc}", *headers, "", "")).encode())
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    head, _, body = answer.decode().partition("\r\n\r\n")
    first, *lines = head.split("\r\n")
    return int(first.split(" ")[1]), {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}, body


def samples(text: str | bytes) -> Mapping[str, float]:
    """Series -> value, labels sorted: `name{a="b",c="d"}`, or `name` without any."""
    found = {}
    for family in text_string_to_metric_families(text.decode() if isinstance(text, bytes) else text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found

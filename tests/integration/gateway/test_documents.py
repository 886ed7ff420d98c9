"""The page of routes and the page that a gateway shows say what it does."""

from __future__ import annotations

import re

import pytest

from ops.gateway.original_params import LIMITS, READ_APART, SAMPLING
from ops.gateway.original_request import SOURCES, ProcessRequest
from tests.e2e.conftest import ROOT
from tests.e2e.documents import INLINE, cells, first_column, section
from tests.integration.gateway.service import PARAMS, Service, instance, read_text

pytestmark = pytest.mark.one_server

PAGE = ROOT / "docs/reference/gateway.md"
CODE = re.compile(r"(?<![\d,])([2-5]\d\d)(?![\d,])")
BRACKETS = re.compile(r"\([^)]*\)")
ANYWHERE = {"401", "403"}
"""Codes that any route has; the page says them once."""


async def test_the_page_of_routes_has_each_route_with_its_role_and_codes(service: Service) -> None:
    document = (await service.client.get("/openapi.json")).body
    served = {
        f"{method.upper()} {path}": (operation.get("x-role", "anybody"), set(operation["responses"]) - ANYWHERE)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    rows = [row for heading in ("Routes of the original", "Our own") for row in cells(section(PAGE, heading)) if row[0] != "route"]

    assert {route: role for route, role, _ in rows} == {route: role for route, (role, _) in served.items()}
    told = {route: set(CODE.findall(BRACKETS.sub("", answers))) for route, _, answers in rows}
    assert {route: codes ^ served[route][1] for route, codes in told.items() if codes != served[route][1]} == {}


async def test_the_page_that_it_shows_has_each_route_and_loads_nothing(service: Service) -> None:
    page = await read_text(service, "/docs")
    document = (await service.client.get("/openapi.json")).body

    assert all(f"<code>{path}</code>" in page for path in document["paths"])
    assert not re.search(r"<script|<link|<img|src=|url\(|//", page)


async def test_the_page_of_routes_has_each_field_of_a_result(service: Service, fleet: str) -> None:
    await service.client.post("/add_llm_server", {"address": fleet})
    await service.client.post("/start")
    result = await service.client.post("/process", {"instance": instance(), "sampling_params": PARAMS, "return_tokens": True})
    shown = [name for cell in cells(section(PAGE, "Result of /process")) if cell[0] != "field" for name in cell[0].split(", ")]

    assert sorted(shown) == sorted(result.body)
    assert all(f"`{name}`" in section(PAGE, "Result of /process") for name in result.body["timing"])


async def test_the_page_of_routes_has_each_metric(service: Service) -> None:
    text = await read_text(service, "/metrics")
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    rows = {row[0]: row[1] for row in cells(section(PAGE, "Metrics")) if row[0] != "name"}

    assert set(rows) == {name for name in kinds if not name.endswith("_created")}
    for what in re.findall(r'^rollstream_gateway_now\{what="(\w+)"\}', text, re.MULTILINE):
        assert what in rows["rollstream_gateway_now"].replace(",", "").split(), what


def test_the_page_of_routes_has_each_field_and_parameter_of_a_request() -> None:
    part = section(PAGE, "Request of /process")
    columns = first_column(part)
    fields, parameters = columns[: len(ProcessRequest.model_fields)], columns[len(ProcessRequest.model_fields) :]

    assert fields == list(ProcessRequest.model_fields)
    assert {word.partition(":")[0] for word in parameters} == {*SAMPLING, *LIMITS, *READ_APART, "sampling_params"}
    assert set(SOURCES) <= set(INLINE.findall(part))

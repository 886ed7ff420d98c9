"""What go and Jest write for machines."""

from __future__ import annotations

import json

import pytest

from workers.graders.swe.logs import parse_log
from workers.graders.swe.structured import ends_of, go_log, jest_ends, with_json


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("go test ./...", "go test -json ./..."),
        ("go test -v ./a && go test -v ./b", "go test -json -v ./a && go test -json -v ./b"),
        ("go test -json ./...", "go test -json ./..."),
        ("make test", "make test"),
    ],
)
def test_go_is_asked_for_events(command: str, expected: str) -> None:
    assert with_json(command, "go", "/tmp/x") == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("npx jest src/a.test.js", "npx jest src/a.test.js --json --outputFile=/x"),
        ("npm test", "npm test -- --json --outputFile=/x"),
        ("npm run unit -- --verbose", "npm run unit -- --verbose --json --outputFile=/x"),
        ("yarn jest a && echo done", "yarn jest a --json --outputFile=/x && echo done"),
    ],
)
def test_jest_is_asked_for_a_report(command: str, expected: str) -> None:
    assert with_json(command, "jest", "/x") == expected


def test_events_become_the_log_that_go_prints() -> None:
    lines = ("=== RUN   TestA\n", "--- PASS: TestA (0.00s)\n", "=== RUN   TestB\n", "--- FAIL: TestB (0.00s)\n", "FAIL\n")
    events = [json.dumps({"Action": "output", "Package": "m", "Output": line}) for line in lines]
    said = "\n".join(["# m/y", *events, json.dumps({"Action": "fail", "Package": "m"}), ""]).encode()

    log, is_whole = go_log(said)

    assert is_whole
    assert dict(parse_log("go", log.decode()).statuses) == {"TestA": "PASSED", "TestB": "FAILED"}


def test_the_events_of_go_themselves() -> None:
    """What a test prints is not how it ended, nor is an end of a test that never began one."""
    events = [
        {"Action": "run", "Package": "m", "Test": "TestA"},
        {"Action": "output", "Package": "m", "Test": "TestA", "Output": "--- PASS: TestB (0.00s)\n"},
        {"Action": "pass", "Package": "m", "Test": "TestA"},
        {"Action": "pass", "Package": "m", "Test": "TestB"},
        {"Action": "run", "Package": "m", "Test": "TestC"},
        {"Action": "run", "Package": "n", "Test": "TestA"},
        {"Action": "fail", "Package": "n", "Test": "TestA"},
        {"Action": "fail", "Package": "n"},
    ]

    assert ends_of("go", "\n".join(map(json.dumps, events)).encode()) == {"TestA": "FAILED", "TestC": "NO_END"}


def test_half_an_event_is_no_whole_log() -> None:
    assert go_log(b'{"Action": "output", "Outp') == (b"", False)


def test_a_report_of_jest() -> None:
    report = {
        "testResults": [
            {"assertionResults": [{"ancestorTitles": ["sum"], "title": "adds", "status": "passed"}]},
            {
                "assertionResults": [
                    {"ancestorTitles": [], "title": "alone", "status": "pending"},
                    {"ancestorTitles": ["sum"], "title": "adds", "status": "failed"},
                ]
            },
        ]
    }

    assert jest_ends(json.dumps(report).encode()) == {"sum > adds": "FAILED", "alone": "SKIPPED"}


@pytest.mark.parametrize("report", [b"", b"[]", b'{"testResults": [{}]}', b"nonsense"])
def test_what_is_no_report(report: bytes) -> None:
    assert jest_ends(report) is None

"""What the recorder makes of lines, and the worker of what it says: each rule by itself, since a forged run breaks several at once."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

import pytest

from workers.graders.swe.canaries import Canaries
from workers.graders.swe.channel import Session, session_of
from workers.graders.swe.reporters import recorder

SAYS: Any = recorder.Session  # without types: it runs under old Pythons
CANARIES = Canaries("t", "", (True, False))
HELLO = {"e": "hello", "framework": "pytest"}
FINISH = {"e": "finish", "exit": 0, "counts": {}, "shown": {}, "verbose": 0, "parallel": False, "leaves": False}
ENDED = {"e": "canaries", "ends": ["failed", "passed"]}
BYE = {"e": "bye"}


def begin(test: str) -> dict[str, Any]:
    return {"e": "begin", "t": [test]}


def end(test: str, status: str = "PASSED") -> dict[str, Any]:
    return {"e": "end", "t": [test], "s": status}


RUN = (HELLO, begin("a"), end("a"), begin("b"), end("b"), ENDED, FINISH, BYE)


def heard(*events: Mapping[str, Any]) -> Session:
    """The session of a reporter that says this, in this order."""
    session = SAYS(None, 1, 0.0)
    for number, event in enumerate(events):
        body = b"%d %s" % (number, json.dumps(event).encode())
        session.hear(hmac.new(session.key.encode(), body, hashlib.sha256).hexdigest().encode() + b" " + body + b"\n")
    return session_of(session.said(), CANARIES)


def without(event: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [each for each in RUN if each is not event]


def test_a_run_from_hello_to_bye_is_believed() -> None:
    session = heard(*RUN)

    assert session.tampering == ()
    assert session.ends == {"a": "PASSED", "b": "PASSED"}
    assert session.finish == FINISH


def test_a_process_that_did_not_end_by_itself_is_told() -> None:
    assert heard(*without(BYE)).tampering == ("the run came to its end, and its process did not end by itself",)


def test_but_not_one_that_the_repository_ends_itself() -> None:
    assert heard(*RUN[:-2], {**FINISH, "leaves": True}).tampering == ()


def test_a_run_that_was_broken_off_needs_no_last_word() -> None:
    assert heard(*RUN[:4]).tampering == ()


def test_an_end_that_never_came_to_tests_of_ours_is_told() -> None:
    assert heard(*without(ENDED)).tampering == ("the run came to its end, and not to tests of ours",)


def test_tests_of_ours_that_could_not_be_asked_are_not() -> None:
    assert heard(*RUN[:-3], {**ENDED, "ends": None}, FINISH, BYE).tampering == ()


def test_tests_of_ours_that_passed_are_told() -> None:
    assert heard(*RUN[:-3], {**ENDED, "ends": ["passed", "passed"]}, FINISH, BYE).tampering == ("1 tests of ours passed that must fail",)


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ((HELLO, begin("a"), begin("b"), end("b"), end("a"), ENDED, FINISH, BYE), "b began while another test ran"),
        ((HELLO, begin("a"), end("a"), end("b"), ENDED, FINISH, BYE), "b ended, and had not begun"),
        ((*RUN, begin("c"), end("c"), ENDED, FINISH), "something was said after the last word"),
    ],
)
def test_what_no_runner_says_in_that_order_is_told(events: tuple[Mapping[str, Any], ...], told: str) -> None:
    assert heard(*events).tampering == (told,)


def test_several_processes_run_several_tests_at_once() -> None:
    parallel = {**FINISH, "parallel": True}

    assert heard(HELLO, begin("a"), begin("b"), end("b"), end("a"), {**ENDED, "ends": None}, parallel, BYE).tampering == ()


def test_a_test_that_runs_again_and_a_file_that_breaks_are_in_order() -> None:
    assert heard(HELLO, end("x.py", "ERROR"), begin("a"), begin("a"), end("a"), ENDED, FINISH, BYE).tampering == ()


def test_a_line_of_another_number_or_key_is_no_line() -> None:
    session = SAYS(None, 1, 0.0)
    body = b"0 " + json.dumps(HELLO).encode()

    session.hear(hmac.new(b"guessed", body, hashlib.sha256).hexdigest().encode() + b" " + body + b"\n")
    session.hear(hmac.new(session.key.encode(), b"7" + body[1:], hashlib.sha256).hexdigest().encode() + b" 7" + body[1:] + b"\n")

    assert session.said()["stray"] == 2
    assert session.framework == ""

"""Bodies, forms, tokens, positions and settings: what is taken and what is refused, without a server."""

from __future__ import annotations

import base64
import math
from pathlib import Path

import msgpack
import numpy as np
import orjson
import pytest

from ops.gateway.access import Access, Guard
from ops.gateway.answers import JSON, MSGPACK, form_of, plain
from ops.gateway.bodies import parse_object
from ops.gateway.events import KINDS, as_event, kinds_of, position_of
from ops.gateway.refusals import Refusal, refusal_of
from ops.gateway.settings import GatewaySettings
from ops.token_files import read_tokens, token_in
from pipeline.causes import Cause, Reason
from pipeline.errors import BrokerUnreachable, InvalidRequest, QueueFull, RunClosed, StaleIncarnation
from pipeline.testing.builders import a_trajectory
from trainer_client import ClientClosed, WaitTimeout


def refused(error: Exception) -> dict[str, object]:
    body = refusal_of(error).response().body
    assert isinstance(body, bytes)
    found: dict[str, object] = orjson.loads(body)
    return found


@pytest.mark.parametrize(
    ("error", "status", "word"),
    [
        (InvalidRequest("expected 1", field="n"), 422, "invalid"),
        (QueueFull("memory", 2.5), 503, "queue_full"),
        (StaleIncarnation("r", 1, "2"), 503, "fenced"),
        (RunClosed("r", "cancelled"), 503, "run_closed"),
        (ClientClosed("r"), 503, "draining"),
        (BrokerUnreachable("redis://user:hunter2@h:1 is away"), 503, "no_redis"),
        (WaitTimeout("job", 1.0, [Reason(Cause.NO_WORKER, "nobody works")]), 504, "timeout"),
        (ZeroDivisionError("secret thing"), 500, "internal"),
    ],
)
def test_each_error_becomes_one_shape(error: Exception, status: int, word: str) -> None:
    found = refused(error)

    assert (refusal_of(error).status, found["error"]) == (status, word)
    assert isinstance(found["detail"], str)
    assert "hunter2" not in found["detail"]
    assert "secret thing" not in found["detail"]


def test_when_to_come_back_is_a_header_too() -> None:
    response = refusal_of(QueueFull("memory", 2.5)).response()

    assert response.headers["Retry-After"] == "3"


def test_a_refusal_cannot_bend_the_head_of_its_answer() -> None:
    """Whatever a client sent comes back inside JSON alone."""
    response = Refusal(422, "invalid", "got 'a\r\nX-Evil: 1'", field="x\r\ny").response()

    assert "X-Evil" not in response.headers
    assert isinstance(response.body, bytes)
    assert b"\r\n" not in response.body


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"1", b'"a"', b"null", b"\xff", b"{}{}", b'{"a": NaN}'])
def test_what_is_no_object_is_a_400(raw: bytes) -> None:
    with pytest.raises(Refusal) as error:
        parse_object(raw)

    assert error.value.status == 400


def test_an_integer_stays_what_it_is() -> None:
    """A parser that makes a float of it would change an answer without a word."""
    assert parse_object(b'{"n": %d, "x": 0.12345678901234567890}' % 2**70) == {"n": 2**70, "x": 0.12345678901234568}


def test_a_version_is_read_and_not_passed_on() -> None:
    assert parse_object(b'{"schema_version": 1, "a": 2}') == {"a": 2}
    for version, word in ((b"2", "newer_schema"), (b"true", "invalid"), (b'"1"', "invalid"), (b"0", "invalid")):
        with pytest.raises(Refusal) as error:
            parse_object(b'{"schema_version": ' + version + b"}")
        assert error.value.error == word


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("*/*", JSON),
        ("", JSON),
        ("application/msgpack", MSGPACK),
        ("text/html, application/x-msgpack", JSON),
        ("application/x-msgpack;q=1", MSGPACK),
    ],
)
def test_the_form_is_the_client_s_choice(accept: str, form: str) -> None:
    assert form_of(accept) == form


def test_arrays_come_out_of_msgpack_bit_for_bit() -> None:
    trajectory = a_trajectory()
    segment = trajectory.segments[0]

    found = msgpack.unpackb(msgpack.packb(plain(trajectory)))["segments"][0]

    for name, dtype in (("token_ids", "<u4"), ("sampled_mask", "u1"), ("logprobs", "<f4")):
        assert found[name]["dtype"] == dtype
        assert np.frombuffer(found[name]["data"], dtype).tobytes() == getattr(segment, name).tobytes()


def test_a_missing_logprob_is_null_in_json() -> None:
    segment = a_trajectory().segments[0]
    found = orjson.loads(orjson.dumps(segment, option=orjson.OPT_SERIALIZE_NUMPY))

    assert [lp is None for lp in found["logprobs"]] == [math.isnan(float(lp)) for lp in segment.logprobs]


def test_tokens_are_found_in_both_schemes() -> None:
    basic = base64.b64encode(b"user:to:ken").decode()

    assert [token_in(header) for header in ("Bearer abc", "bearer  abc ", f"Basic {basic}", "", "Bearer", "Digest x", "Basic ???")] == [
        b"abc",
        b"abc",
        b"to:ken",
        None,
        None,
        None,
        None,
    ]


def test_a_role_may_what_those_below_it_may(tmp_path: Path) -> None:
    for name in ("trainer", "read"):
        (tmp_path / name).write_text(f"{name}-0123456789abcdef\n")
    guard = Guard.of(GatewaySettings(host="0.0.0.0", trainer_token_file=tmp_path / "trainer", read_token_file=tmp_path / "read"))

    guard.check(Access.TRAINER, {"Authorization": "Bearer trainer-0123456789abcdef"})
    guard.check(Access.READ, {"Authorization": "Bearer read-0123456789abcdef"})
    guard.check(Access.OPEN, {})
    for asked, headers, status in (
        (Access.OPS, {"Authorization": "Bearer read-0123456789abcdef"}, 403),
        (Access.READ, {"Authorization": "Bearer read-0123456789abcde"}, 401),
        (Access.READ, {"Authorization": "Bearer é"}, 401),
        (Access.READ, {}, 401),
    ):
        with pytest.raises(Refusal) as error:
            guard.check(asked, headers)
        assert error.value.status == status


def test_a_token_that_two_roles_share_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("shared-0123456789abcdef\n")
    (tmp_path / "b").write_text("shared-0123456789abcdef\n")

    with pytest.raises(InvalidRequest, match="give each role its own"):
        Guard.of(GatewaySettings(trainer_token_file=tmp_path / "a", ops_token_file=tmp_path / "b"))
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_tokens(tmp_path)


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({}, True),
        ({"Host": "127.0.0.1:8006"}, True),
        ({"Host": "[::1]:8006"}, True),
        ({"Host": "localhost"}, True),
        ({"Host": "evil.example"}, False),
        ({"Host": "127.0.0.1.evil.example"}, False),
        ({"Host": "["}, False),
        ({"Host": "localhost", "Origin": "null"}, False),
        ({"Host": "localhost:3000", "Origin": "http://localhost:3000"}, True),
        ({"Host": "localhost", "Origin": "http://localhost:3000"}, False),
        ({"Host": "localhost", "Origin": "http://evil.example"}, False),
    ],
)
def test_pages_of_others_are_kept_out_without_tokens(headers: dict[str, str], passes: bool) -> None:
    guard = Guard.of(GatewaySettings())
    if passes:
        guard.check(Access.TRAINER, headers)
        return
    with pytest.raises(Refusal) as error:
        guard.check(Access.READ, headers)
    assert error.value.status == 403


def test_a_page_of_another_site_gets_no_use_of_a_password_that_a_browser_keeps(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("trainer-0123456789abcdef\n")
    guard = Guard.of(GatewaySettings(host="0.0.0.0", trainer_token_file=tmp_path / "t"))
    headers = {"Host": "node7:8006", "Authorization": "Basic " + base64.b64encode(b"a:trainer-0123456789abcdef").decode()}

    guard.check(Access.TRAINER, headers)
    guard.check(Access.TRAINER, {**headers, "Origin": "http://node7:8006"})
    for origin in ("http://evil.example", "null", "http://node7.evil.example"):
        with pytest.raises(Refusal) as error:
            guard.check(Access.TRAINER, {**headers, "Origin": origin})
        assert error.value.error == "foreign_origin"


def test_positions_and_kinds_are_checked() -> None:
    assert (position_of("0"), position_of("17-3"), kinds_of(""), kinds_of("job,step")) == ("0-0", "17-3", KINDS, ("job", "step"))
    for wrong in ("", "-", "17", "1-2\n", "+", "(17-3", "1" * 30 + "-0"):
        with pytest.raises(Refusal):
            position_of(wrong)


def test_an_event_is_one_whatever_is_in_it() -> None:
    """A line break in a field cannot end its event, since data are JSON."""
    fields = [b"kind", b"job", b"job", b"r.a", b"run", b"r", b"out", b"ok", b"why", b"a\n\nevent: step\ndata: {}"]

    event = as_event("17-0", fields, KINDS)

    assert event is not None
    assert event.count(b"\n\n") == 1
    assert event.count(b"event: ") == 1 or b'"reason":"a\\n\\nevent: step' in event
    assert as_event("17-0", fields, ("step",)) is None
    assert as_event("17-0", [b"noise", b"\xff"], KINDS) is None


@pytest.mark.parametrize(
    "fields",
    [{"run": "no/run"}, {"sources": ("nonsense",)}, {"max_bodies_bytes": 2048, "max_body_bytes": 4096}, {"port": 70_000}, {"timeout_s": 0}],
)
def test_settings_that_cannot_be_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="gateway"):
        GatewaySettings.load(None, **fields)


def test_rows_of_tables_come_with_nan_and_it_is_nothing() -> None:
    """Python's writer makes NaN of a missing value, and the original's server reads it; elsewhere it is no JSON."""
    raw = b'{"instance": {"hint": NaN, "text": "NaN", "big": 3}}'

    assert parse_object(raw, missing_is_null=True) == {"instance": {"hint": None, "text": "NaN", "big": 3}}
    for body, missing_is_null in ((raw, False), (b'{"a": Infinity, "b": NaN}', True), (b'{"a": NaN, "b": "\\ud800"}', True)):
        with pytest.raises(Refusal) as refusal:
            parse_object(body, missing_is_null=missing_is_null)
        assert (refusal.value.status, refusal.value.error) == (400, "not_json")


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("application/msgpack;q=0, application/json", JSON),
        ("application/json;q=0.1, application/msgpack", MSGPACK),
        ("application/msgpack;q=0.5, */*;q=0.6", JSON),
        ("application/msgpack;q=nonsense", MSGPACK),
        (",,", JSON),
    ],
)
def test_the_form_is_the_one_that_is_wanted_most(accept: str, form: str) -> None:
    assert form_of(accept) == form


def test_a_form_of_weight_zero_is_not_accepted() -> None:
    with pytest.raises(Refusal, match="expected Accept"):
        form_of("application/msgpack;q=0")

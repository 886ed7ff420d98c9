"""What a cell shows, from its messages."""

from __future__ import annotations

from workers.sandbox.kernel_output import CellOutput


def test_streams_values_and_displays_are_shown_in_their_order() -> None:
    output = CellOutput(1000)
    output.take("stream", {"name": "stdout", "text": "out "})
    output.take("stream", {"name": "stderr", "text": "err"})
    output.take("display_data", {"data": {"text/plain": "shown", "image/png": "A" * 1234}})
    output.take("execute_result", {"data": {"text/plain": "7"}})

    assert output.shown == "out err\nshown\n[not shown: image/png, 925 bytes]\n7\n"
    assert (output.stdout, output.result) == ("out ", "7")


def test_the_error_comes_from_its_message_or_else_from_the_reply() -> None:
    told, lost = CellOutput(1000), CellOutput(1000)
    reply = {"status": "error", "ename": "ValueError", "evalue": "bad", "traceback": ["\x1b[31mValueError\x1b[0m: bad"]}
    told.take("error", {key: reply[key] for key in ("ename", "evalue", "traceback")})
    told.take_reply(reply)
    lost.take_reply(reply)

    for output in (told, lost):
        assert (output.error_name, output.error_text, output.shown) == ("ValueError", "ValueError: bad", "ValueError: bad\n")


def test_pages_of_help_come_with_the_reply() -> None:
    output = CellOutput(1000)

    output.take_reply({"status": "ok", "payload": [{"source": "page", "data": {"text/plain": "\x1b[1mHelp\x1b[0m"}}]})

    assert output.shown == "Help\n"


def test_output_is_bounded_and_valid() -> None:
    output = CellOutput(100)
    for _ in range(1000):
        output.take("stream", {"name": "stdout", "text": "x\udcff" * 10})
    output.take("execute_result", {"data": {"text/plain": "\ud800"}})

    assert len(output.shown) < 200
    assert output.truncated_bytes > 0
    assert output.shown.encode()
    assert output.stdout.encode()
    assert output.result == "\\ud800"


def test_what_has_no_text_is_named() -> None:
    output = CellOutput(100)

    output.take("display_data", {"data": {"application/json": {}}})

    assert output.shown == "[not shown: application/json]\n"

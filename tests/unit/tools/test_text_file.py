"""Text that goes back as it came: whatever the bytes, an edit changes what it names and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.tools.edit_history import EditHistory
from workers.tools.nearest_lines import nearest, why_not_found
from workers.tools.text_file import NotEncodable, NotText, TextFile

PIECES = st.lists(st.sampled_from(["a", "b c", "\t", "\n", "\r\n", "\r", "\x0c", "\u2028", "\u00e9", "\U0001f600"]), max_size=30)


@given(PIECES, st.sampled_from([b"", b"\xef\xbb\xbf"]))
def test_text_goes_back_byte_for_byte(pieces: list[str], start: bytes) -> None:
    content = start + "".join(pieces).encode()

    file = TextFile.of(content)

    assert file.encoded(file.text) == content


@given(st.binary(max_size=200))
def test_any_bytes_go_back_or_are_refused(content: bytes) -> None:
    try:
        file = TextFile.of(content)
    except NotText:
        return

    assert file.encoded(file.text) == content


@given(PIECES, PIECES, PIECES)
def test_a_replacement_keeps_what_is_around_it(before: list[str], old: list[str], after: list[str]) -> None:
    """Places are counted in the text as the model sees it, where each line end is one character."""
    left, middle, right = "".join(before), "".join(old), "".join(after)
    if left.endswith("\r") or middle.endswith("\r"):
        left, middle = left + "x", middle + "x"  # else a line end would form over the seam
    file = TextFile(left + middle + right)
    start = len(left.replace("\r\n", "\n"))

    changed = file.replaced(start, start + len(middle.replace("\r\n", "\n")), "NEW")

    assert changed == left + "NEW" + right


def test_lines_are_those_of_grep() -> None:
    assert TextFile("a\x0cb\u2028c\n\nd").lines == ["a\x0cb\u2028c", "", "d"]
    assert TextFile("a\r\nb\r\n").lines == ["a", "b"]
    assert TextFile("").lines == []


@pytest.mark.parametrize("content", [b"\0", b"\xff\xfea\0", bytes(range(1, 32)) + b"\xff"])
def test_what_is_no_text_is_refused(content: bytes) -> None:
    with pytest.raises(NotText):
        TextFile.of(content)


def test_a_character_that_the_file_cannot_have_is_named() -> None:
    with pytest.raises(NotEncodable, match="iconv"):
        TextFile.of(b"caf\xe9").encoded("\u20ac")
    with pytest.raises(NotEncodable, match="no character"):
        TextFile.of(b"a").encoded("\ud800")


def test_an_undo_is_of_the_file_and_of_what_was_left_in_it() -> None:
    history = EditHistory()
    history.note("/a", b"1", b"2")
    history.note("/b", b"x", b"y")

    last = history.last("/a")

    assert last is not None
    assert last.before == b"1"
    assert last.left(b"2")
    assert not last.left(b"3")
    history.forget(last)
    assert history.last("/a") is None
    assert history.last("/b") is not None


def test_a_history_forgets_the_oldest_first_and_stays_within_its_bound() -> None:
    history = EditHistory(max_bytes=100)
    for number in range(10):
        history.note(f"/{number}", bytes(30), b"")

    assert [history.last(f"/{number}") is not None for number in range(10)] == [False] * 7 + [True] * 3


def test_the_most_similar_place_comes_first_and_its_neighbours_not_at_all() -> None:
    lines = ["import os", "", "def area(width, height):", "    return width * height", "", "def perimeter(width, height):", "    return 2"]

    assert nearest(lines, ["def area(width, heigth):", "    return width * height"])[0] == 3
    assert nearest(lines, ["???"]) == []


@pytest.mark.parametrize(("lines", "old"), [([], "a\nb"), (["x"], "a\nb\nc\nd"), (["a"], "\n"), ([""], "  ")])
def test_help_is_there_for_files_shorter_than_what_is_looked_for(lines: list[str], old: str) -> None:
    assert why_not_found(lines, old)

"""The tool `str_replace_editor` on real files: an edit changes what it names and nothing else, and a refusal says what to do instead."""

from __future__ import annotations

import pytest

from tests.contract.sandbox.rooms import Room
from tests.contract.sandbox.tools import Edit, editor
from workers.sandbox import Sandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def sandbox(room: Room) -> Sandbox:
    return room.sandbox


@pytest.fixture
def edit(sandbox: Sandbox) -> Edit:
    return editor(sandbox)


async def content(sandbox: Sandbox, name: str) -> bytes:
    return await sandbox.read_file(name)


async def test_a_file_is_shown_with_line_numbers(sandbox: Sandbox, edit: Edit) -> None:
    await sandbox.write_file("a.txt", b"one\n\ttab\n\x0cform feed\nlast")

    whole = await edit("view", "a.txt")
    part = await edit("view", "a.txt", view_range=[2, -1])

    assert whole.text.split("\n")[1:] == [
        "     1\tone",
        "     2\t\ttab",
        "     3\t\x0cform feed",
        "     4\tlast",
        "[The last line has no line end.]",
    ]
    assert whole.text.startswith(f"{sandbox.workdir}/a.txt, lines 1-4 of 4:")
    assert part.text.split("\n")[1] == "     2\t\ttab"
    assert not whole.is_error


@pytest.mark.parametrize("view_range", [[0, 2], [3, 2], [9, 10], [1], [1, 2, 3], ["1", "2"], [1.5, 2]])
async def test_a_range_that_is_none_is_refused_and_told(sandbox: Sandbox, edit: Edit, view_range: list[object]) -> None:
    await sandbox.write_file("a.txt", b"1\n2\n3\n4\n")

    answer = await edit("view", "a.txt", view_range=view_range)

    assert answer.is_error
    assert "first line (1 to 4)" in answer.text


async def test_a_look_that_finds_no_room_can_be_gone_on_with(sandbox: Sandbox) -> None:
    edit = editor(sandbox, max_view_bytes=1000)
    await sandbox.write_file("a.txt", "".join(f"line {number}\n" for number in range(1, 501)).encode())

    first = await edit("view", "a.txt")
    note = first.text.rpartition("\n")[2]
    start = int(note.split("[")[2].split(",")[0])
    second = await edit("view", "a.txt", view_range=[start, 500])

    assert len(first.text) < 1200
    assert second.text.split("\n")[1] == f"{start:6}\tline {start}"


async def test_a_line_of_a_megabyte_is_shown_by_its_beginning(sandbox: Sandbox, edit: Edit) -> None:
    await sandbox.write_file("a.min.js", b"x" * 1_000_000 + b"\nshort\n")

    answer = await edit("view", "a.min.js")

    assert "[998,000 more characters in this line]" in answer.text
    assert answer.text.endswith("     2\tshort")


async def test_a_folder_is_shown_two_levels_deep_without_hidden_entries(sandbox: Sandbox, edit: Edit) -> None:
    for name in ("b/inner/deep/x", "b/y.py", ".git/config", "b/.hidden", "a.txt"):
        await sandbox.write_file(f"d/{name}", b"")
    await sandbox.exec("ln -s a.txt d/link; mkfifo d/pipe", timeout_s=10)

    answer = await edit("view", "d")

    top = f"{sandbox.workdir}/d/"
    assert answer.text.split("\n") == [top, "  a.txt", "  b/", "    inner/", "    y.py", "  link (link)", "  pipe (no regular file)"]


async def test_a_huge_folder_is_cut_and_says_so(sandbox: Sandbox, edit: Edit) -> None:
    await sandbox.exec("mkdir d && cd d && seq 1 2000 | xargs touch", timeout_s=20)

    answer = await edit("view", "d")

    assert len(answer.text.split("\n")) == 501
    assert "[1,501 entries or more are left out." in answer.text


async def test_the_one_place_is_replaced_and_shown(sandbox: Sandbox, edit: Edit) -> None:
    await sandbox.write_file("a.py", b"def f():\n    return 1\n\n\ndef g():\n    return 2\n")

    answer = await edit("str_replace", "a.py", old_str="    return 2", new_str="    x = 3\n    return x")

    assert await content(sandbox, "a.py") == b"def f():\n    return 1\n\n\ndef g():\n    x = 3\n    return x\n"
    assert "     6\t    x = 3\n     7\t    return x" in answer.text


BYTES_KEPT = {
    "CRLF": (b"one\r\ntwo\r\nthree\r\n", "two\nthree", "2\n3", b"one\r\n2\r\n3\r\n"),
    "CRLF given": (b"one\r\ntwo\r\n", "one\r\ntwo", "1\r\n2", b"1\r\n2\r\n"),
    "both line ends": (b"a\r\nb\nc\r\nd\n", "c", "1\n2", b"a\r\nb\n1\r\n2\r\nd\n"),
    "a stretch of LF among CRLF": (b"a\r\nb\r\nc\r\nd\ne\n", "d\ne", "1\n2", b"a\r\nb\r\nc\r\n1\n2\n"),
    "no line end at the end": (b"a\nb", "b", "c", b"a\nc"),
    "tabs": (b"all:\n\techo hi\n", "\techo hi", "\techo ho", b"all:\n\techo ho\n"),
    "byte order mark": (b"\xef\xbb\xbfone\ntwo\n", "one", "1", b"\xef\xbb\xbf1\ntwo\n"),
    "latin-1": (b"caf\xe9 = 1\nna\xefve = 2\n", "= 2", "= \u00fc", b"caf\xe9 = 1\nna\xefve = \xfc\n"),
    "form feeds and separators": ("a\x0c\nb\u2028c\x85d\n".encode(), "c", "C", "a\x0c\nb\u2028C\x85d\n".encode()),
    "lone CR": (b"a\rb\nc\n", "b", "B", b"a\rB\nc\n"),
    "patterns are text": (b"x = a.*b\n", "a.*b", r"\1\g<0>", b"x = \\1\\g<0>\n"),
    "deleted": (b"a\nb\nc\n", "b\n", "", b"a\nc\n"),
    "everything": (b"all", "all", "", b""),
}


@pytest.mark.parametrize("case", BYTES_KEPT)
async def test_a_replacement_leaves_every_other_byte(sandbox: Sandbox, edit: Edit, case: str) -> None:
    before, old, new, after = BYTES_KEPT[case]
    await sandbox.write_file("f", before)

    answer = await edit("str_replace", "f", old_str=old, new_str=new)

    assert not answer.is_error, answer.text
    assert await content(sandbox, "f") == after
    await edit("undo_edit", "f")
    assert await content(sandbox, "f") == before


async def test_several_places_are_refused_with_all_their_lines(sandbox: Sandbox, edit: Edit) -> None:
    await sandbox.write_file("a.py", b"x = 1\ny = 2\nx = 1\n\nx = 1; x = 1\n")

    answer = await edit("str_replace", "a.py", old_str="x = 1", new_str="x = 2")

    assert answer.is_error
    assert "4 times" in answer.text
    assert "at lines 1, 3, 5." in answer.text
    assert (await content(sandbox, "a.py")).count(b"x = 1") == 4


async def test_places_that_overlap_are_several(sandbox: Sandbox, edit: Edit) -> None:
    await sandbox.write_file("a", b"ababa\n")

    assert "2 times" in (await edit("str_replace", "a", old_str="aba", new_str="x")).text


NOT_FOUND = {
    "blanks": ("if a:\n\treturn\n", "if a:\n    return", r"'\treturn'"),
    "line numbers": ("def f():\n    pass\n", "     1\tdef f():\n     2\t    pass", "Leave them out"),
    "a typing error": ("alpha = 1\ndef compute(value):\n    return value + 1\n", "def compute(valve):", "     2\tdef compute(value):"),
    "old content": ("a\nb\ntotal = price * amount\nc\n", "total = price * amount + tax", "     3\ttotal = price * amount"),
    "nothing like it": ("a\nb\n", "zzz qqq", "Nothing in the file is like it."),
    "an empty file": ("", "x", "Nothing in the file is like it."),
}


@pytest.mark.parametrize("case", NOT_FOUND)
async def test_a_text_that_is_not_there_is_refused_with_the_likely_mistake(sandbox: Sandbox, edit: Edit, case: str) -> None:
    text, old, hint = NOT_FOUND[case]
    await sandbox.write_file("a.py", text.encode())

    answer = await edit("str_replace", "a.py", old_str=old, new_str="new")

    assert answer.is_error
    assert "Nothing was changed" in answer.text
    assert hint in answer.text
    assert await content(sandbox, "a.py") == text.encode()


async def test_help_for_a_text_that_is_not_there_is_quick_in_a_large_file(sandbox: Sandbox, edit: Edit) -> None:
    """Comparing each line letter by letter took minutes in files of some megabytes."""
    await sandbox.write_file("big.py", b"".join(b"value_%d = compute(%d, other=%d)\n" % (n, n, n) for n in range(60_000)))

    answer = await edit("str_replace", "big.py", old_str="value_777 = compute(777, other=778)", new_str="", timeout_s=10)

    assert "value_777 = compute(777, other=777)" in answer.text


@pytest.mark.parametrize(
    ("before", "line", "new", "after"),
    [
        (b"a\nb\n", 0, "x", b"x\na\nb\n"),
        (b"a\nb\n", 1, "x\ny\n", b"a\nx\ny\nb\n"),
        (b"a\nb\n", 2, "x", b"a\nb\nx\n"),
        (b"a\nb", 2, "x\n", b"a\nb\nx"),
        (b"a\nb", 1, "x", b"a\nx\nb"),
        (b"a\r\nb\r\n", 1, "x\ny", b"a\r\nx\r\ny\r\nb\r\n"),
        (b"", 0, "x", b"x\n"),
        (b"a\n", 1, "", b"a\n\n"),
    ],
)
async def test_lines_are_inserted_after_a_line(sandbox: Sandbox, edit: Edit, before: bytes, line: int, new: str, after: bytes) -> None:
    await sandbox.write_file("f", before)

    answer = await edit("insert", "f", insert_line=line, new_str=new)

    assert not answer.is_error, answer.text
    assert await content(sandbox, "f") == after


@pytest.mark.parametrize("line", [-1, 3])
async def test_a_line_that_is_not_there_is_refused_with_those_that_are(sandbox: Sandbox, edit: Edit, line: int) -> None:
    await sandbox.write_file("f", b"a\nb\n")

    answer = await edit("insert", "f", insert_line=line, new_str="x")

    assert answer.is_error
    assert "it can be 0 to 2" in answer.text


async def test_a_file_is_made_with_its_folders_and_never_over_another(sandbox: Sandbox, edit: Edit) -> None:
    made = await edit("create", "new/deep/a.py", file_text="x = 1\n")
    again = await edit("create", "new/deep/a.py", file_text="other")
    folder = await edit("create", "new/deep", file_text="other")

    assert "was created: 1 line." in made.text
    assert again.is_error
    assert "exists" in again.text
    assert folder.is_error
    assert await content(sandbox, "new/deep/a.py") == b"x = 1\n"


async def test_edits_are_undone_latest_first_and_a_made_file_goes(sandbox: Sandbox, edit: Edit) -> None:
    await edit("create", "f", file_text="1\n")
    await edit("str_replace", "f", old_str="1", new_str="2")
    await edit("insert", "f", insert_line=1, new_str="3")

    seen = []
    for _ in range(3):
        seen.append(await content(sandbox, "f"))
        assert not (await edit("undo_edit", "f")).is_error

    assert seen == [b"2\n3\n", b"2\n", b"1\n"]
    assert "f" not in [entry.name for entry in await sandbox.list()]
    assert "no edit" in (await edit("undo_edit", "f")).text


async def test_what_another_tool_changed_is_not_undone(sandbox: Sandbox, edit: Edit) -> None:
    await edit("create", "f", file_text="1\n")
    await edit("str_replace", "f", old_str="1", new_str="2")
    await sandbox.exec("echo more >> f", timeout_s=10)

    answer = await edit("undo_edit", "f")

    assert answer.is_error
    assert "changed by other means" in answer.text
    assert await content(sandbox, "f") == b"2\nmore\n"


REFUSED_FILES = {
    "binary": (b"\x7fELF\0\0\0", "it is binary", "xxd"),
    "noise": (bytes(range(1, 256)) * 40, "it is binary", "strings"),
    "UTF-16": ("caf\u00e9\n".encode("utf-16"), "UTF-16", "iconv"),
    "huge": (b"line\n" * 900_000, "too large", "sed -n"),
}


@pytest.mark.parametrize("case", REFUSED_FILES)
@pytest.mark.parametrize("command", ["view", "str_replace", "insert"])
async def test_a_file_that_is_no_text_or_too_large_is_refused_with_what_to_do(
    sandbox: Sandbox, edit: Edit, case: str, command: str
) -> None:
    held, why, instead = REFUSED_FILES[case]
    await sandbox.write_file("f", held)

    answer = await edit(command, "f", old_str="a", new_str="b", insert_line=0)

    assert answer.is_error
    assert why in answer.text
    assert instead in answer.text
    assert len(answer.text) < 500
    assert (await sandbox.exec(["wc", "-c", "f"], timeout_s=10)).stdout_text.split()[0] == str(len(held))


async def test_a_character_that_the_encoding_lacks_is_refused(sandbox: Sandbox, edit: Edit) -> None:
    await sandbox.write_file("f", b"caf\xe9\n")

    answer = await edit("str_replace", "f", old_str="caf", new_str="\u20ac")
    surrogate = await edit("create", "g", file_text="\ud800")

    assert answer.is_error
    assert "not UTF-8" in answer.text
    assert surrogate.is_error
    surrogate.text.encode()
    assert await content(sandbox, "f") == b"caf\xe9\n"


async def test_a_link_is_followed_and_stays_a_link(sandbox: Sandbox, edit: Edit) -> None:
    await sandbox.exec("mkdir d; echo one > d/real; ln -s d/real link", timeout_s=10)

    answer = await edit("str_replace", "link", old_str="one", new_str="two")

    assert not answer.is_error, answer.text
    assert await content(sandbox, "d/real") == b"two\n"
    assert {entry.name: entry.kind for entry in await sandbox.list()}["link"] == "link"


async def test_a_program_stays_executable(sandbox: Sandbox, edit: Edit) -> None:
    await sandbox.write_file("run.sh", b"#!/bin/sh\necho one\n", executable=True)

    await edit("str_replace", "run.sh", old_str="one", new_str="two")

    assert (await sandbox.exec(["./run.sh"], timeout_s=10)).stdout == b"two\n"


TOLD = {
    "a relative path": ("view", "f.txt", "Did you mean {workdir}/f.txt?"),
    "a home path": ("view", "~/f.txt", "Did you mean {workdir}/f.txt?"),
    "nothing there": ("view", "{workdir}/mian.py", "In {workdir} there is: main.py."),
    "no folder there": ("view", "{workdir}/no/such/file", "There is no folder {workdir}/no/such either."),
    "a file in a file": ("view", "{workdir}/main.py/x", "not a folder"),
    "a folder to edit": ("str_replace", "{workdir}", "is a folder"),
    "a pipe": ("view", "{workdir}/pipe", "no regular file"),
    "a NUL": ("view", "{workdir}/a\0b", "There is no"),
}


@pytest.mark.parametrize("case", TOLD)
async def test_a_path_that_cannot_be_used_is_told(sandbox: Sandbox, edit: Edit, case: str) -> None:
    command, path, hint = TOLD[case]
    await sandbox.write_file("main.py", b"x\n")
    await sandbox.exec("mkfifo pipe", timeout_s=10)

    answer = await edit(command, path.format(workdir=sandbox.workdir), as_is=True, old_str="a", new_str="b")

    assert answer.is_error
    assert hint.format(workdir=sandbox.workdir) in answer.text


@pytest.mark.parametrize(
    ("command", "missing"), [("create", "file_text"), ("str_replace", "old_str"), ("insert", "insert_line"), ("insert", "new_str")]
)
async def test_a_missing_argument_is_named(sandbox: Sandbox, edit: Edit, command: str, missing: str) -> None:
    await sandbox.write_file("f", b"a\n")
    given: dict[str, object] = {"file_text": "x", "old_str": "a", "insert_line": 0, "new_str": "y"}
    del given[missing]

    answer = await edit(command, "f", as_is=False, timeout_s=10, **given)

    assert answer.is_error
    assert missing in answer.text

"""Patches as data: what is read is written again, and nothing else; what must not be applied is found in it."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.graders.swe.patch_apply import fault, is_inside, leads_out
from workers.graders.swe.patch_file import BadPatch, FilePatch, Hunk, quoted, read_patch, write_patch

names = st.binary(min_size=1, max_size=12).map(lambda name: name.replace(b"/", b"-").replace(b"\0", b"0"))
paths = st.lists(names, min_size=1, max_size=3).map(b"/".join)
texts = st.binary(max_size=12).map(lambda text: text.replace(b"\n", b"-"))


@st.composite
def hunks(draw: st.DrawFn) -> Hunk:
    lines = draw(st.lists(st.tuples(st.sampled_from([b" ", b"-", b"+"]), texts).map(b"".join), min_size=1, max_size=6))
    changed = draw(st.sampled_from([b"+", b"-"])) + draw(texts)
    return Hunk(draw(st.integers(1, 999)), draw(st.integers(1, 999)), b"", (*lines, changed))


def a_patch(path: bytes, hunk: Hunk) -> FilePatch:
    return FilePatch(path, path, hunks=(hunk,))


@given(st.lists(st.tuples(paths, hunks()), min_size=1, max_size=4))
def test_what_was_written_is_read_again_whatever_names_and_lines_are(files: list[tuple[bytes, Hunk]]) -> None:
    patches = [a_patch(path, hunk) for path, hunk in files]

    again = read_patch(write_patch(patches))

    assert [(patch.old, patch.new, patch.hunks) for patch in again] == [(patch.old, patch.new, patch.hunks) for patch in patches]


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(text: bytes) -> None:
    try:
        patches = read_patch(b"diff --git a/f b/f\n--- a/f\n+++ b/f\n" + text)
    except BadPatch:
        return
    written = write_patch(patches)
    assert write_patch(read_patch(written)) == written


@given(paths)
def test_a_quoted_name_is_on_one_line_and_plain(path: bytes) -> None:
    written = quoted(path)

    assert b"\n" not in written
    assert written.isascii()


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        (b"diff --git a/x b/x\nsimilarity index 1%\nrename from x\nrename to ../y\n--- a/x\n+++ b/x\n", [b"x", b"../y"]),
        (b"diff --git a/x b/x\nnew file mode 100644\n--- /dev/null\n+++ b/z\n@@ -0,0 +1 @@\n+1\n", [b"z"]),
        (b"diff --git a/x b/x\nrename to y\nold mode 100644\nnew mode 100755\n", None),
        (b"diff --git a/x b/x\ncopy from x\ncopy to .git/y\n", [b"x", b".git/y"]),
    ],
)
def test_a_file_is_named_once_and_written_under_that_name(text: bytes, paths: list[bytes] | None) -> None:
    """The head of a patch names a file up to six times. Programs believe different ones, so that a patch checked by one and applied by the
    other wrote elsewhere. Here one name is taken, the one git takes, and the head is written anew from it."""
    if paths is None:
        with pytest.raises(BadPatch):
            read_patch(text)
        return
    (patch,) = read_patch(text)

    assert list(patch.paths) == paths
    assert read_patch(write_patch([patch]))[0].paths == patch.paths


@pytest.mark.parametrize("path", [b"", b"/x", b"../x", b"a/../x", b"a//x", b"./x", b"a/.", b".git", b"a/.GIT/x", b"a\0b"])
def test_no_path_outside_or_of_git_is_inside(path: bytes) -> None:
    assert not is_inside(path)


@pytest.mark.parametrize("path", [b"x", b".gitignore", b".github/x", b"a/..b", b"-x", b"a b/\xff", b"git/.gitmodules"])
def test_plain_paths_are_inside(path: bytes) -> None:
    assert is_inside(path)


@pytest.mark.parametrize(
    ("link", "target", "leads"),
    [
        (b"l", b"x", False),
        (b"d/l", b"../x", False),
        (b"d/e/l", b"../../x", False),
        (b"l", b"..", True),
        (b"d/l", b"../..", True),
        (b"d/l", b"e/../../../x", True),
        (b"l", b"/etc", True),
        (b"l", b"", True),
        (b"l", b".git/config", True),
        (b"d/l", b"../.git", True),
        (b"l", b"d/../.git", True),
    ],
)
def test_where_a_link_leads(link: bytes, target: bytes, leads: bool) -> None:
    assert leads_out(link, target) is leads


def test_a_link_made_by_a_patch_is_not_written_through_by_the_same_patch() -> None:
    link = b"diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+d\n\\ No newline at end of file\n"
    through = b"diff --git a/l/x b/l/x\nnew file mode 100644\n--- /dev/null\n+++ b/l/x\n@@ -0,0 +1 @@\n+x\n"

    assert fault(read_patch(link)) is None
    assert fault(read_patch(link + through)) == ("link", "'l/x' would be written through the link 'l'")
    assert fault(read_patch(through + link)) is not None


def test_reading_takes_time_in_proportion_to_the_patch() -> None:
    """An empty line of a hunk looked at all empty lines behind it, so that a megabyte of them took minutes."""
    hostile = [
        b"diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1,999999 +1,999999 @@\n+x\n" + b"\n" * 400_000 + b"z\n",
        b'diff --git "a/' + b"\\" * 400_000,
        b"--- a/f\n+++ b/f\n" * 50_000,
        b"diff --git a/f b/f\nGIT binary patch\nliteral 1\n" * 20_000,
    ]
    for text in hostile:
        before = time.process_time()
        with contextlib.suppress(BadPatch):
            read_patch(text)
        assert time.process_time() - before < 10

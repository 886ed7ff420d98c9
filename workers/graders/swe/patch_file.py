"""A patch as data: read from what `git diff` or `diff -u` writes, checked, and written anew.

    diff --git a/f.txt b/f.txt
    index 7898192..4cce7f6 100644
    --- a/f.txt
    +++ b/f.txt
    @@ -1,2 +1,2 @@
     a
    -b
    \\ No newline at end of file
    +c

Invariants
    - What is written holds nothing but what was read: sections, names, modes, lines of hunks, data of binary files. Mail around a patch,
      comments and unknown headers go. So a program that reads it can find no file in it that was not checked.
    - The numbers in a hunk's head say how many lines it has; where they do not fit, its lines end at the first that can be none.
    - An empty line in a hunk is a context line that lost its blank on the way.
    - Reading is linear.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

_HUNK = re.compile(rb"@@ -([0-9]+)(?:,([0-9]+))? \+([0-9]+)(?:,([0-9]+))? @@(.*)")
_MODE = re.compile(rb"(old mode|new mode|deleted file mode|new file mode) ([0-7]{6})")
_RENAME = re.compile(rb"(rename|copy) (from|to) (.+)")
_SIMILARITY = re.compile(rb"(similarity|dissimilarity) index [0-9]{1,3}%")
_INDEX = re.compile(rb"index [0-9a-f]{4,64}\.\.[0-9a-f]{4,64}(?: [0-7]{6})?")
_NO_DATA = re.compile(rb"(?:Binary files|Files) .* differ")
_BINARY = b"GIT binary patch"
_BINARY_HEAD = re.compile(rb"(?:literal|delta) [0-9]+")
_BINARY_LINE = re.compile(rb"[A-Za-z][0-9A-Za-z!#$%&()*+;<=>?@^_`{|}~-]+")
_NO_LINE_END = b"\\ No newline at end of file"
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v", b'"': b'"', b"\\": b"\\"}
_ESCAPED = re.compile(rb'\\([0-7]{3}|[ntrabfv"\\])')
_TO_ESCAPE = re.compile(rb'[\x00-\x1f\x7f-\xff"\\]')
_LINK_MODE = b"120000"
_SUBMODULE_MODE = b"160000"


class BadPatch(Exception):
    """It cannot be read; says where."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines that change together."""

    old_start: int
    new_start: int
    about: bytes
    """What stands behind the second `@@`."""
    lines: tuple[bytes, ...]
    """With their first character, without line ends."""

    def written(self) -> list[bytes]:
        old = sum(line[:1] in (b" ", b"-") for line in self.lines)
        new = sum(line[:1] in (b" ", b"+") for line in self.lines)
        return [b"@@ -%d,%d +%d,%d @@%s" % (self.old_start, old, self.new_start, new, self.about), *self.lines]


@dataclass(frozen=True, slots=True)
class FilePatch:
    """What becomes of one file."""

    old: bytes | None
    """Its path before, without `a/`; None = it is new."""
    new: bytes | None
    """Its path after, without `b/`; None = it is deleted."""
    headers: tuple[bytes, ...] = ()
    """Modes, renames and the hashes of both contents, as lines."""
    hunks: tuple[Hunk, ...] = ()
    binary: tuple[bytes, ...] = ()
    """Data of a binary file, as lines."""
    lacks_data: bool = False
    """It is binary, and the patch only says so."""
    modes: frozenset[bytes] = frozenset()

    @property
    def path(self) -> bytes:
        path = self.new if self.new is not None else self.old
        assert path is not None
        return path

    @property
    def paths(self) -> tuple[bytes, ...]:
        return tuple(dict.fromkeys(path for path in (self.old, self.new) if path is not None))

    @property
    def is_link(self) -> bool:
        return _LINK_MODE in self.modes

    @property
    def is_submodule(self) -> bool:
        return _SUBMODULE_MODE in self.modes

    def link_target(self) -> bytes | None:
        """Where the link leads that this makes; None when it makes none."""
        if not self.is_link or self.new is None:
            return None
        return b"\n".join(line[1:] for hunk in self.hunks for line in hunk.lines if line[:1] in (b"+", b" "))

    def written(self) -> list[bytes]:
        old, new = self.old or self.path, self.new or self.path
        lines = [b"diff --git %s %s" % (_on_git_line(b"a/" + old), _on_git_line(b"b/" + new)), *self.headers]
        if self.hunks:
            lines.append(b"--- " + (b"/dev/null" if self.old is None else _on_file_line(b"a/" + old)))
            lines.append(b"+++ " + (b"/dev/null" if self.new is None else _on_file_line(b"b/" + new)))
            for hunk in self.hunks:
                lines += hunk.written()
        return [*lines, *self.binary]

    def with_line_ends(self, *, crlf: bool) -> FilePatch:
        """The same with all lines of its hunks ended so."""
        return replace(self, hunks=tuple(replace(hunk, lines=_with_line_ends(hunk.lines, crlf=crlf)) for hunk in self.hunks))


def write_patch(files: Sequence[FilePatch]) -> bytes:
    """As text that `git apply` and GNU patch read."""
    return b"".join(line + b"\n" for file in files for line in file.written())


def read_patch(patch: bytes) -> list[FilePatch]:
    """All files of a patch, in order.

    Raises:
        BadPatch: it has a line where none of its kind can be, or a file without a name.
    """
    return _Reader(patch).files()


def quoted(path: bytes) -> bytes:
    """As git writes it: in quotes with escapes when it has what would be read otherwise."""
    if not _TO_ESCAPE.search(path):
        return path
    return b'"' + _TO_ESCAPE.sub(lambda found: b"\\" + (_SHORT.get(found[0]) or b"%03o" % found[0][0]), path) + b'"'


_SHORT = {value: key for key, value in _ESCAPES.items()}


def _on_file_line(path: bytes) -> bytes:
    written = quoted(path)
    return written + b"\t" if b" " in written and written == path else written  # the tab ends a name that has blanks


def _on_git_line(path: bytes) -> bytes:
    """Always in quotes when it has a blank: git itself does not write them for that, and cannot tell ` /a` twice apart then."""
    written = quoted(path)
    return b'"' + written + b'"' if b" " in written and written == path else written


def _unquoted(name: bytes) -> bytes:
    return _ESCAPED.sub(lambda found: _ESCAPES.get(found[1]) or bytes([int(found[1], 8) & 0xFF]), name[1:-1])


def _with_line_ends(lines: Sequence[bytes], *, crlf: bool) -> tuple[bytes, ...]:
    ended = []
    for place, line in enumerate(lines):
        if line.startswith(b"\\"):
            ended.append(line)
            continue
        has_no_end = lines[place + 1 : place + 2] and lines[place + 1].startswith(b"\\")
        bare = line.removesuffix(b"\r")
        ended.append(bare + b"\r" if crlf and not has_no_end else bare)
    return tuple(ended)


@dataclass(slots=True)
class _Draft:
    """A file that is being read."""

    names: tuple[bytes, bytes] | None = None
    """From `diff --git`, with their first parts."""
    old: bytes | None = None
    new: bytes | None = None
    has_file_lines: bool = False
    headers: list[bytes] = field(default_factory=list)
    renamed: dict[bytes, bytes] = field(default_factory=dict)
    modes: set[bytes] = field(default_factory=set)
    is_new: bool = False
    is_deleted: bool = False
    hunks: list[Hunk] = field(default_factory=list)
    binary: list[bytes] = field(default_factory=list)
    lacks_data: bool = False

    def done(self, where: int) -> FilePatch:
        old: bytes | None
        new: bytes | None
        if self.renamed:  # they alone count, for git too
            if self.renamed.keys() != {b"from", b"to"}:
                raise BadPatch(f"the file that ends at line {where} is renamed by half")
            old, new = self.renamed[b"from"], self.renamed[b"to"]
        elif self.has_file_lines:
            old, new = self.old, self.new
            if old is not None and new is not None:
                old = new
        elif self.names is not None:
            old = new = _stripped(self.names[1], where)
        else:
            old = new = None
        if self.is_new and not self.renamed:
            old = None
        if self.is_deleted and not self.renamed:
            new = None
        if old is None and new is None:
            raise BadPatch(f"the file that ends at line {where} has no name")
        return FilePatch(old, new, tuple(self.headers), tuple(self.hunks), tuple(self.binary), self.lacks_data, frozenset(self.modes))


class _Reader:
    def __init__(self, patch: bytes) -> None:
        self._lines = patch.split(b"\n")
        if self._lines and not self._lines[-1]:
            self._lines.pop()
        self._at = 0
        self._files: list[FilePatch] = []
        self._draft: _Draft | None = None
        self._blank_until = 0

    def files(self) -> list[FilePatch]:
        while self._at < len(self._lines):
            line = self._lines[self._at].removesuffix(b"\r")
            if line.startswith(b"diff --git "):
                self._finish()
                self._draft = _Draft(names=_git_names(line.removeprefix(b"diff --git "), self._at + 1))
                self._at += 1
            elif line.startswith(b"--- ") and self._follows(b"+++ "):
                self._file_lines(line)
            elif line.startswith(b"@@ -") and self._draft is not None and self._draft.has_file_lines:
                self._hunk(line)
            elif self._draft is not None:
                self._header(line)
            else:
                self._at += 1
        self._finish()
        return self._files

    def _follows(self, begin: bytes) -> bool:
        return self._at + 1 < len(self._lines) and self._lines[self._at + 1].startswith(begin)

    def _finish(self) -> None:
        if self._draft is not None:
            self._files.append(self._draft.done(self._at))
        self._draft = None

    def _file_lines(self, line: bytes) -> None:
        if self._draft is None or self._draft.has_file_lines:
            self._finish()
            self._draft = _Draft()
        plus = self._lines[self._at + 1].removesuffix(b"\r")
        old, new = _file_name(line[4:], self._at + 1), _file_name(plus[4:], self._at + 2)
        self._draft.has_file_lines = True
        self._draft.old = None if old is None else _stripped(old, self._at + 1)
        self._draft.new = None if new is None else _stripped(new, self._at + 2)
        if old is None and not self._draft.is_new:
            self._draft.is_new = True
            self._draft.headers.append(b"new file mode 100644")
        if new is None and not self._draft.is_deleted:
            self._draft.is_deleted = True
            self._draft.headers.append(b"deleted file mode 100644")
        self._at += 2

    def _header(self, line: bytes) -> None:
        draft = self._draft
        assert draft is not None
        self._at += 1
        if mode := _MODE.fullmatch(line):
            draft.headers.append(line)
            draft.modes.add(mode[2])
            draft.is_new |= mode[1] == b"new file mode"
            draft.is_deleted |= mode[1] == b"deleted file mode"
        elif renamed := _RENAME.fullmatch(line):
            name = renamed[3]
            draft.renamed[renamed[2]] = _unquoted(name) if name.startswith(b'"') and name.endswith(b'"') else name
            draft.headers.append(b"%s %s %s" % (renamed[1], renamed[2], quoted(draft.renamed[renamed[2]])))
        elif _SIMILARITY.fullmatch(line) or _INDEX.fullmatch(line):
            draft.headers.append(line)
            if line.startswith(b"index ") and line[-7:-6] == b" ":
                draft.modes.add(line[-6:])
        elif line == _BINARY:
            self._binary()
        elif _NO_DATA.fullmatch(line):
            draft.lacks_data = True
        elif line.startswith(b"@@ -"):
            raise BadPatch(f"line {self._at}: a hunk without the lines that name its file")

    def _binary(self) -> None:
        assert self._draft is not None
        data = [_BINARY]
        for _ in range(2):  # forwards, then backwards; the second may be missing
            if self._at >= len(self._lines) or not _BINARY_HEAD.fullmatch(head := self._lines[self._at].removesuffix(b"\r")):
                break
            data.append(head)
            self._at += 1
            while self._at < len(self._lines) and _BINARY_LINE.fullmatch(line := self._lines[self._at].removesuffix(b"\r")):
                data.append(line)
                self._at += 1
            data.append(b"")
            if self._at < len(self._lines) and not self._lines[self._at].removesuffix(b"\r"):
                self._at += 1
        if len(data) < 3:
            self._draft.lacks_data = True
        else:
            self._draft.binary = data

    def _hunk(self, line: bytes) -> None:
        assert self._draft is not None
        head = _HUNK.fullmatch(line)
        if head is None:
            raise BadPatch(f"line {self._at + 1}: no head of a hunk")
        starts, counts = (int(head[1][:9]), int(head[3][:9])), [int((head[2] or b"1")[:9]), int((head[4] or b"1")[:9])]
        self._at += 1
        lines: list[bytes] = []
        while self._at < len(self._lines) and (counts != [0, 0] or self._lines[self._at].startswith(b"\\")):
            body = self._lines[self._at]
            mark = body[:1]
            if not body or body == b"\r":
                if self._is_rest_empty():
                    break
                body, mark = b" " + body, b" "
            if mark == b"\\":
                lines.append(_NO_LINE_END)
            elif mark in (b" ", b"-", b"+") and not self._begins_another():
                counts = [max(0, counts[0] - (mark != b"+")), max(0, counts[1] - (mark != b"-"))]
                lines.append(body)
            else:
                break
            self._at += 1
        if not any(body[:1] in (b"+", b"-") for body in lines):
            raise BadPatch(f"line {self._at}: a hunk that changes nothing")
        self._draft.hunks.append(Hunk(*starts, head[5], tuple(lines)))

    def _begins_another(self) -> bool:
        """Lines of a file's head inside of a hunk whose numbers are too high."""
        line = self._lines[self._at]
        return (
            line.startswith(b"--- a/")
            and self._follows(b"+++ b/")
            and self._lines[self._at + 2 : self._at + 3] != []
            and (self._lines[self._at + 2].startswith(b"@@ -"))
        )

    def _is_rest_empty(self) -> bool:
        """Empty lines at the end of the text, or before another file, belong to no hunk whose numbers are too high."""
        if self._at >= self._blank_until:  # else it is known for the stretch of empty lines that this one is in
            end = self._at
            while end < len(self._lines) and not self._lines[end].strip():
                end += 1
            self._blank_until = end
        return self._blank_until == len(self._lines) or self._lines[self._blank_until].startswith(b"diff --git ")


def _git_names(text: bytes, where: int) -> tuple[bytes, bytes] | None:
    """Both names of a `diff --git` line; None when they cannot be told apart, which the lines behind must do then."""
    if text.startswith(b'"'):
        end = _closing_quote(text)
        first, rest = text[: end + 1], text[end + 2 :]
        if end < 0 or text[end + 1 : end + 2] != b" ":
            raise BadPatch(f"line {where}: a name without its closing quote")
        return _unquoted(first), _unquoted(rest) if rest.startswith(b'"') else rest
    if text.endswith(b'"'):
        at = text.find(b' "')
        return (text[:at], _unquoted(text[at + 1 :])) if at > 0 else None
    middle = len(text) // 2
    first, second = text[:middle], text[middle + 1 :]
    if len(text) % 2 and text[middle : middle + 1] == b" " and first.partition(b"/")[2] == second.partition(b"/")[2]:
        return first, second
    parts = text.split(b" ")
    return (parts[0], parts[1]) if len(parts) == 2 else None


def _closing_quote(text: bytes) -> int:
    at = 1
    while at < len(text):
        if text[at : at + 1] == b'"':
            return at
        at += 2 if text[at : at + 1] == b"\\" else 1
    return -1


def _file_name(text: bytes, where: int) -> bytes | None:
    """The name of a `---` or `+++` line; None for `/dev/null`."""
    if text.startswith(b'"'):
        end = _closing_quote(text)
        if end < 0:
            raise BadPatch(f"line {where}: a name without its closing quote")
        return _unquoted(text[: end + 1])
    name = text.partition(b"\t")[0]  # behind a tab stands a time, or nothing where the name has blanks
    return None if name == b"/dev/null" else name


def _stripped(name: bytes, where: int) -> bytes:
    """Without its first part (`a/`, `b/`)."""
    first, found, rest = name.partition(b"/")
    if not found or not rest:
        raise BadPatch(f"line {where}: the name {first.decode(errors='replace')!r} has no part before it, such as a/")
    return rest

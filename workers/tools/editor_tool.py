"""The tool `str_replace_editor`: look at files and folders, make files, change them in one place at a time, take a change back.

1. An edit changes what it names and nothing else (`text_file.py`): line ends, encoding, mode and the missing end of a last line stay.
2. `str_replace` needs one place. None, or several, is told with what helps to write it better: the likeliest mistake, or all line numbers.
3. What cannot be handled is refused with what to do instead: binary and huge files, relative paths, existing files in `create`.
4. `undo_edit` takes back this tool's edits only, latest first, and never over something that was changed since by other means.
5. Every path is the sandbox's; what it may not touch is told as an error, and only a failed sandbox is raised.
"""

from __future__ import annotations

import asyncio
import difflib
import posixpath
from collections.abc import Mapping
from typing import ClassVar

from pipeline.messages import Json
from workers.sandbox.base import Sandbox
from workers.sandbox.errors import SandboxFileError
from workers.tools.base import ToolResult
from workers.tools.edit_history import EditHistory
from workers.tools.nearest_lines import why_not_found
from workers.tools.notices import notice_lines
from workers.tools.text_file import NotEncodable, NotText, TextFile
from workers.tools.text_view import around, numbered, tree_lines

MAX_FILE_BYTES = 4 * 1024 * 1024
"""Sources are far smaller; what is larger is data, for which the shell has better tools."""
MAX_VIEW_BYTES = 32 * 1024
"""Of one look; more would be cut in tokens anyway, in the middle, and a look that ends can be gone on with."""
MAX_TREE_LINES = 500
MAX_PLACES = 20
"""Line numbers told when a text is there several times."""
MAX_COUNTED = 10_000
REMOVE_S = 10.0


class EditRefused(Exception):
    """Nothing was changed; the message is for the model."""


class EditorTool:
    """Views and edits the files of a sandbox. One object a trajectory: it remembers what can be undone."""

    name = "str_replace_editor"
    description = (
        "View, create and edit text files. `view` shows a file with line numbers, or a folder two levels deep without hidden entries. "
        "`create` makes a new file. `str_replace` replaces `old_str` by `new_str`; `old_str` must be in the file exactly once, "
        "blanks and line breaks included: take enough lines around the place. `insert` puts `new_str` after the line `insert_line`. "
        "`undo_edit` takes the last edit of a file back. Paths are absolute. For binary or very large files use bash."
    )
    parameters: ClassVar[Json] = {
        "type": "object",
        "properties": {
            "command": {
                "type": "string",
                "enum": ["view", "create", "str_replace", "insert", "undo_edit"],
                "description": "What to do.",
            },
            "path": {"type": "string", "description": "Absolute path of a file, or of a folder to view."},
            "file_text": {"type": "string", "description": "For create: the content of the file."},
            "old_str": {"type": "string", "description": "For str_replace: the text to replace."},
            "new_str": {
                "type": "string",
                "description": "For str_replace: the text instead (nothing when left out). For insert: the lines.",
            },
            "insert_line": {"type": "integer", "description": "For insert: the line to insert after; 0 = at the beginning."},
            "view_range": {
                "type": "array",
                "items": {"type": "integer"},
                "description": "For view of a file: first and last line, from 1; -1 as last = to the end.",
            },
        },
        "required": ["command", "path"],
    }

    def __init__(self, sandbox: Sandbox, *, max_view_bytes: int = MAX_VIEW_BYTES) -> None:
        self._sandbox = sandbox
        self._max_view_bytes = max_view_bytes
        self._history = EditHistory()

    async def __call__(self, arguments: Mapping[str, object], *, timeout_s: float) -> ToolResult:
        """Does what `command` says.

        Raises:
            SandboxError: the sandbox failed, not the edit.
        """
        command = str(arguments["command"])
        details: Json = {"command": command, "path": str(arguments["path"])}
        try:
            async with asyncio.timeout(timeout_s):
                path = self._absolute(str(arguments["path"]))
                match command:
                    case "view":
                        text = await self._view(path, arguments.get("view_range"))
                    case "create":
                        text = await self._create(path, _needed(arguments, "file_text", command))
                    case "str_replace":
                        old, new = _needed(arguments, "old_str", command), str(arguments.get("new_str") or "")
                        text = await self._replace(path, old, new)
                    case "insert":
                        line = arguments.get("insert_line")
                        if not isinstance(line, int):
                            raise EditRefused("`insert` needs insert_line: the number of the line to insert after, 0 = at the beginning.")
                        text = await self._insert(path, line, _needed(arguments, "new_str", command))
                    case "undo_edit":
                        text = await self._undo(path)
                    case _:
                        raise EditRefused(f"There is no command {command!r}; there are: view, create, str_replace, insert, undo_edit.")
        except EditRefused as refused:
            return ToolResult(text=str(refused), is_error=True, details={**details, "status": "refused"})
        except SandboxFileError as error:
            text = await self._trouble(error, str(arguments["path"]))
            return ToolResult(text=text, is_error=True, details={**details, "status": error.trouble})
        except TimeoutError:
            return ToolResult(text=f"Not done within {timeout_s:g} s.", is_error=True, details={**details, "status": "timeout"})
        return ToolResult(text=text, details={**details, "status": "ok"})

    # -- commands -------------------------------------------------------------------------------------------------------------------

    async def _view(self, path: str, view_range: object) -> str:
        try:
            file = await self._read(path)
        except SandboxFileError as error:
            if error.trouble != "not_a_file":
                raise
            if view_range is not None:
                raise EditRefused(f"{path} is a folder: view it without view_range.") from error
            return await self._view_folder(path)
        lines = file.lines
        if not lines:
            return f"{path} is empty."
        first, last = _checked_range(view_range, len(lines))
        text, shown = numbered(lines, first, last, self._max_view_bytes)
        notes = [
            f"{path}, lines {first}-{shown} of {len(lines)}" + (", not UTF-8, read byte by byte:" if file.encoding != "utf-8" else ":")
        ]
        if shown < last:
            text += f"\n[Lines {shown + 1}-{last} found no room. See them with view_range [{shown + 1}, {last}].]"
        elif not file.ends_line and shown == len(lines):
            text += "\n[The last line has no line end.]"
        return "\n".join([*notes, text])

    async def _view_folder(self, path: str) -> str:
        try:
            entries = await self._sandbox.list(path)
        except SandboxFileError as error:
            if error.trouble == "not_a_folder":  # and no file that could be read: a pipe, a device
                raise EditRefused(f"{path} is no regular file and no folder.") from error
            raise
        shown = [f"{path.rstrip('/')}/"]
        left_out = 0
        for line, folder in tree_lines(path, entries, "  "):
            inner: list[tuple[str, str]] = []
            if folder and len(shown) < MAX_TREE_LINES:
                try:
                    inner = tree_lines(folder, await self._sandbox.list(folder), "    ")
                except SandboxFileError as error:
                    line += f" ({error.trouble.replace('_', ' ')})"
            for text in (line, *(text for text, _ in inner)):
                if len(shown) < MAX_TREE_LINES:
                    shown.append(text)
                else:
                    left_out += 1
        if len(shown) == 1:
            return f"{path} has no entries (but hidden ones, if any)."
        if left_out:
            shown.append(f"[{left_out:,} entries or more are left out. Look at a folder further down, or use find.]")
        return "\n".join(shown)

    async def _create(self, path: str, content: str) -> str:
        try:
            await self._sandbox.read_file(path, max_bytes=1)
        except SandboxFileError as error:
            if error.trouble == "too_large":
                raise EditRefused(_exists(path)) from error
            if error.trouble != "not_found":
                raise
        else:
            raise EditRefused(_exists(path))
        file = TextFile(content)
        await self._write(path, None, _encoded(file, content))
        n_lines = len(file.lines)
        return f"{path} was created: {n_lines} line{'' if n_lines == 1 else 's'}."

    async def _replace(self, path: str, old: str, new: str) -> str:
        file = await self._read(path)
        old, new = old.replace("\r\n", "\n"), new.replace("\r\n", "\n")
        if not old:
            raise EditRefused("old_str is empty. To add lines use `insert`, to make a file `create`.")
        if old == new:
            raise EditRefused("old_str and new_str are the same: there is nothing to change.")
        text = file.text.replace("\r\n", "\n")
        places = _places(text, old)
        if not places:
            why = await asyncio.to_thread(why_not_found, file.lines, old)
            raise EditRefused(f"Nothing was changed: old_str is not in {path}. {why}")
        if len(places) > 1:
            numbers = _line_numbers(text, places)
            more = f" and {len(numbers) - MAX_PLACES:,} more" if len(numbers) > MAX_PLACES else ""
            at = f"line{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers[:MAX_PLACES]))}{more}"
            raise EditRefused(
                f"Nothing was changed: old_str is {len(places):,} times in {path}, at {at}. "
                "Take more lines around the place you mean into old_str."
            )
        start = places[0]
        changed = file.replaced(start, start + len(old), new)
        await self._write(path, file.encoded(file.text), _encoded(file, changed))
        first = text.count("\n", 0, start) + 1
        return self._edited(path, changed, first, first + new.count("\n"))

    async def _insert(self, path: str, line: int, new: str) -> str:
        file = await self._read(path)
        n_lines = len(file.lines)
        if not 0 <= line <= n_lines:
            raise EditRefused(f"insert_line is {line}; {path} has {n_lines} lines, so it can be 0 to {n_lines}.")
        block = new.replace("\r\n", "\n")
        text = file.text.replace("\r\n", "\n")
        if line == n_lines and not file.ends_line:  # the last line stays without an end
            at, block = len(text), "\n" + block.removesuffix("\n")
        else:
            at = _start_of_line(text, line)
            block = block if block.endswith("\n") else f"{block}\n"
        changed = file.replaced(at, at, block)
        await self._write(path, file.encoded(file.text), _encoded(file, changed))
        return self._edited(path, changed, line + 1, line + max(1, block.strip("\n").count("\n") + 1))

    async def _undo(self, path: str) -> str:
        edit = self._history.last(path)
        if edit is None:
            raise EditRefused(f"There is no edit of {path} to undo (edits by other tools, and very old ones, are not remembered).")
        if not edit.left(await self._sandbox.read_file(path, max_bytes=2 * MAX_FILE_BYTES)):
            raise EditRefused(f"{path} was changed by other means since its last edit here: undoing that would lose the change.")
        if edit.before is None:
            removed = await self._sandbox.exec(["rm", "--", path], timeout_s=REMOVE_S)
            if removed.returncode != 0:
                said = "\n".join(filter(None, (removed.stderr_text.strip(), notice_lines(removed.notices))))
                raise EditRefused(f"{path} cannot be removed: {said}")
            self._history.forget(edit)
            return "\n".join(filter(None, (f"{path}, which had been created, was removed.", notice_lines(removed.notices))))
        await self._sandbox.write_file(path, edit.before)
        self._history.forget(edit)
        n_lines = len(TextFile.of(edit.before).lines)
        return f"The last edit of {path} was undone; it has {n_lines} line{'' if n_lines == 1 else 's'}."

    # -- files ----------------------------------------------------------------------------------------------------------------------

    def _absolute(self, path: str) -> str:
        if not path.startswith("/"):
            meant = posixpath.normpath(posixpath.join(self._sandbox.workdir, path.removeprefix("~/")))
            raise EditRefused(f"{path!r} is not an absolute path. Did you mean {meant}?")
        return posixpath.normpath(path)

    async def _read(self, path: str) -> TextFile:
        content = await self._sandbox.read_file(path, max_bytes=MAX_FILE_BYTES)
        try:
            return TextFile.of(content)
        except NotText as error:
            instead = "Use bash: file, xxd, strings, or a program for its kind."
            raise EditRefused(f"{path} cannot be shown or edited: {error} ({len(content):,} bytes). {instead}") from error

    async def _write(self, path: str, before: bytes | None, after: bytes) -> None:
        await self._sandbox.write_file(path, after)
        self._history.note(path, before, after)

    def _edited(self, path: str, text: str, first: int, last: int) -> str:
        return f"{path} was changed:\n{around(TextFile(text).lines, first, last, self._max_view_bytes)}"

    async def _trouble(self, error: SandboxFileError, path: str) -> str:
        match error.trouble:
            case "not_found":
                return f"There is no {path}.{await self._similar(path)}"
            case "too_large":
                return (
                    f"{path} is too large to be shown or edited here ({error.detail}). Use bash: head, tail, sed -n '100,200p', grep -n; "
                    "to change it: sed -i, or a script."
                )
            case "denied":
                return f"Permission denied: {path} ({error.detail})."
            case "outside":
                return f"{path} is outside of what can be reached here: {error.detail}."
            case "not_a_folder":
                return f"A part of {path} is a file, not a folder."
            case "not_a_file":
                return f"{path} is a folder, or no regular file."
            case "full":
                return f"{path} was not written: the disk is full."
            case "bad_archive":
                return str(error)

    async def _similar(self, path: str) -> str:
        folder, name = posixpath.split(path)
        try:
            names = [entry.name for entry in await self._sandbox.list(folder or "/")]
        except SandboxFileError:
            return f" There is no folder {folder} either."
        close = difflib.get_close_matches(name, names[:MAX_TREE_LINES], n=3)
        return f" In {folder} there is: {', '.join(close)}." if close else ""


def _needed(arguments: Mapping[str, object], name: str, command: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str):
        raise EditRefused(f"`{command}` needs {name}.")
    return value


def _encoded(file: TextFile, text: str) -> bytes:
    try:
        return file.encoded(text)
    except NotEncodable as error:
        raise EditRefused(f"Nothing was changed: {error}.") from error


def _exists(path: str) -> str:
    return f"{path} exists. To change it use `str_replace` or `insert`; to write it anew, remove it first."


def _checked_range(view_range: object, n_lines: int) -> tuple[int, int]:
    if view_range is None:
        return 1, n_lines
    match view_range:
        case [int(first), int(last)] if 1 <= first <= n_lines and (last == -1 or last >= first):
            return first, n_lines if last == -1 else min(last, n_lines)
    raise EditRefused(f"view_range is {view_range}; it has two numbers: first line (1 to {n_lines}) and last line (-1 = to the end).")


def _places(text: str, old: str) -> list[int]:
    """Where `old` begins, overlapping ones too: each is a place that could be meant."""
    places: list[int] = []
    at = text.find(old)
    while at >= 0 and len(places) < MAX_COUNTED:
        places.append(at)
        at = text.find(old, at + 1)
    return places


def _line_numbers(text: str, places: list[int]) -> list[int]:
    numbers, line, before = [], 1, 0
    for place in places:
        line += text.count("\n", before, place)
        before = place
        numbers.append(line)
    return list(dict.fromkeys(numbers))


def _start_of_line(text: str, line: int) -> int:
    """Where the line after `line` begins."""
    at = 0
    for _ in range(line):
        at = text.index("\n", at) + 1
    return at

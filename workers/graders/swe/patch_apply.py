"""Applies a patch of unknown origin to a repository in a fresh sandbox.

Invariants
    - All or nothing: a patch that does not apply leaves every file as it was (but where its time was up, in the midst of it). The index,
      the refs and the objects of the repository are left alone in any case; only the work tree changes.
    - Nothing is written outside of the repository, into a `.git`, or through a link; no link that leads out is made. This is judged
      here, on the patch as we read it, and what is applied is written anew from that reading (`patch_file.py`): there is no second
      opinion on what a line means.
    - A patch that lost its line ends on the way gets those of the file that it changes, never a mixture.
    - An answer, never an error, whatever the patch is. A sandbox that fails raises.
"""

from __future__ import annotations

import asyncio
import posixpath
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

from workers.graders.errors import GraderError
from workers.graders.swe.patch_file import BadPatch, FilePatch, read_patch, write_patch
from workers.sandbox import Sandbox

APPLY_LIMIT_S = 60.0
MAX_PATCH_BYTES = 32 * 1024 * 1024
"""Four times what `extract_patch` gives out: a data set's own patch may hold binary test data."""
MAX_SECTIONS = 300
"""Files that are looked at one by one when a patch does not apply as a whole; a repair has a handful."""
GRADER = "swe"
_SCRIPT = files("workers.graders.swe").joinpath("patch_apply.sh").read_text()
_TROUBLE_CODE = 9
"""With which the script says that the repository is not there, or files cannot be put back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What became of a patch."""

    applies: bool
    how: str = ""
    """`apply`, `3way` or `patch`: the first of them that took it whole. `already` when all files were as it wants them."""
    dropped: tuple[str, ...] = ()
    """Paths of binary files whose data the patch does not have, and of submodules that it would move to another commit."""
    already: tuple[str, ...] = ()
    """Paths where the files already were as the patch wants them."""
    paths: tuple[str, ...] = ()
    """What it changes."""
    reason: str = ""
    """Why it does not apply: `empty_patch`, `malformed`, `outside` (of the repository, or in a `.git`), `link` (one that leads out, or a
    file written through one), `conflict`, `too_large`, `timed_out`. Empty when it does."""
    detail: str = ""
    """For a person: the path or line at fault, what each way of applying said."""


async def apply_patch(sandbox: Sandbox, repo: str, patch: bytes, *, timeout_s: float = APPLY_LIMIT_S) -> Applied:
    """Applies `patch` to the work tree below `repo`, a path inside.

    Raises:
        GraderError: there is no folder `repo`, or the sandbox has no git.
    """
    if not patch.strip():
        return Applied(applies=False, reason="empty_patch", detail="the patch is empty")
    if len(patch) > MAX_PATCH_BYTES:
        return Applied(applies=False, reason="too_large", detail=f"{len(patch)} bytes, the bound is {MAX_PATCH_BYTES}")
    try:
        sections = await asyncio.to_thread(read_patch, patch)
    except BadPatch as bad:
        return Applied(applies=False, reason="malformed", detail=str(bad))
    if not sections:
        return Applied(applies=False, reason="malformed", detail="no file in it")
    dropped = tuple(dict.fromkeys(shown(section.path) for section in sections if section.lacks_data or section.is_submodule))
    kept = [section for section in sections if not (section.lacks_data or section.is_submodule)]
    found = fault(kept)
    if found is not None:
        return Applied(applies=False, reason=found[0], detail=found[1], dropped=dropped)
    if not kept:
        return Applied(applies=False, reason="empty_patch", detail="nothing in it can be applied", dropped=dropped)
    paths = tuple(dict.fromkeys(shown(path) for section in kept for path in section.paths))
    return replace(await _Applying(sandbox, repo, timeout_s).run(kept), dropped=dropped, paths=paths)


def shown(path: bytes) -> str:
    """A path as text; bytes outside of UTF-8 as surrogates."""
    return path.decode("utf-8", "surrogateescape")


def fault(sections: Sequence[FilePatch]) -> tuple[str, str] | None:
    """Why the patch must not be applied whatever it holds otherwise: a reason and its detail."""
    links = set()
    for section in sections:
        for path in section.paths:
            if not is_inside(path):
                return "outside", f"{shown(path)!r} is not a path of the repository"
        target = section.link_target()
        if target is not None:
            if leads_out(section.path, target):
                return "link", f"{shown(section.path)!r} would lead to {shown(target)!r}"
            links.add(section.path)
    for section in sections:
        through = next((parent for path in section.paths[-1:] for parent in parents(path) if parent in links), None)
        if through is not None and section.new is not None:
            return "link", f"{shown(section.path)!r} would be written through the link {shown(through)!r}"
    return None


def is_inside(path: bytes) -> bool:
    """Whether it is a plain path below the repository, and none of git's own."""
    if not path or path.startswith(b"/") or b"\0" in path:
        return False
    return not any(part in (b"", b".", b"..") or part.lower() == b".git" for part in path.split(b"/"))


def leads_out(link: bytes, target: bytes) -> bool:
    """Whether a link leads out of the repository, or to git's own files."""
    if not target or target.startswith(b"/") or b"\0" in target:
        return True
    end = posixpath.normpath(posixpath.join(posixpath.dirname(link), target))
    parts = end.split(b"/")
    return parts[0] == b".." or any(part.lower() == b".git" for part in [*parts, *target.split(b"/")])


def parents(path: bytes) -> list[bytes]:
    """The folders above it, the lowest first."""
    parts = path.split(b"/")
    return [b"/".join(parts[:end]) for end in range(len(parts) - 1, 0, -1)]


class _Applying:
    """One patch and one repository: the calls of the script, one after the other, within one limit."""

    def __init__(self, sandbox: Sandbox, repo: str, timeout_s: float) -> None:
        self._sandbox = sandbox
        self._repo = repo
        self._ends = time.monotonic() + timeout_s

    async def run(self, sections: Sequence[FilePatch]) -> Applied:
        whole = write_patch(sections)
        said = await self._script("first", {"whole.patch": whole, "links": _may_be_no_link(sections), "paths": _paths(sections)})
        if said is None:
            return _timed_out()
        if said[0] == "apply":
            return Applied(applies=True, how="apply")
        if said[0].startswith("link "):
            return Applied(applies=False, reason="link", detail=f"{said[0][5:]} is a link in the repository")
        if len(sections) > MAX_SECTIONS or _removed_links(sections):  # git knows what stands in place of a link, the other ways do not
            return Applied(applies=False, reason="conflict", detail="\n".join(said[1:]))
        return await self._piecewise(sections)

    async def _piecewise(self, sections: Sequence[FilePatch]) -> Applied:
        """Leaves out what is there already, gives lines the ends of their file, then tries the other ways."""
        inputs: dict[str, bytes] = {}
        for number, section in enumerate(sections, start=1):
            inputs[f"{number}.patch"], inputs[f"{number}.name"] = write_patch([section]), (section.old or section.path) + b"\0"
        said = await self._script("sections", inputs)
        if said is None or len(said) < len(sections):
            return _timed_out()
        left, already = [], []
        for section, line in zip(sections, said, strict=False):
            way, lines, ended = line.split()
            if way == "backwards":
                already.append(shown(section.path))
            else:
                left.append(section if way == "forwards" else _with_ends_of(section, lines=int(lines), ended_cr=int(ended)))
        if not left:
            return Applied(applies=True, how="already", already=tuple(already))
        is_binary = [bool(section.binary) for section in left]
        said = await self._script(
            "last",
            {
                "whole.patch": write_patch(left),
                "text.patch": write_patch([section for section, binary in zip(left, is_binary, strict=True) if not binary]),
                "binary.patch": write_patch([section for section, binary in zip(left, is_binary, strict=True) if binary]),
                "paths": _paths(left),
            },
        )
        if said is None:
            return _timed_out()
        if said[0] == "no":
            return Applied(applies=False, reason="conflict", detail="\n".join(said[1:]), already=tuple(already))
        return Applied(applies=True, how=said[0], already=tuple(already))

    async def _script(self, what: str, inputs: Mapping[str, bytes]) -> list[str] | None:
        """What it says, by lines; None when it had no time to."""
        left_s = self._ends - time.monotonic()
        if left_s <= 0:
            return None
        parts = [word for name, content in inputs.items() for word in (name, str(len(content)))]
        result = await self._sandbox.exec(
            ["bash", "-c", _SCRIPT, "patch_apply", what, self._repo, *parts], stdin=b"".join(inputs.values()), timeout_s=left_s
        )
        if result.timed_out:
            return None
        said = result.stdout_text.splitlines()
        if result.returncode == _TROUBLE_CODE or not said:
            why = result.stderr_text.strip()[-500:] or f"exit code {result.returncode}"
            raise GraderError(f"a patch could not be tried on {self._repo}: {why}", grader=GRADER)
        return said


def _timed_out() -> Applied:
    return Applied(applies=False, reason="timed_out", detail="applying took longer than it may")


def _paths(sections: Sequence[FilePatch]) -> bytes:
    """All files that are made, changed or deleted, NUL behind each: what is kept until the patch has applied. What comes to stand below a
    link that goes is not there yet."""
    removed = _removed_links(sections)
    paths = dict.fromkeys(path for section in sections for path in section.paths if removed.isdisjoint(parents(path)))
    return b"".join(path + b"\0" for path in paths)


def _may_be_no_link(sections: Sequence[FilePatch]) -> bytes:
    """What must be no link in the repository, NUL behind each: all folders on the way, files that are changed as files, and what is
    copied or renamed, since a link that leads inside from one folder leads out from another."""
    paths: dict[bytes, None] = {}
    for section in sections:
        for path in section.paths:
            paths.update(dict.fromkeys(parents(path)))
        if section.new is not None and not section.is_link:
            paths.update(dict.fromkeys(section.paths))
    removed = _removed_links(sections)
    return b"".join(path + b"\0" for path in paths if path not in removed)


def _removed_links(sections: Sequence[FilePatch]) -> frozenset[bytes]:
    """Links that the patch takes away; others of its files may stand in their place, or in a folder there."""
    return frozenset(section.path for section in sections if section.is_link and section.new is None)


def _with_ends_of(section: FilePatch, *, lines: int, ended_cr: int) -> FilePatch:
    """The section with the line ends of its file, if that has one kind and the section the other."""
    before = [line for hunk in section.hunks for line in hunk.lines if line[:1] in (b" ", b"-")]
    with_cr = sum(line.endswith(b"\r") for line in before)
    if lines and before and ended_cr >= lines - 1 and ended_cr and not with_cr:  # the last line may have no end at all
        return section.with_line_ends(crlf=True)
    if lines and before and not ended_cr and with_cr >= len(before) - 1 and with_cr:
        return section.with_line_ends(crlf=False)
    return section

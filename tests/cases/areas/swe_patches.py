"""Cases of patches and of history: repositories in sandboxes of every kind that works here."""

from __future__ import annotations

import base64
import json
import shlex
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.cases.areas.sandboxes import in_each_kind
from tests.cases.case import BadCase, Case, Check, Difference, text_of
from workers.graders.swe import apply_patch, extract_patch, hide_future
from workers.sandbox import Sandbox

SCRIPT_LIMIT_S = 60.0
_KNOWN = {
    "apply_patch": {
        *("applies", "applies_any_of", "files", "files_any_of", "never", "dropped", "reason", "resolved", "already", "how"),
        *("nothing_written_outside", "absent"),
    },
    "extract_patch": {"patch_contains", "patch_not_contains", "after_apply_to_base", "absent_after_apply", "left_out_contains", "trouble"},
    "history": {"agent_sh", "output_contains", "output_not_contains", "clean"},
}
_TREE = (
    "import base64, hashlib, json, os, stat\n"
    "found = {}\n"
    "for top, folders, names in os.walk('.'):\n"
    "    folders[:] = [name for name in folders if name != '.git']\n"
    "    for name in [*names, *(name for name in folders if os.path.islink(os.path.join(top, name)))]:\n"
    "        path = os.path.join(top, name)\n"
    "        kind = os.lstat(path).st_mode\n"
    "        if name == '.git' or not (stat.S_ISREG(kind) or stat.S_ISLNK(kind)):\n"
    "            continue\n"
    "        data = os.fsencode(os.readlink(path)) if stat.S_ISLNK(kind) else open(path, 'rb').read()\n"
    "        if len(data) > 10000:\n"
    "            data = hashlib.sha256(data).digest()\n"
    "        found[('-> ' if stat.S_ISLNK(kind) else '') + os.path.relpath(path)] = base64.b64encode(data).decode()\n"
    "print(json.dumps(found))\n"
)
"""Prints all files below a folder, contents in base64 (of large ones their hash); links with an arrow before their name."""


class _Folders:
    """One folder a case, in a sandbox that all cases of a kind share: these leave nothing that the next would meet."""

    def __init__(self) -> None:
        self._given: Counter[int] = Counter()

    async def new(self, sandbox: Sandbox) -> str:
        self._given[id(sandbox)] += 1
        folder = f"{sandbox.workdir}/case-{self._given[id(sandbox)]}"
        await sandbox.exec(["mkdir", "-p", folder], timeout_s=10)
        return folder


@asynccontextmanager
async def area() -> AsyncIterator[Check]:
    """A sandbox of each kind for all cases."""
    folders = _Folders()

    async def check(case: Case, sandbox: Sandbox) -> list[Difference]:
        kind = case.input["kind"]
        if unknown := case.expect.keys() - _KNOWN[kind]:
            raise BadCase(f"unknown expectations: {sorted(unknown)}")
        return await _CHECKS[kind](case, sandbox, await folders.new(sandbox))

    async with in_each_kind(check, one_for_all=True) as opened:
        yield opened


_IDENTITY = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER") for what, value in (("NAME", "A"), ("EMAIL", "a@example.org"))}


async def _run(sandbox: Sandbox, script: str, cwd: str) -> str:
    """What a script of a case prints; one that does not end makes a bad case."""
    result = await sandbox.exec(script, cwd=cwd, env=_IDENTITY, timeout_s=SCRIPT_LIMIT_S, max_output_bytes=4 << 20)
    if result.timed_out:
        raise BadCase(f"the script takes longer than {SCRIPT_LIMIT_S:g} s: {script}")
    return result.stdout_text


async def _files(sandbox: Sandbox, folder: str, *, after: str = "") -> dict[str, bytes]:
    """The files below a folder, once a script has run in there."""
    said = await _run(sandbox, f"{after}\npython3 -I -S -c {shlex.quote(_TREE)}", folder)
    return {name: base64.b64decode(data) for name, data in json.loads(said.rstrip().rpartition("\n")[2]).items()}


def _below(files: Mapping[str, bytes], folder: str) -> dict[str, bytes]:
    """Those of a folder, by their path in it."""
    found = {}
    for name, data in files.items():
        arrow, path = ("-> ", name[3:]) if name.startswith("-> ") else ("", name)
        if path.startswith(folder + "/"):
            found[arrow + path.removeprefix(folder + "/")] = data
    return found


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


async def _apply(case: Case, sandbox: Sandbox, home: str) -> list[Difference]:
    expect = case.expect
    repo = f"{home}/repo"
    for name, content in case.input["files"].items():
        await sandbox.write_file(f"{repo}/{name}", _bytes(content))
    commit = "git init -q . && git add -A -f . && git commit -q --allow-empty -m base"
    script = "\n".join(["cd repo", case.input.get("setup_sh", ""), commit, case.input.get("dirty_sh", ""), "cd .."])
    around = await _files(sandbox, home, after=script)
    before = _below(around, "repo")

    applied = await apply_patch(sandbox, repo, _bytes(text_of(case.input, "patch")))

    found = []
    applies = expect.get("applies_any_of", [expect.get("applies", True)])
    if applied.applies not in applies:
        found.append(Difference("applies", applies, f"{applied.applies} ({applied.reason}: {applied.detail})"))
    for field in ("reason", "how"):
        if field in expect and getattr(applied, field) != expect[field]:
            found.append(Difference(field, expect[field], getattr(applied, field)))
    for field in ("dropped", "already"):
        if field in expect and sorted(getattr(applied, field)) != sorted(expect[field]):
            found.append(Difference(field, expect[field], getattr(applied, field)))
    if expect.get("resolved") is False and applied.applies:
        found.append(Difference("resolved", False, "a patch that applies"))
    around_after = await _files(sandbox, home)
    after = _below(around_after, "repo")
    wanted: list[Mapping[str, str]] = expect.get("files_any_of", [expect["files"]] if "files" in expect else [])
    if wanted and not any(all(after.get(name) == _bytes(content) for name, content in one.items()) for one in wanted):
        found.append(Difference("files", wanted, {name: content.decode(errors="replace") for name, content in after.items()}))
    for name in expect.get("absent", ()):
        if name in after:
            found.append(Difference(f"file {name}", "none", after[name].decode(errors="replace")))
    if not applied.applies and after != before:
        found.append(Difference("files of a patch that does not apply", "as they were", sorted(after.keys() ^ before.keys()) or "changed"))
    changed = {name.removeprefix("-> ") for name in around.keys() | around_after.keys() if around.get(name) != around_after.get(name)}
    if outside := sorted(name for name in changed if not name.startswith("repo/")):
        found.append(Difference("written outside", [], outside))
    return found


async def _extract(case: Case, sandbox: Sandbox, home: str) -> list[Difference]:
    expect = case.expect
    work, fresh = f"{home}/work", f"{home}/fresh"
    setup = f"mkdir work && cd work && {{ {case.input['setup_sh']}\n}} >&2; git -C {work} rev-parse HEAD; cp -a {work} {fresh}"
    base = (await _run(sandbox, f"{setup}\ncd {work}; {{ {case.input['agent_sh']}\n}} >&2", home)).strip()

    patch = await extract_patch(sandbox, work, base)

    found = []
    text = patch.diff.decode("utf-8", "replace")
    if patch.trouble != expect.get("trouble", ""):
        found.append(Difference("trouble", expect.get("trouble", ""), f"{patch.trouble}: {patch.detail}"))
    found += [Difference("patch", f"with {part!r}", text) for part in expect.get("patch_contains", ()) if part not in text]
    found += [Difference("patch", f"without {part!r}", text) for part in expect.get("patch_not_contains", ()) if part in text]
    for part in expect.get("left_out_contains", ()):
        if not any(part in left for left in patch.left_out):
            found.append(Difference("left out", part, patch.left_out))
    if "left_out_contains" not in expect and "trouble" not in expect and patch.left_out:
        found.append(Difference("left out", [], patch.left_out))
    if "after_apply_to_base" in expect:
        applied = await apply_patch(sandbox, fresh, patch.diff)
        if not applied.applies:
            found.append(Difference("applies to the base commit", True, f"{applied.reason}: {applied.detail}"))
        everything = await _files(sandbox, home)
        after = _below(everything, "fresh")
        found += [
            Difference(f"file {name}", content, after.get(name))
            for name, content in expect["after_apply_to_base"].items()
            if after.get(name) != _bytes(content)
        ]
        found += [Difference(f"file {name}", "none", after[name]) for name in expect.get("absent_after_apply", ()) if name in after]
        found += _other_differences(_below(everything, "work"), after, expect)
    return found


def _other_differences(work: Mapping[str, bytes], after: Mapping[str, bytes], expect: Mapping[str, Any]) -> list[Difference]:
    """Every file of the agent's that its own patch does not make again, but for what must not be in it."""
    left = expect.get("patch_not_contains", ()), expect.get("left_out_contains", ())
    skipped = tuple(str(part) for parts in left for part in parts)
    return [
        Difference(f"file {name!r} after its patch", work.get(name), after.get(name))
        for name in sorted(work.keys() | after.keys())
        if work.get(name) != after.get(name) and not any(part in name or name.startswith(part) for part in skipped)
    ]


async def _history(case: Case, sandbox: Sandbox, home: str) -> list[Difference]:
    expect = case.expect
    repo = f"{home}/repo"
    setup = f"mkdir repo && cd repo && {{ {case.input['setup_sh']}\n}} >&2; {case.input.get('base_sh', 'git rev-parse HEAD')}"
    base = (await _run(sandbox, setup, home)).strip()

    await hide_future(sandbox, repo, base)

    said = await _run(sandbox, f"{{ {expect['agent_sh']}\n}} 2>&1", repo)
    found = [Difference("output", f"with {part!r}", said) for part in expect.get("output_contains", ()) if part not in said]
    found += [Difference("output", f"without {part!r}", said) for part in expect.get("output_not_contains", ()) if part in said]
    faults = await _run(sandbox, "git fsck --full --strict --no-progress 2>&1; git status --porcelain", repo)
    if faults.strip() and expect.get("clean", True):
        found.append(Difference("what is wrong with the repository afterwards", "", faults))
    return found


_CHECKS = {"apply_patch": _apply, "extract_patch": _extract, "history": _history}

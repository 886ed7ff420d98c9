"""Members of `swe`: they look around, change the source, look at the change, and finish.

One kind that fails makes only the first of the reference's changes, another finds nothing to change.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.messages import JobSpec, Trajectory
from workers.handlers.swe.layouts import LAYOUTS
from workers.handlers.task_data import problem_in
from workers.llm.scripted import Act, ScriptedCall
from workers.llm.scripted.acts import Script

LOOK = "git log --oneline | head -n 3; git ls-files | head -n 20"
CHECK = "git diff --stat; python3 -B -m unittest discover 2>&1 | tail -n 3"
END = "END_OF_PATCH"


def repaired(spec: JobSpec, gold: Trajectory) -> tuple[Script, Sequence[Script]]:
    """The reference patch applied and looked at; the first of its changes alone; nothing."""
    patch = gold.extra.get("patch")
    assert isinstance(patch, str), "samples have patches that are text"
    folder = problem_in(spec.prompt.data, LAYOUTS).source.folder
    return _script(folder, patch), (_script(folder, first_change(patch)), _script(folder, ""))


def first_change(patch: str) -> str:
    """The patch with the first of its runs of changed lines alone, or where there is but one, with that run cut short."""
    alone = _cut(patch, runs=1)
    return alone if alone.count("\n+") + alone.count("\n-") < patch.count("\n+") + patch.count("\n-") else _without_last_added(patch)


def _script(folder: str, patch: str) -> Script:
    look = Act("I look around first.", (ScriptedCall("bash", {"command": f"cd {folder} && {LOOK}"}),))
    if not patch:
        return look, Act("It is as it should be.", (ScriptedCall("finish", {"answer": "I found nothing to change."}),))
    apply = f"git apply --recount - <<'{END}'\n{patch.rstrip(chr(10))}\n{END}"
    return (
        look,
        Act("I see what is wrong, and change it.", (ScriptedCall("bash", {"command": apply}),)),
        Act("I look at what I changed.", (ScriptedCall("bash", {"command": CHECK}),)),
        Act(calls=(ScriptedCall("finish", {"answer": "The cause is repaired."}),)),
    )


def _cut(patch: str, *, runs: int) -> str:
    """The first runs of changed lines; later ones are taken back: what they remove stays, what they add goes. Hunks that then change
    nothing go, and files without hunks."""
    kept: list[str] = []
    left = runs
    for file in _split(patch, "diff "):
        head, *hunks = _split(file, "@@")
        cut = [_cut_hunk(hunk, max(0, left - sum(map(_runs, hunks[:at])))) for at, hunk in enumerate(hunks)]
        left -= sum(map(_runs, hunks))
        if some := [hunk for hunk in cut if _runs(hunk)]:
            kept += [head, *some]
    return "".join(kept)


def _split(text: str, beginning: str) -> list[str]:
    """Parts of a text, each but the first from a line that begins so; without lines before the first such one the first part is that."""
    parts: list[str] = []
    for line in text.splitlines(keepends=True):
        if line.startswith(beginning) or not parts:
            parts.append("")
        parts[-1] += line
    return parts


def _runs(hunk: str) -> int:
    """How many runs of changed lines a hunk has."""
    changed = [line[:1] in "+-" for line in hunk.splitlines()]
    return sum(now and not before for before, now in zip([False, *changed], changed, strict=False))


def _cut_hunk(hunk: str, runs: int) -> str:
    lines: list[str] = []
    seen, in_run = 0, False
    for line in hunk.splitlines(keepends=True):
        changes = line[:1] in "+-"
        seen += changes and not in_run
        in_run = changes
        if not changes or seen <= runs:
            lines.append(line)
        elif line.startswith("-"):
            lines.append(" " + line[1:])
    return "".join(lines)


def _without_last_added(patch: str) -> str:
    lines = patch.splitlines(keepends=True)
    added = [number for number, line in enumerate(lines) if line.startswith("+") and not line.startswith("+++")]
    if not added:
        return ""
    del lines[added[-1]]
    return "".join(lines)

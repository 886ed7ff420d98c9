"""Judges a patch: in a fresh sandbox, the repository as it was given, the patch, the task's own tests, and what they say.

Order of things, each on the result of the one before:

    1  the repository at its base commit (`repository.py`)
    2  the patch (`patch_apply.py`); one that does not apply ends here
    3  what steers the runner, and tests, put back (`steering.py`)
    4  the hidden tests laid over it
    5  what has to be built, then the test command, with a reporter in it (`channel.py`); runners without one write for machines
       (`structured.py`), or a log alone
    6  events, exit code and log held against each other (`agreement.py`), and the verdict (`verdict.py`)

An answer in any case; a `GraderError` only where the task or its image is at fault as far as can be told from here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from workers.graders.errors import GraderError
from workers.graders.swe.agreement import Results, agree, agree_on_log
from workers.graders.swe.channel import GRADER, MAX_LOG_BYTES, REPORTED, Heard, run_with_reporter
from workers.graders.swe.history import look_outside
from workers.graders.swe.logs import ParsedLog, parse_log
from workers.graders.swe.patch_apply import Applied, apply_patch
from workers.graders.swe.repository import PreparedRepository, RepositorySource, lay_files, prepare_repository
from workers.graders.swe.steering import PutBack, put_back, restore, tree_entries
from workers.graders.swe.structured import STRUCTURED, ends_of, run_structured
from workers.graders.swe.verdict import SweVerdict, judge
from workers.sandbox import Sandbox

MIN_TEST_S = 5.0
"""What is left for the tests in any case, however long building took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweTests:
    """How a patch is tested."""

    framework: str
    """One of `logs.FRAMEWORKS`."""
    command: str
    """Run by bash in the repository's folder."""
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Hidden tests, by path in the repository."""
    removed: tuple[str, ...] = ()
    """Tests of the base commit that the real repair removed."""
    patch: bytes = b""
    """Hidden tests as a patch against the base commit."""
    places: tuple[str, ...] = ()
    """Where else tests of the task are: files whose names test ids do not tell."""
    before: str = ""
    """What bash does before the command, in the same shell: an environment to activate."""
    setup: str = ""
    """What bash does once before all that, in a shell of its own: building what the patch changed. Its failure is the tests' to tell."""
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 1800.0
    """For building and testing together."""
    names_without_files: bool = False
    """Test ids are `Class.test`, without the file (R2E-Gym)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What came out."""

    resolved: bool
    reason: str
    """Empty when resolved; else a word: of `Applied.reason`, `Results.trouble` or `SweVerdict.reason`."""
    detail: str
    applied: Applied
    verdict: SweVerdict | None = None
    """None when nothing was run."""
    put_back: PutBack = field(default_factory=PutBack)
    tampering: tuple[str, ...] = ()
    """Each offence in words; files that steer and rewritten tests among them."""
    trusted: bool = True
    """Whether ends of single tests may count, for rewards in fractions."""
    log: bytes = field(default=b"", repr=False)
    log_was_cut: bool = False
    returncode: int | None = None
    took_s: float = 0.0
    notices: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    """Folders of the image, outside of the repository, that may hold its later history (`history.Hidden.outside`)."""


async def evaluate(sandbox: Sandbox, source: RepositorySource, tests: SweTests, patch: bytes) -> Evaluation:
    """Judges `patch` in a sandbox that nobody has been in.

    Raises:
        GraderError: the repository or its tests could not be set up, or the runner never came up: with a patch that is right as well,
            it is the task's fault.
    """
    began = time.monotonic()
    repository = await prepare_repository(sandbox, source)
    outside = () if source.files else await look_outside(sandbox, repository.folder, repository.base_commit)
    applied = await apply_patch(sandbox, repository.folder, patch)
    if not applied.applies:
        return Evaluation(
            resolved=False,
            reason=applied.reason,
            detail=applied.detail,
            applied=applied,
            took_s=time.monotonic() - began,
            outside=outside,
        )
    whole = await tree_entries(sandbox, repository.folder, repository.whole_tree) if source.hidden else {}
    hidden = {path: entry for path, entry in whole.items() if _below(path, source.hidden)}
    undone = await _put_back(sandbox, repository, source, tests, applied, hidden)
    if tests.setup:  # may run what the patch brought: the tests come after it
        built = await sandbox.exec(f"exec 2>&1\n{tests.setup}", cwd=repository.folder, env=tests.env, timeout_s=tests.timeout_s)
        tests = replace(tests, timeout_s=max(MIN_TEST_S, tests.timeout_s - built.took_s))
    await _lay_tests(sandbox, repository.folder, tests, hidden)
    command = f"{tests.before}\n{tests.command}" if tests.before else tests.command
    heard = await _run(sandbox, repository.folder, command, tests)
    log = None
    if not heard.log_was_cut:  # in a thread: a log of many megabytes takes seconds, and other jobs share the loop
        log = await asyncio.to_thread(parse_log, tests.framework, heard.log.decode("utf-8", "replace"))
    results = _results(heard, log, tests)
    verdict = judge(_named(results.ends, tests), tests.fail_to_pass, tests.pass_to_pass, aliases=results.aliases)
    offences = (
        *(f"{path} steers the runner" for path in undone.steering),
        *(f"{path} is a test, and lost lines" for path in undone.rewritten_tests),
        *results.tampering,
    )
    return Evaluation(
        resolved=verdict.resolved and not results.trouble,
        reason=results.trouble or verdict.reason,
        detail=results.detail or verdict.detail,
        applied=applied,
        verdict=verdict,
        put_back=undone,
        tampering=offences,
        trusted=results.trouble != "not_trusted",
        log=heard.log,
        log_was_cut=heard.log_was_cut,
        returncode=heard.returncode,
        took_s=time.monotonic() - began,
        notices=heard.notices,
        outside=outside,
    )


async def _put_back(
    sandbox: Sandbox,
    repository: PreparedRepository,
    source: RepositorySource,
    tests: SweTests,
    applied: Applied,
    hidden: Mapping[str, tuple[str, str]],
) -> PutBack:
    """Undoes what must not count."""
    laid = paths_of_patch(tests.patch)
    return await put_back(
        sandbox,
        repository.folder,
        repository.base_commit,
        applied.paths,
        framework=tests.framework,
        command=tests.command,
        test_files={*tests.files, *tests.removed, *laid, *hidden, *source.hidden, *tests.places, *files_of_ids(tests)},
        import_roots=[root for root in tests.env.get("PYTHONPATH", "").split(":") if root and not root.startswith(("/", "."))],
    )


async def _lay_tests(sandbox: Sandbox, folder: str, tests: SweTests, hidden: Mapping[str, tuple[str, str]]) -> None:
    """Lays the hidden tests."""
    await restore(sandbox, folder, [(path, *entry) for path, entry in hidden.items()])
    await restore(sandbox, folder, [(path, "0", "") for path in (*tests.removed, *tests.files)])
    if tests.files:
        await lay_files(sandbox, folder, tests.files)
    if tests.patch:
        there = await apply_patch(sandbox, folder, tests.patch)
        if not there.applies:
            raise GraderError(f"the task's tests cannot be applied: {there.reason}: {there.detail}", grader=GRADER)


async def _run(sandbox: Sandbox, folder: str, command: str, tests: SweTests) -> Heard:
    if tests.framework in REPORTED:
        return await run_with_reporter(sandbox, folder, command, tests.framework, timeout_s=tests.timeout_s, env=tests.env)
    if tests.framework in STRUCTURED:
        return await run_structured(sandbox, folder, command, tests.framework, timeout_s=tests.timeout_s, env=tests.env)
    done = await sandbox.exec(f"exec 2>&1\n{command}", cwd=folder, env=tests.env, timeout_s=tests.timeout_s, max_output_bytes=MAX_LOG_BYTES)
    return Heard(
        log=done.stdout,
        log_was_cut=bool(done.truncated_bytes),
        returncode=done.returncode,
        timed_out=done.timed_out,
        took_s=done.took_s,
        notices=done.notices,
    )


def _results(heard: Heard, log: ParsedLog | None, tests: SweTests) -> Results:
    if tests.framework not in REPORTED:
        return agree_on_log(heard, log, command=tests.command, report=ends_of(tests.framework, heard.structured))
    if heard.has_report and not heard.sessions and not heard.timed_out:
        shown = heard.log[-2000:].decode("utf-8", "replace").strip()
        raise GraderError(f"the test runner did not come up (exit code {heard.returncode}): {shown}", grader=GRADER)
    return agree(heard, log, command=tests.command)


def _named(ends: Mapping[str, str], tests: SweTests) -> Mapping[str, str]:
    """Ends by the names that the data set has."""
    if not tests.names_without_files:
        return ends
    named: dict[str, str] = {}
    for name, status in ends.items():
        short = ".".join(name.split("::")[1:])
        if short and named.get(short, "PASSED") == "PASSED":
            named[short] = status
    return named


def files_of_ids(tests: SweTests) -> set[str]:
    """Files that test ids name: `path::test` (pytest), `package.module.Class.test` (unittest)."""
    found: set[str] = set()
    for name in (*tests.fail_to_pass, *tests.pass_to_pass):
        if "::" in name:
            found.add(name.split("::")[0])
        elif tests.framework == "unittest":
            parts = name.rpartition("(")[2].rstrip(")").split(".")
            if all(part.isidentifier() for part in parts):
                found |= {"/".join(parts[:count]) + ".py" for count in range(1, len(parts))}
    return found


def paths_of_patch(patch: bytes) -> set[str]:
    """Paths that a patch of the data set touches, as its header lines name them."""
    found: set[str] = set()
    for line in patch.split(b"\n"):
        if line.startswith((b"--- a/", b"+++ b/")):
            found.add(line[6:].rstrip(b"\r").split(b"\t")[0].decode("utf-8", "surrogateescape"))
    return found


def _below(path: str, places: tuple[str, ...]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)

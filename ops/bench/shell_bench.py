"""What a call of a tool costs behind walls, and what a sandbox costs to start, beside the shells of others.

Of each backend with walls that works here: the agent's own tools on a sandbox that the node service holds (a process of its own, over its
socket), and on one that this process holds itself: the difference is the wire. All kinds take turns, so that what disturbs the machine
disturbs all alike. A start is timed to the first answer of its shell, from an image that is a folder.

What the pool has ready is handed out on a node at work: another sandbox there runs commands until then. On a virtual machine a service that
slept for a fifth of a second takes two to four times as long for the same steps, as its host has given its caches to others; that is
measured too (`_idle_start`), and has no bound, for it says more of the host than of us.
"""

from __future__ import annotations

import asyncio
import gc
import os
import pwd
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from ops.bench.report import Report
from ops.bench.rivals import of_benchmark
from ops.bench.shell_node import GROUND, IMAGE, SPEC, BenchImage, an_owner, discard_image, make_image, served
from ops.bench.shell_rivals import RivalShell, open_rivals
from ops.launcher import as_test_user
from pipeline.event_loop import run_process
from pipeline.folders import Folders, make_folder
from workers.sandbox import Sandbox, SandboxError, SandboxProvider, SandboxSpec
from workers.sandbox.choice import choose_backend
from workers.sandbox.local import Backend, LocalSandboxes
from workers.sandbox.local.causes import ROOT_REFUSED
from workers.sandbox.local.folder import remove_tree
from workers.sandbox.service import RemoteSandboxes
from workers.tools import BashTool, PythonTool, Tool

BACKENDS = ("bubblewrap", "apptainer")
ROUNDS = 12
CALLS = 100
"""Of a shell, a round."""
CELLS = 25
RIVAL_CALLS = 5
"""They take up to a tenth of a second each."""
STARTS = 24
WARM_STARTS = 20
AT_ONCE = 64
CALL_S = 60.0
POLL_S = 0.02
REST_S = 0.2
"""Between two starts: what the one before left is ended, and a holder is ready again, as on a node between two jobs."""
BUSY_S = 0.2
"""So long another sandbox of the node is at work before one is handed out."""
KEPT_READY = 2
BOUNDS = {
    **{f"{name}_echo_p50_ms": ("<=", 1.0) for name in BACKENDS},
    **{f"{name}_echo_p99_ms": ("<=", 10.0) for name in BACKENDS},
    "bubblewrap_cold_start_ms": ("<=", 60.0),
    "apptainer_cold_start_ms": ("<=", 200.0),
    **{f"{name}_warm_start_ms": ("<=", 5.0) for name in BACKENDS},
    **{f"{name}_at_once_failed": ("<=", 0.0) for name in BACKENDS},
}
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured on, and how much of everything."""

    spec: SandboxSpec = SPEC
    rounds: int = ROUNDS
    calls: int = CALLS
    cells: int = CELLS
    rival_calls: int = RIVAL_CALLS
    starts: int = STARTS
    warm_starts: int = WARM_STARTS
    at_once: int = AT_ONCE


@dataclass(slots=True, kw_only=True)
class Figures:
    """Milliseconds, one figure a call or a start, by what was measured."""

    of: dict[str, list[float]] = field(default_factory=dict)
    at_once_s: dict[str, float] = field(default_factory=dict)
    """By backend: until all had answered."""
    failed: dict[str, int] = field(default_factory=dict)
    """By backend: of those at once."""
    rivals_failed: dict[str, int] = field(default_factory=dict)
    image_megabytes: float = 0.0
    left_out: list[str] = field(default_factory=list)

    def note(self, what: str, took_ms: Sequence[float]) -> None:
        """Adds figures."""
        self.of.setdefault(what, []).extend(took_ms)


def run(say: Say) -> Report:
    """All of it; one to two minutes."""
    if os.geteuid() == 0:
        _go_on_as_test_user()
    _let_apptainer_be_found()
    return report_of(run_process(measure(say, BACKENDS, Plan())))


def discard() -> None:
    """Removes the image that was kept for the next run."""
    discard_image()


async def measure(say: Say, backends: Sequence[str], plan: Plan) -> Figures:
    """The figures of the backends that work here, and of the rivals that are installed."""
    image = await asyncio.to_thread(make_image, say) if plan.spec.image else None
    figures = Figures(image_megabytes=image.megabytes if image else 0.0)
    folder = Path(tempfile.mkdtemp(prefix="rb", dir="/tmp"))  # short: sockets live below it
    scratch = Path(tempfile.mkdtemp(prefix="bench-", dir=make_folder(Folders.from_environment().scratch)))
    try:
        found = await _working(backends, folder, scratch, figures)
        async with AsyncExitStack() as services:
            remotes = {name: await services.enter_async_context(served(name, image, {})) for name in found}
            async with AsyncExitStack() as stack:
                rivals, left_out = await stack.enter_async_context(open_rivals(folder, say))
                figures.left_out += left_out
                sandboxes = {}
                for name, backend in found.items():
                    local = await stack.enter_async_context(_owned_here(backend, image, folder, scratch))
                    for kind, provider in ((name, remotes[name]), (f"{name}_local", local)):
                        sandboxes[kind] = await stack.enter_async_context(await provider.start(plan.spec, an_owner()))
                await _calls(say, sandboxes, rivals, plan, figures)
            await _starts(say, remotes, plan, figures)
        for rival in rivals:
            figures.note(f"{rival.name}_echo", rival.calls_ms)
            figures.rivals_failed[rival.name] = rival.failed
        for name in found:
            async with served(name, image, {"warm": KEPT_READY}) as remote:
                await _warm_starts(say, name, remote, plan, figures)
    finally:
        remove_tree(scratch)
        shutil.rmtree(folder)
    return figures


async def _working(backends: Sequence[str], folder: Path, scratch: Path, figures: Figures) -> dict[str, Backend]:
    found = {}
    for name in backends:
        choice = await choose_backend(name, scratch_dir=scratch, run_dir=folder / "run")
        if choice.backend is not None:
            found[name] = choice.backend
        else:
            figures.left_out.append(f"{name}: {choice.probes[name].why}")
    return found


@asynccontextmanager
async def _owned_here(backend: Backend, image: BenchImage | None, folder: Path, scratch: Path) -> AsyncIterator[SandboxProvider]:
    scratch_dir, run_dir = scratch / backend.name, folder / backend.name[:1]
    async with LocalSandboxes(
        backend, scratch_dir=scratch_dir, run_dir=run_dir, node="bench", images=image.store() if image else None
    ) as local:
        yield local


async def _calls(say: Say, sandboxes: Mapping[str, Sandbox], rivals: Sequence[RivalShell], plan: Plan, figures: Figures) -> None:
    """Rounds of all kinds in turn, after one call of each that is not counted."""
    shells = {kind: BashTool(sandbox.shell()) for kind, sandbox in sandboxes.items()}
    kernels = {kind: PythonTool(sandbox.kernel()) for kind, sandbox in sandboxes.items()}
    for tools, what in ((shells, ECHO), (kernels, PRINT)):
        for tool in tools.values():
            await what.run(tool)
    for number in range(plan.rounds):
        say(f"round {number + 1} of {plan.rounds}: {', '.join([*sandboxes, *(rival.name for rival in rivals)])}")
        for kind in sandboxes:
            figures.note(f"{kind}_echo", [await ECHO.run(shells[kind]) for _ in range(plan.calls)])
            figures.note(f"{kind}_print", [await PRINT.run(kernels[kind]) for _ in range(plan.cells)])
        for rival in rivals:
            await rival.ask(plan.rival_calls)


async def _starts(say: Say, providers: Mapping[str, SandboxProvider], plan: Plan, figures: Figures) -> None:
    """Cold starts one by one, the backends in turn; then many at once."""
    for number in range(plan.starts + 1):
        if not number % 8:
            say(f"start {number} of {plan.starts}: {', '.join(providers)}")
        for name, provider in providers.items():
            await asyncio.sleep(REST_S)
            figures.note(f"{name}_cold_start", [await _start(provider, plan.spec)] * (number > 0))
    for name, provider in providers.items():
        say(f"{plan.at_once} starts at once: {name}")
        began = time.perf_counter()
        outcomes = await asyncio.gather(*(_start(provider, plan.spec) for _ in range(plan.at_once)), return_exceptions=True)
        figures.at_once_s[name] = time.perf_counter() - began
        failed = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if unexpected := [error for error in failed if not isinstance(error, SandboxError)]:
            raise unexpected[0]
        figures.failed[name] = len(failed)
        for error in failed[:3]:
            say(f"  failed: {error}")


async def _warm_starts(say: Say, name: str, remote: RemoteSandboxes, plan: Plan, figures: Figures) -> None:
    """Starts of what the pool has ready; each waits until all are again, for what is being made takes the cores."""
    say(f"{plan.warm_starts} starts of what is kept ready: {name}")
    await _start(remote, plan.spec)  # from here on the pool knows what is asked for
    async with await remote.start(plan.spec, an_owner()) as other:
        neighbour = BashTool(other.shell())
        for _ in range(plan.warm_starts):
            await _until_all_are_ready(remote)
            await asyncio.sleep(REST_S)
            figures.note(f"{name}_idle_start", [await _start(remote, plan.spec)])
            await _until_all_are_ready(remote)
            await _work(neighbour)
            figures.note(f"{name}_warm_start", [await _start(remote, plan.spec)])


async def _work(shell: BashTool) -> None:
    """One command after another."""
    until = time.perf_counter() + BUSY_S
    while time.perf_counter() < until:
        await ECHO.run(shell)


async def _until_all_are_ready(remote: RemoteSandboxes) -> None:
    async with asyncio.timeout(CALL_S):
        while True:
            if sum(view.state == "warm" for view in await remote.views()) >= KEPT_READY:
                return
            await asyncio.sleep(POLL_S)


async def _start(provider: SandboxProvider, spec: SandboxSpec) -> float:
    """Milliseconds from asking for a sandbox to the first answer of its shell; then it is ended."""
    gc.collect()
    began = time.perf_counter()
    sandbox = await provider.start(spec, an_owner())
    try:
        await ECHO.run(BashTool(sandbox.shell()))
        return (time.perf_counter() - began) * 1000
    finally:
        await sandbox.kill()


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool, checked: one that failed would look fast."""

    argument: str
    text: str
    expected: str

    async def run(self, tool: Tool) -> float:
        """Milliseconds of one."""
        began = time.perf_counter()
        result = await tool({self.argument: self.text}, timeout_s=CALL_S)
        took_ms = (time.perf_counter() - began) * 1000
        if result.is_error or not result.text.startswith(self.expected):
            raise RuntimeError(f"{self.text!r} gave {result.text!r}")
        return took_ms


ECHO = Call("command", "echo hi", "hi\n[Exit code 0.")
PRINT = Call("code", "print('hi')", "hi")


def report_of(figures: Figures) -> Report:
    """Medians and the slowest hundredth of calls, medians and minima of starts."""
    metrics: dict[str, float] = {"image_megabytes": figures.image_megabytes}
    for what, took_ms in figures.of.items():
        if what.endswith("_start"):
            metrics[f"{what}_ms"] = statistics.median(took_ms)
            metrics[f"{what}_least_ms"] = min(took_ms)
        elif took_ms:
            metrics[f"{what}_p50_ms"] = statistics.median(took_ms)
            metrics[f"{what}_p99_ms"] = percentile(took_ms, 0.99)
    for name, seconds in figures.at_once_s.items():
        metrics[f"{name}_at_once_s"] = seconds
        metrics[f"{name}_at_once_failed"] = figures.failed[name]
    for name, count in figures.rivals_failed.items():
        if count:
            metrics[f"{name}_failed_calls"] = count
    return Report(
        name="shell",
        metrics=metrics,
        bounds={metric: bound for metric, bound in BOUNDS.items() if metric in metrics},
        left_out=tuple(figures.left_out),
        table=_table(metrics),
        versions={"image": IMAGE},
    )


def _table(metrics: Mapping[str, float]) -> tuple[str, ...]:
    """The calls of `echo hi` beside each other, ms."""
    suffix = "_echo_p50_ms"
    kinds = [metric.removesuffix(suffix) for metric in metrics if metric.endswith(suffix)]
    lines = [f"  {'echo hi, ms':20s} {'p50':>9s} {'p99':>9s}"]
    lines += [f"  {kind:20s} {metrics[kind + suffix]:9.2f} {metrics[f'{kind}_echo_p99_ms']:9.2f}" for kind in kinds]
    return (*lines, "")


def percentile(values: Sequence[float], share: float) -> float:
    """The least of the values that at least this share is not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def _go_on_as_test_user() -> NoReturn:
    """Becomes the same command as the unprivileged user of the tests, where root has made one.

    Raises:
        SystemExit: there is none.
    """
    try:
        pwd.getpwnam(as_test_user.TEST_USER)
    except KeyError:
        advice = "./ops/launch test --system-packages makes a user for it, as which root's call goes on"
        raise SystemExit(f"rollstream bench shell: {ROOT_REFUSED}\nOr: {advice}.") from None
    needed = [environment.base for environment in of_benchmark()["shell"] if environment.is_ready()]
    needed.append(Folders.from_environment().state if "ROLLSTREAM_STATE_DIR" in os.environ else None)
    paths = [f"--path={folder}" for folder in needed if folder is not None]
    command = [sys.executable, "-m", "ops.cli", *(word for word in sys.argv[1:] if word != "--rivals")]
    program = [sys.executable, "-I", as_test_user.__file__, *paths, "--", *command]
    os.execv(program[0], program)
    raise AssertionError("exec does not return")


def _let_apptainer_be_found() -> None:
    """That of the tests stands beside their root file system."""
    os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}{GROUND / 'apptainer' / 'usr' / 'bin'}"

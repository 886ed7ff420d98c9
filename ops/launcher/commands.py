"""The commands of `ops/launch`: what each is for, and what it does.

`demo`, `node`, `llm` and `down` are the project's own code (`ops.demo`, `ops.node`, `ops.llm_server`): the launcher only sees to the
environment and hands over.
"""

import argparse
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from ops.launcher import bundled, checks, child, make_bundle, node
from ops.launcher.bundle_file import BundleUnusable
from ops.launcher.environment import RUN_EXTRAS, TEST_EXTRAS, Environment, NotAnEnvironment
from ops.launcher.installs import InstallFailed, advice_for
from ops.launcher.package_index import IndexUnusable
from ops.launcher.promtool import bring_promtool, find_promtool
from ops.launcher.sandboxes import bring_ground, find_ground
from ops.launcher.servers import fetch_redis8, find_servers
from ops.launcher.steps import STEPS, choose
from ops.launcher.system_packages import install_packages
from ops.launcher.terminal import bold, say, warn

ROOT = Path(__file__).resolve().parents[2]
"""The project's folder."""

TASK_EXTRAS = {"reasoning_gym": frozenset({"reasoning-gym"})}
"""Extras that one task alone wants."""

_OVERVIEW = """\
  ./ops/launch demo     run a real step of rollouts here: embedded server, workers, supervisor, scripted model (about a minute)
  ./ops/launch test     run every check and test; --quick takes under 90 s
  ./ops/launch setup    only make the environment in .venv, and say what is there
  ./ops/launch node     run this machine's workers and their sandbox service until Ctrl-C; installs nothing
  ./ops/launch llm      run this machine's inference servers for a run until Ctrl-C; installs nothing
  ./ops/launch bundle   put the project and all its packages into one file, for `setup`, `node` and `llm --bundle FILE` without a network
  ./ops/launch down     end your nodes and inference servers on this machine, and what `demo --keep` left running

Each takes --help. The first one that you run makes .venv (`node`, `llm` and `down` do not): nothing is installed outside this folder,
and sudo is not used."""


def main(argv: Sequence[str]) -> int:
    """Run one command; returns the exit code. Every failure that a person can mend ends here as words, not as a traceback."""
    child.end_on_signals()
    try:
        return _dispatch(list(argv))
    except KeyboardInterrupt:
        warn("\nInterrupted; what was started is stopped. The same command goes on from here.")
        return 130
    except IndexUnusable as failure:
        warn(f"{failure}\n{advice_for(str(failure))}")
    except (InstallFailed, NotAnEnvironment) as failure:
        warn(str(failure))
    except BundleUnusable as failure:
        warn(str(failure))
        return node.NOT_READY
    except OSError as failure:
        if failure.filename is None:
            raise
        warn(f"{failure.filename}: {failure.strerror}. The environment is made in {ROOT / '.venv'}: that folder has to be ours to write.")
    return 1


def _dispatch(argv: list[str]) -> int:
    environment = Environment(ROOT)
    match argv:
        case [] | ["help" | "-h" | "--help"]:
            say(f"{bold('Rollstream')}: rollouts as a service, on Redis Streams\n\n{_OVERVIEW}")
            return 0
        case ["demo", *arguments]:
            _ensure(environment, RUN_EXTRAS | extras_of_demo(arguments), argv)
            _hand_over(environment, ["-m", "ops.demo", *arguments])
        case ["down", *arguments]:
            if not environment.python.exists():
                say(f"Nothing to stop: there is no environment in {environment.folder}, so nothing was started from it.")
                return 0
            _hand_over(environment, ["-m", "ops.node.down", *arguments])
        case [("node" | "llm") as what, *arguments]:
            return _node(environment, what, arguments, argv)
        case ["bundle", *arguments]:
            asked = make_bundle.parse(arguments)
            _ensure(environment, RUN_EXTRAS, argv)
            return make_bundle.make(environment, asked)
        case ["setup", *arguments]:
            return _setup(environment, arguments, argv)
        case ["test", *arguments]:
            return _test(environment, arguments, argv)
        case [unknown, *_]:
            warn(f"There is no command {unknown!r}.\n\n{_OVERVIEW}")
            return 2
    raise AssertionError("every command returns")


def _node(environment: Environment, what: str, arguments: Sequence[str], argv: Sequence[str]) -> int:
    """Its mark is judged by the environment's own Python, as it says for which one it was made. A bundle has its own."""
    try:
        bundle, rest = bundled.taken_out(arguments)
    except ValueError as error:
        return node.refuse(str(error))
    if bundle is not None:
        environment = bundled.ready_environment(bundle, argv)
        _hand_over(environment, ["-I", str(environment.root / bundled.LAUNCHER), what, *rest])
    if environment.python.exists() and not environment.is_ours():
        _hand_over(environment, ["-I", str(ROOT / "ops" / "launcher" / "__main__.py"), *argv])
    if why := node.missing(environment):
        return node.refuse(why)
    _hand_over(environment, [*node.COMMANDS[what], *arguments])


def extras_of_demo(arguments: Sequence[str]) -> frozenset[str]:
    """What the task that a demo names needs beside the rest. What else there is in `arguments` is the demo's to judge."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--task", nargs="?")
    try:
        task = parser.parse_known_args(list(arguments))[0].task
    except argparse.ArgumentError:
        return frozenset()
    return TASK_EXTRAS.get(task or "", frozenset())


def _ensure(environment: Environment, extras: Iterable[str], argv: Sequence[str]) -> None:
    """Make the environment ready. Its packages are installed, and its mark is judged, by its own Python: hand over to that first."""
    if not environment.is_ours():
        environment.create()
        _hand_over(environment, ["-I", str(ROOT / "ops" / "launcher" / "__main__.py"), *argv])
    if not environment.is_ready(extras):
        environment.complete(extras)


def _hand_over(environment: Environment, arguments: Sequence[str]) -> NoReturn:
    """Become another program: its exit code, its signals and its terminal are then its own.

    `-P` keeps the folder we were called from off the import path, and a person's PYTHONPATH stays behind: a `workers/` there is not ours.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    python = str(environment.python)
    environ = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    os.execve(python, [python, "-P", *arguments], environ)


def _setup(environment: Environment, arguments: Sequence[str], argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="ops/launch setup", description="Make the environment in .venv, or complete it, and say what is there."
    )
    parser.add_argument("--dev", action="store_true", help="with what the checks and tests need")
    parser.add_argument("--bundle", metavar="FILE", help="without a network: packages come from what `./ops/launch bundle` made")
    asked = parser.parse_args(arguments)
    wanted = TEST_EXTRAS if asked.dev else RUN_EXTRAS
    if asked.bundle:
        bundle = Path(asked.bundle).expanduser().absolute()
        manifest = bundled.manifest_for_here(bundle, argv)
        home = bundled.unpacked_once(bundle, manifest)
        bundled.refuse_other_project(home, ROOT)
        bundled.take_wheels_from(home, os.environ)
        wanted |= {*manifest.extras}
    _ensure(environment, wanted, argv)
    libc = " ".join(platform.libc_ver()).strip()
    say(f"Python       {platform.python_version()} ({Path(sys.base_prefix)}), {platform.system()} {platform.machine()} {libc}".rstrip())
    extras = ", ".join(sorted(environment.installed_extras()))
    say(f"Environment  {environment.folder}: {environment.count_packages()} packages, extras {extras}")
    for leg in find_servers(environment, os.environ):
        found = f"{leg.version}  {leg.path}" if leg.path else f"not here ({leg.why_missing}); only the tests use it"
        if leg.path or leg.name == "valkey":
            say(f"{leg.name.capitalize():12} {found}")
    say(f"Commands     {environment.folder / 'bin' / 'rollstream'}, or: . {environment.folder / 'bin' / 'activate'}")
    return 0


def _test(environment: Environment, arguments: Sequence[str], argv: Sequence[str]) -> int:
    names = [step.name for step in STEPS]
    parser = argparse.ArgumentParser(
        prog="ops/launch test", description="Run the checks and tests, all or the named ones, in the order CI does."
    )
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"only these: {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="format, lint, types, imports and the fast tests on one server; under 90 s")
    parser.add_argument(
        "--system-packages", action="store_true", help="let apt-get install what legs need (root or sudo); then no leg may be missing"
    )
    asked = parser.parse_args(arguments)
    unknown = sorted(set(asked.steps) - set(names))
    if unknown:
        parser.error(f"no step {', '.join(unknown)}; there are {', '.join(names)}")
    _ensure(environment, TEST_EXTRAS, argv)
    steps = choose(asked.steps, quick=asked.quick)
    if not asked.quick and any(step.module == "pytest" for step in steps):
        fetch_redis8(environment)
    has_sandboxes = any(step.is_for_sandboxes for step in steps)
    has_alerts = any(step.checks_alerts for step in steps)
    if asked.system_packages:
        if has_alerts and find_promtool(environment, os.environ).path is None:
            bring_promtool(environment)
        ground = find_ground(environment, os.environ)
        install_packages([*find_servers(environment, os.environ), *(ground.legs if has_sandboxes else ())])
        if has_sandboxes:
            bring_ground(environment, ground)
    legs, ground = find_servers(environment, os.environ), find_ground(environment, os.environ)
    promtool = find_promtool(environment, os.environ) if has_alerts else None
    return checks.run(environment, steps, legs, ground, promtool, quick=asked.quick, strict=asked.system_packages)

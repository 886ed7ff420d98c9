"""Processes that one process answers for: none outlives it, none is forgotten, an end that nobody asked for is told with its last words."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ops.child_processes import ChildEnded, ChildProcesses
from pipeline.testing import wait_in_thread, wait_until

WAITS = "import signal, sys; print('up', flush=True); signal.pause()"


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


async def test_a_child_that_ends_unasked_is_told_with_its_last_words(tmp_path: Path) -> None:
    with ChildProcesses(tmp_path, {"WORD": "farewell"}) as children:
        children.start_command("stays", python(WAITS))
        children.start_command("goes", python("import os, sys; print(os.environ['WORD']); sys.exit(7)"))

        with pytest.raises(ChildEnded) as ended:
            async with asyncio.timeout(20):
                await children.watch()

    assert (ended.value.child.name, ended.value.child.exit_code) == ("goes", 7)
    assert "farewell" in ended.value.tail


async def test_one_that_was_asked_to_stop_is_no_news(tmp_path: Path) -> None:
    with ChildProcesses(tmp_path, {}) as children:
        child = children.start_command("goes", python("pass"))
        child.asked_to_stop = True
        await wait_until(lambda: child.exit_code is not None, "it ended")

        children.check()


def test_children_that_do_not_stop_are_killed(tmp_path: Path) -> None:
    """Deaf to SIGTERM, or frozen."""
    with ChildProcesses(tmp_path, {}) as children:
        deaf = children.start_command(
            "deaf", python("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()")
        )
        frozen = children.start_command("frozen", python(WAITS))
        polite = children.start_command("polite", python(WAITS))
        for child in (deaf, frozen, polite):
            wait_in_thread(lambda child=child: "up" in child.log.read_text(), f"{child.name} is up")  # type: ignore[misc]
        frozen.process.send_signal(signal.SIGSTOP)

        killed = children.stop_all(grace_s=1.0)

    assert "deaf" in killed
    assert "polite" not in killed
    # whether SIGTERM reaches a stopped process is the system's affair
    assert {child.exit_code for child in (deaf, frozen, polite)} <= {-signal.SIGTERM, -signal.SIGKILL}


def test_a_name_is_used_once_at_a_time(tmp_path: Path) -> None:
    """The second took the place of the first, which was then neither watched nor stopped."""
    with ChildProcesses(tmp_path, {}) as children:
        first = children.start_command("one", python(WAITS))
        with pytest.raises(ValueError, match="'one' runs already"):
            children.start_command("one", python(WAITS))
        first.asked_to_stop = True
        first.process.kill()
        first.process.wait()

        assert children.start_command("one", python(WAITS)).exit_code is None


def test_children_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """kill -9: no `finally` runs, the system closes its end of the pipe."""
    child = textwrap.dedent("""
        import asyncio
        from pipeline.process import Shutdown
        async def main():
            shutdown = Shutdown()
            shutdown.on_parent_exit()
            print("up", flush=True)
            await shutdown.stop.wait()
        asyncio.run(main())
    """)
    parent = textwrap.dedent(f"""
        import sys, time
        from pathlib import Path
        from ops.child_processes import ChildProcesses
        with ChildProcesses(Path({str(tmp_path)!r}), {{}}) as children:
            child = children.start_command("child", [sys.executable, "-c", {child!r}])
            print(child.process.pid, flush=True)
            time.sleep(600)
    """)
    process = subprocess.Popen(python(parent), stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        wait_in_thread(lambda: "up" in (tmp_path / "child.log").read_text(), "the child is up")
        assert is_alive(pid)

        process.kill()

        wait_in_thread(lambda: not is_alive(pid), "the child has ended")
        process.stdout.close()
    finally:
        process.kill()
        process.wait()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    # ended, and not yet collected by whoever inherited it
    return not (status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] == "Z")

"""`exec`: what a command does is a result, whatever it does."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import replace

import pytest

from pipeline.testing.wait import wait_until
from tests.contract.sandbox.conftest import an_owner
from tests.contract.sandbox.rooms import Room
from workers.sandbox import Limits, Sandbox, SandboxFileError, SandboxProvider, SandboxSpec

pytestmark = pytest.mark.asyncio(loop_scope="module")

FIRST_THREAD_ENDS = """
import ctypes, os, threading, time
def go_on():
    while open(f"/proc/{os.getpid()}/stat").read().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    with open("up", "w") as file:
        print(os.getpid(), file=file)
    time.sleep(600)
threading.Thread(target=go_on).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.fixture
def sandbox(room: Room) -> Sandbox:
    return room.sandbox


async def content(sandbox: Sandbox, path: str) -> str:
    try:
        return (await sandbox.read_file(path)).decode()
    except SandboxFileError:
        return ""


async def test_exit_code_and_both_streams_come_back_apart(sandbox: Sandbox) -> None:
    result = await sandbox.exec("echo out; echo err >&2; exit 3", timeout_s=10)

    assert (result.returncode, result.stdout, result.stderr, result.timed_out) == (3, b"out\n", b"err\n", False)


async def test_a_list_is_run_as_it_stands(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["printf", "%s|", "a b", "$HOME", "*"], timeout_s=10)

    assert result.stdout == b"a b|$HOME|*|"


async def test_stdin_reaches_the_command_whole_and_is_empty_by_default(sandbox: Sandbox) -> None:
    given = await sandbox.exec("wc -c", stdin=b"x" * 1_000_000, timeout_s=10)
    nothing = await sandbox.exec("cat; echo end", timeout_s=10)

    assert given.stdout.strip() == b"1000000"
    assert nothing.stdout == b"end\n"


async def test_a_command_that_does_not_want_its_input_is_no_error(sandbox: Sandbox) -> None:
    result = await sandbox.exec("exec 0<&-; sleep 0.05; echo done", stdin=b"x" * 1_000_000, timeout_s=10)

    assert (result.returncode, result.stdout) == (0, b"done\n")


async def test_folder_and_variables_are_the_given_ones(sandbox: Sandbox) -> None:
    await sandbox.write_file("sub/here", b"")

    result = await sandbox.exec("ls; echo $GREETING", cwd="sub", env={"GREETING": "hello"}, timeout_s=10)

    assert result.stdout == b"here\nhello\n"


@pytest.mark.parametrize(("command", "code"), [(["no-such-program"], 127), (["/"], 126), ([], 126), (["echo", "a\0b"], 126)])
async def test_a_program_that_cannot_run_is_a_result(sandbox: Sandbox, command: list[str], code: int) -> None:
    result = await sandbox.exec(command, timeout_s=10)

    assert result.returncode == code
    assert result.stderr


async def test_a_signal_is_told_by_the_exit_code(sandbox: Sandbox) -> None:
    assert (await sandbox.exec("kill -9 $$", timeout_s=10)).returncode == -9


@pytest.mark.slow
async def test_at_the_limit_what_was_printed_comes_back_and_the_whole_tree_ends(sandbox: Sandbox) -> None:
    started = time.monotonic()

    result = await sandbox.exec("trap '' TERM; echo before; (trap '' TERM; sleep 60; echo never >late) & wait", timeout_s=0.3)

    assert result.timed_out
    assert result.stdout == b"before\n"
    assert time.monotonic() - started < 30, "nobody waited for what sleeps"
    await wait_until(lambda: no_process(sandbox, "sleep 60"), "the command's children are gone")


async def test_output_beyond_the_bound_keeps_beginning_and_end(sandbox: Sandbox) -> None:
    result = await sandbox.exec("echo first; head -c 5000000 /dev/zero | tr '\\0' x; echo; echo last", max_output_bytes=2000, timeout_s=20)

    assert result.stdout.startswith(b"first\n")
    assert result.stdout.endswith(b"x\nlast\n")
    assert len(result.stdout) < 2100
    assert result.truncated_bytes == 5_000_000 + len(b"first\n\nlast\n") - 2000


async def test_what_runs_in_the_background_is_not_waited_for_and_lives_on(sandbox: Sandbox) -> None:
    result = await sandbox.exec("(until [ -e go ]; do sleep 0.05; done; echo late >late) & echo now", timeout_s=30)

    assert (result.stdout, result.timed_out) == (b"now\n", False)
    await sandbox.write_file("go", b"")

    async def is_written() -> bool:
        return await content(sandbox, "late") == "late\n"

    await wait_until(is_written, "the background command wrote its file")


async def test_a_cancelled_call_ends_its_command(sandbox: Sandbox) -> None:
    call = asyncio.create_task(sandbox.exec("echo up >up; sleep 61", timeout_s=60))

    async def is_up() -> bool:
        return await content(sandbox, "up") == "up\n"

    await wait_until(is_up, "the command runs")

    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call
    await wait_until(lambda: no_process(sandbox, "sleep 61"), "the command is gone")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere groups of processes are ended, whatever they look like")
async def test_a_program_whose_first_thread_has_ended_is_ended_as_any_other(sandbox: Sandbox) -> None:
    """Its state is that of a zombie while its other threads run: it was taken for one that has ended, and went on after its call."""
    call = asyncio.create_task(sandbox.exec(["python3", "-I", "-S", "-c", FIRST_THREAD_ENDS], timeout_s=60))

    async def is_up() -> bool:
        return (await content(sandbox, "up")).endswith("\n")

    await wait_until(is_up, "its first thread has ended")
    pid = (await content(sandbox, "up")).strip()

    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call

    async def is_gone() -> bool:
        return not (await sandbox.exec(["ps", "-o", "pid=", "-p", pid], timeout_s=10)).stdout.strip()

    await wait_until(is_gone, "the program is gone", timeout_s=5)  # the watchdog ends what nobody can look into, later


async def test_many_at_once_do_not_mix(sandbox: Sandbox) -> None:
    results = await asyncio.gather(*(sandbox.exec(f"echo {n}", timeout_s=20) for n in range(20)))

    assert [result.stdout for result in results] == [b"%d\n" % n for n in range(20)]


async def test_nothing_of_the_workers_environment_gets_in(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLSTREAM_REDIS_URL", "redis://:secret@host")
    monkeypatch.setenv("http_proxy", "http://user:secret@proxy")

    by_exec = (await sandbox.exec("env", timeout_s=10)).stdout_text
    by_shell = (await sandbox.shell().run("env", timeout_s=10)).output
    by_kernel = (await sandbox.kernel().run("import os; print(dict(os.environ))", timeout_s=20)).stdout

    assert "secret" not in by_exec + by_shell + by_kernel
    assert f"HOME={sandbox.workdir}" in by_exec


async def test_limits_hold_for_each_process(sandbox: Sandbox) -> None:
    result = await sandbox.exec("ulimit -c; ulimit -n; ulimit -f", timeout_s=10)

    assert result.stdout.split() == [b"0", b"1024", b"1048576"]


async def test_a_folder_that_is_not_there_is_named(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["true"], cwd="nowhere", timeout_s=10)

    assert result.returncode == 127
    assert f"folder {sandbox.workdir}/nowhere" in result.stderr_text


async def test_whoever_deletes_the_home_folder_can_go_on(sandbox: Sandbox) -> None:
    await sandbox.exec('rm -rf "$HOME"', cwd="/", timeout_s=10)

    assert (await sandbox.exec("pwd", timeout_s=10)).stdout_text.strip() == sandbox.workdir
    assert (await sandbox.kernel().run("1 + 1", timeout_s=20)).result == "2"


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="function")
async def test_a_process_beyond_its_limits_ends_and_the_sandbox_goes_on(provider: SandboxProvider, spec: SandboxSpec) -> None:
    limits = Limits(cpu_s=1, memory_bytes=512 * 1024**2, file_bytes=1024**2)
    async with await provider.start(replace(spec, limits=limits), an_owner()) as sandbox:
        spins = await sandbox.exec("while :; do :; done", timeout_s=30)
        writes = await sandbox.exec("head -c 2000000 /dev/zero >big", timeout_s=10)
        fills = await sandbox.kernel().run("x = bytearray(10 ** 9)", timeout_s=20)

        assert (spins.returncode, spins.timed_out) == (-9, False)
        assert writes.returncode != 0
        assert [entry.size_bytes for entry in await sandbox.list() if entry.name == "big"] == [1024**2]
        assert (fills.status, fills.error_name) == ("error", "MemoryError")


async def no_process(sandbox: Sandbox, arguments: str) -> bool:
    """Whether no process of the sandbox runs these arguments."""
    listed = await sandbox.exec(["ps", "-eo", "args="], timeout_s=10)
    return arguments not in [line.strip() for line in listed.stdout_text.splitlines()]

"""The persistent shell: state stays, results are exact, nothing a command does to its terminal or its shell outlives the command."""

from __future__ import annotations

import asyncio
import time

import pytest

from pipeline.testing.wait import wait_until
from tests.contract.sandbox.rooms import Room
from workers.sandbox import Sandbox, Shell, ShellResult
from workers.sandbox.shell_session import MAX_WORD_BYTES

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def sandbox(room: Room) -> Sandbox:
    return room.sandbox


@pytest.fixture
def shell(room: Room) -> Shell:
    return room.sandbox.shell(room.session)


async def run(shell: Shell, command: str, *, timeout_s: float = 20.0) -> ShellResult:
    return await shell.run(command, timeout_s=timeout_s)


async def test_folder_variables_functions_and_aliases_stay(sandbox: Sandbox, shell: Shell) -> None:
    await run(shell, "mkdir d; cd d; X=5; export Y=6; f() { echo F; }; alias z='echo Z'; declare -A m; m[k]=v")

    result = await run(shell, 'echo $X; sh -c "echo \\$Y"; f; z; echo ${m[k]}')

    assert (result.status, result.exit_code, result.output) == ("ok", 0, "5\n6\nF\nZ\nv\n")
    assert result.cwd == f"{sandbox.workdir}/d"


EXACT = {
    "two commands": ("echo a\necho b", "a\nb\n", 0),
    "no line end": ("printf abc", "abc", 0),
    "status of the last": ("false; true", "", 0),
    "pipeline": ("true | (exit 300)", "", 44),
    "both streams": ("echo out; echo err >&2", "out\nerr\n", 0),
    "here-document": ("cat <<'EOF'\nit's $HOME \"two\" \\ back\n\ttab\nEOF", 'it\'s $HOME "two" \\ back\n\ttab\n', 0),
    "comment at the end": ("echo hi # done", "hi\n", 0),
    "nothing but a comment": ("# nothing", "", 0),
    "line of 20,000": ("echo " + "x" * 20_000 + " | wc -c | tr -d ' '", "20001\n", 0),
    "3,000 lines": ("cat <<'EOF' | wc -l | tr -d ' '\n" + "line\n" * 3000 + "EOF", "3000\n", 0),
    "history characters": ('echo "wow!! !1 !foo"', "wow!! !1 !foo\n", 0),
    "control characters": ("printf '%s' 'x\x03y\x04z\x15w' | od -An -tx1 | tr -d ' \\n'", "780379047a1577", 0),
    "UTF-8": ("echo h\u00e9llo \U0001f600", "h\u00e9llo \U0001f600\n", 0),
    "broken UTF-8": ("printf '\\377x\\n'", "\ufffdx\n", 0),
    "colours": ("printf '\\033[31mred\\033[0m\\n'", "red\n", 0),
    "progress bar": ("printf '10%%\\r50%%\\r100%%\\n'", "100%\n", 0),
    "reader": ("cat; read x; echo $?", "1\n", 0),
    "looks like a marker": ("echo '\x01\x021e\x03'; echo '__rs_end 1'", "\x01\x021e\x03\n__rs_end 1\n", 0),
    "looks like a prompt": ("printf '%s\\n' '$ ' '>>> ' 'bash-5.2# '", "$ \n>>> \nbash-5.2# \n", 0),
    "return": ("echo a; return 7; echo b", "a\n", 7),
    "subshell exit": ("(exit 5)", "", 5),
    "IFS": ("IFS=0123456789abcdef; true", "", 0),
    "own printf": ('printf() { echo hijacked; }; cd() { builtin cd "$@"; }; cd /tmp; unset -f printf cd', "", 0),
    "stopped child": ("sh -c 'kill -STOP $$' >/dev/null 2>&1; echo after", "after\n", 0),
}


@pytest.mark.parametrize("case", EXACT)
async def test_output_and_exit_code_are_exact(shell: Shell, case: str) -> None:
    command, output, code = EXACT[case]

    result = await run(shell, command)
    after = await run(shell, "echo alive")

    assert (result.status, result.exit_code) == ("ok", code)
    assert result.output.removeprefix("\n[1]+  Stopped                 sh -c 'kill -STOP $$' > /dev/null 2>&1\n") == output
    assert (after.output, after.restarted) == ("alive\n", False)


ODD = r"""'quoted' "twice" \ \\ \n \tx $'y' `z` $((1)) # !! %s ~"""


@pytest.mark.parametrize("odd", [f"{ODD}\t.", "日本 é", ""])
async def test_a_text_arrives_as_it_is_however_it_is_given_to_bash(shell: Shell, odd: str) -> None:
    """A short one is a word of the line that is typed, any other lies in a file: nothing is lost where one way ends."""
    frame = len(f"cat <<'END'\n{odd}\n\n  \nEND\n(exit 3)")
    for length in (0, *(MAX_WORD_BYTES - frame + more for more in range(-1, 2)), 3 * MAX_WORD_BYTES):
        body = f"{odd}\n\n  {'a' * length}"

        result = await run(shell, f"cat <<'END'\n{body}\nEND\n(exit 3)")

        assert (result.output, result.exit_code) == (f"{body}\n", 3)
        assert (await run(shell, "echo $? $'a\\tb'")).output == "3 a\tb\n"


async def test_a_trap_on_errors_hears_of_the_command_alone(shell: Shell) -> None:
    """Of a command in a file as of one in the line: what loads it must not look as if it failed."""
    await run(shell, "trap 'echo E' ERR")

    short, long = await run(shell, "echo one"), await run(shell, f"echo two # {'x' * MAX_WORD_BYTES}")

    assert (short.output, long.output) == ("one\n", "two\n")
    assert (await run(shell, "echo three")).late_output == ""


@pytest.mark.parametrize("command", ["echo 'never closed", "if then fi", "cat <<EOF\n$(", "for"])
async def test_a_syntax_error_answers_at_once(shell: Shell, command: str) -> None:
    result = await run(shell, command, timeout_s=10)

    assert result.status == "ok"
    assert result.exit_code != 0
    assert result.output
    assert (await run(shell, "echo alive")).output == "alive\n"


async def test_tracing_shows_the_command_and_nothing_of_ours(shell: Shell) -> None:
    await run(shell, "set -x")

    result = await run(shell, "echo b")
    await run(shell, "set +x; set -v")
    verbose = await run(shell, "echo c")

    assert result.output == "++ echo b\nb\n"
    assert verbose.output == "c\n"


async def test_the_exit_code_is_there_for_the_next_command(shell: Shell) -> None:
    await run(shell, "(exit 9)")

    assert (await run(shell, "echo $?")).output == "9\n"


async def test_options_that_end_scripts_do_not_end_the_session(shell: Shell) -> None:
    await run(shell, "set -euo pipefail")

    failed = await run(shell, "false")
    after = await run(shell, "echo still; set +u")

    assert (failed.status, failed.exit_code) == ("ok", 1)
    assert (after.output, after.restarted) == ("still\n", False)


async def test_a_debug_trap_can_be_taken_off_again(shell: Shell) -> None:
    await run(shell, "trap 'echo D' DEBUG; trap 'echo E' ERR; trap 'echo X' EXIT")
    failed = await run(shell, "echo work; (exit 4)")
    await run(shell, "trap - DEBUG ERR EXIT")

    assert failed.exit_code == 4
    assert "work\n" in failed.output
    assert (await run(shell, "echo clean")).output == "clean\n"


async def test_what_a_program_did_to_the_terminal_ends_with_it(shell: Shell) -> None:
    await run(shell, "stty raw echo </dev/tty; printf '\\023'")

    result = await run(shell, "echo l1; echo l2")

    assert result.output == "l1\nl2\n"


async def test_a_prompt_set_by_a_script_stays_and_shows_nowhere(shell: Shell) -> None:
    await run(shell, "PS1='(v) $ '; PROMPT_COMMAND='echo PC'; PS0=zero")

    result = await run(shell, "echo $PS1")

    assert result.output == "(v) $\n"


async def test_output_sent_elsewhere_stays_elsewhere_until_it_is_brought_back(shell: Shell) -> None:
    await run(shell, "exec >log")
    hidden = await run(shell, "echo hidden")
    back = await run(shell, "exec >/dev/tty; cat log")

    assert hidden.output == ""
    assert back.output == "hidden\n"


async def test_a_background_job_holds_nothing_up_and_can_be_ended(shell: Shell) -> None:
    result = await run(shell, "sleep 600 & echo started")

    assert "started\n" in result.output
    assert result.status == "ok"
    assert (await run(shell, "kill %1; wait %1 2>/dev/null; echo $?")).output.endswith("143\n")


async def test_what_jobs_print_between_commands_is_told_apart(shell: Shell) -> None:
    await run(shell, "(while [ ! -e go ]; do sleep 0.01; done; echo late; touch gone) & disown")
    await run(shell, "touch go; while [ ! -e gone ]; do sleep 0.01; done")
    await run(shell, "(echo later; touch done) & disown")

    result = await run(shell, "while [ ! -e done ]; do sleep 0.01; done; echo own")

    assert result.output.endswith("own\n")


async def test_at_the_limit_the_command_ends_and_the_shell_stays(shell: Shell) -> None:
    await run(shell, "X=kept")

    result = await run(shell, "echo begin; sleep 60", timeout_s=0.3)

    assert (result.status, result.exit_code, result.restarted) == ("timeout", 130, False)
    assert "begin\n" in result.output
    assert (await run(shell, "echo $X")).output == "kept\n"


STUBBORN = {
    "a loop of bash": "while :; do :; done",
    "endless output": "yes",
    "ignores INT": "trap '' INT; sleep 60",
    "ignores INT and QUIT": "bash -c \"trap '' INT QUIT TERM; while :; do sleep 1; done\"",
    "a substitution that ignores": "x=$(trap '' INT QUIT; sleep 60)",
    "raw terminal": "stty raw -isig </dev/tty; sleep 60",
}


@pytest.mark.slow
@pytest.mark.parametrize("case", STUBBORN)
async def test_at_the_limit_even_a_stubborn_command_ends(shell: Shell, case: str) -> None:
    await run(shell, "X=kept")
    started = time.monotonic()

    result = await run(shell, STUBBORN[case], timeout_s=0.3)

    assert result.status == "timeout"
    assert time.monotonic() - started < 30, "nobody waited for what sleeps"
    after = await run(shell, "echo x$X")
    assert after.output == ("x\n" if result.restarted else "xkept\n")
    assert result.restarted == (case == "a substitution that ignores" and "kept" not in after.output)


ENDS = {"exit 3": 3, "set -e; false; echo no": 1, "kill -9 $$": 137, "exec sh -c 'exit 4'": 4}


@pytest.mark.parametrize("command", ENDS)
async def test_a_shell_that_ended_says_so_and_the_next_goes_on_in_its_folder(sandbox: Sandbox, shell: Shell, command: str) -> None:
    await run(shell, "mkdir d; cd d; X=lost")

    ended = await run(shell, command, timeout_s=10)
    after = await run(shell, "echo x$X; pwd")

    assert (ended.status, ended.exit_code, ended.restarted) == ("closed", ENDS[command], True)
    assert (after.output, after.restarted) == (f"x\n{sandbox.workdir}/d\n", False)


async def test_exit_ends_the_shell_even_with_stopped_jobs(shell: Shell) -> None:
    await run(shell, "sleep 30 & kill -STOP $!")

    result = await run(shell, "exit 3")

    assert (result.status, result.exit_code) == ("closed", 3)


async def test_a_shell_that_ended_between_commands_is_replaced_and_said(shell: Shell) -> None:
    await run(shell, "X=lost; (sleep 0.05; kill -9 $$) & disown")

    seen: list[ShellResult] = []

    async def is_new() -> bool:
        seen.append(await run(shell, "echo x$X"))
        return (seen[-1].restarted and seen[-1].status == "ok") or seen[-1].status == "closed"

    await wait_until(is_new, "the next shell")

    assert (await run(shell, "echo x$X")).output == "x\n"


async def test_a_shell_that_was_killed_a_moment_ago_takes_no_command_along(sandbox: Sandbox, shell: Shell) -> None:
    """The watchdog ends a bomb and, the second time, its shell. The command sent right then was typed to a shell whose end nobody had heard
    of yet, and came back as "closed" with the code of a kill that it had nothing to do with, though nothing of it had run."""
    pid = (await run(shell, "X=lost; echo $$")).output.strip()
    await sandbox.exec(f"kill -9 {pid}", timeout_s=10)

    result = await run(shell, "echo x$X")

    assert (result.status, result.output, result.restarted) == ("ok", "x\n", True)


async def test_a_deleted_folder_does_not_keep_the_next_shell_from_starting(sandbox: Sandbox, shell: Shell) -> None:
    await run(shell, "mkdir d; cd d; rmdir ../d")

    await run(shell, "exit 0")

    assert (await run(shell, "pwd")).output == f"{sandbox.workdir}\n"


async def test_fifty_megabytes_pass_with_little_memory_and_both_ends(shell: Shell) -> None:
    result = await shell.run("echo first; yes | head -c 50000000; echo last; (exit 2)", timeout_s=50, max_output_bytes=20_000)

    assert (result.status, result.exit_code) == ("ok", 2)
    assert result.output.startswith("first\ny\n")
    assert result.output.endswith("y\nlast\n")
    assert len(result.output) < 21_000
    assert result.truncated_bytes > 49_900_000


async def test_characters_cut_by_a_read_are_whole(shell: Shell) -> None:
    result = await run(shell, "printf a; for i in $(seq 1 5000); do printf '\u20ac'; done")

    assert result.output == "a" + "\u20ac" * 5000


async def test_a_quiet_command_is_given_back_and_can_be_fed(shell: Shell) -> None:
    result = await shell.run("echo ask; read x; echo got $x", timeout_s=30, no_change_timeout_s=0.3, stdin="tty")
    busy = await shell.run("echo other", timeout_s=5)
    assert await shell.send("answer\n")
    rest = await shell.wait(timeout_s=10)

    assert (result.status, result.output) == ("running", "ask\n")
    assert busy.status == "busy"
    assert (rest.status, rest.exit_code, rest.output) == ("ok", 0, "got answer\n")
    assert not await shell.send("to nobody\n")
    assert (await run(shell, "echo after")).output == "after\n"


async def test_a_running_command_can_be_interrupted(shell: Shell) -> None:
    await shell.run("sleep 60", timeout_s=30, no_change_timeout_s=0.2)

    await shell.interrupt()
    rest = await shell.wait(timeout_s=10)

    assert (rest.status, rest.exit_code) == ("ok", 130)


async def test_a_command_with_a_nul_is_refused(shell: Shell) -> None:
    result = await run(shell, "echo a\0b")

    assert result.status == "refused"
    assert (await run(shell, "echo alive")).output == "alive\n"


async def test_a_cancelled_command_is_ended_and_the_next_one_runs(sandbox: Sandbox, shell: Shell) -> None:
    call = asyncio.create_task(run(shell, "touch up; sleep 62"))

    async def is_up() -> bool:
        return any(entry.name == "up" for entry in await sandbox.list())

    await wait_until(is_up, "the command runs")

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert (await run(shell, "echo after")).output == "after\n"
    processes = (await sandbox.exec(["ps", "-eo", "args="], timeout_s=10)).stdout_text
    assert "sleep 62" not in [line.strip() for line in processes.splitlines()]


async def test_shells_of_different_names_are_apart(sandbox: Sandbox) -> None:
    await run(sandbox.shell("a"), "X=1")

    assert (await run(sandbox.shell("b"), "echo x$X")).output == "x\n"
    assert sandbox.shell("a") is sandbox.shell("a")

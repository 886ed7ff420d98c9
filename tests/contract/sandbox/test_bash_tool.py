"""The tool `bash` as the model meets it: how a call ends, what is said about the shell, and where it stands."""

from __future__ import annotations

import asyncio

import pytest

from pipeline.testing.wait import wait_until
from tests.contract.sandbox.rooms import Room
from tests.contract.sandbox.tools import Call, calls
from workers.sandbox import Sandbox
from workers.tools import BashTool, PythonTool, WorkingFolder, tools_called

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def sandbox(room: Room) -> Sandbox:
    return room.sandbox


@pytest.fixture
def bash(room: Room) -> Call:
    return calls(BashTool(room.sandbox.shell(room.session), no_change_s=0.4))


async def test_an_answer_ends_with_code_and_folder(sandbox: Sandbox, bash: Call) -> None:
    answer = await bash(command="mkdir d; cd d; echo out; echo err >&2; (exit 3)")

    assert answer.text == f"out\nerr\n[Exit code 3. Working directory: {sandbox.workdir}/d]"
    assert not answer.is_error
    assert (answer.details["exit_code"], answer.details["cwd"]) == (3, f"{sandbox.workdir}/d")


async def test_a_silent_command_is_left_running_fed_and_ends(bash: Call) -> None:
    asked = await bash(command="echo name?; read x; echo hello $x", interactive=True)
    early = await bash(command="echo other")
    fed = await bash(command="you", is_input=True)

    assert asked.text.startswith("name?\n[Still running; it printed nothing for 0.4 s.")
    assert not asked.is_error
    assert early.is_error
    assert "still runs" in early.text
    assert fed.text.startswith("hello you\n[Exit code 0.")


async def test_waiting_goes_on_until_the_command_has_ended(sandbox: Sandbox, bash: Call) -> None:
    first = await bash(command="while [ ! -e go ]; do sleep 0.02; done; echo went; (exit 5)")
    second = await bash(command="")
    await sandbox.write_file("go", b"")
    last = await bash(command=" ")

    assert "Still running" in first.text
    assert "Still running" in second.text
    assert last.text.startswith("went\n[Exit code 5.")
    assert "Nothing runs" in (await bash(command="")).text


@pytest.mark.parametrize(("key", "ended"), [("C-c", "[Exit code 130."), ("C-d", "end\n[Exit code 0."), ("C-z", "[Exit code 148.")])
async def test_keys_reach_the_command_that_runs(bash: Call, key: str, ended: str) -> None:
    await bash(command="cat; code=$?; [ $code != 148 ] && echo end; (exit $code)", interactive=True)

    answer = await bash(command=key, is_input=True)
    await bash(command="kill -9 %1 2>/dev/null")

    assert ended in answer.text


async def test_typing_without_a_command_that_runs_is_refused(bash: Call) -> None:
    answer = await bash(command="rm -rf /", is_input=True)

    assert answer.is_error
    assert "Not typed" in answer.text


async def test_a_limit_of_the_model_holds_within_that_of_the_environment(bash: Call) -> None:
    own = await bash(command="sleep 60", timeout=0.3)
    bound = await bash(command="sleep 60", timeout=500, timeout_s=0.3)

    for answer in (own, bound):
        assert answer.is_error
        assert answer.text.startswith("[Ended: it ran longer than 0.3 s. Exit code 130.")


async def test_with_a_limit_of_its_own_a_silent_command_is_waited_for(bash: Call) -> None:
    """The time without output is for commands whose length nobody has thought about."""
    answer = await bash(command="sleep 0.8; echo done", timeout=20)

    assert answer.text.startswith("done\n[Exit code 0.")


@pytest.mark.parametrize("timeout", [-1, 0, float("nan"), float("inf")])
async def test_a_limit_that_is_none_never_hangs(bash: Call, timeout: float) -> None:
    """Ctrl-C in the very moment of the start took the command's line out of the terminal, and the shell had to go."""
    await bash(command="X=kept")

    answer = await bash(command="echo quick; sleep 30", timeout=timeout, timeout_s=0.5)

    assert answer.details["status"] == "timeout"
    assert "kept\n[Exit code 0." in (await bash(command="echo $X")).text


async def test_a_shell_that_ended_or_was_restarted_is_told(bash: Call) -> None:
    await bash(command="X=1; mkdir d; cd d")
    ended = await bash(command="exit 7")
    after = await bash(command="echo x$X; basename $PWD")
    restarted = await bash(command="", restart=True)
    again = await bash(command="X=2; echo x$X", restart=True)

    assert "[The shell has ended with exit code 7. A new one is at" in ended.text
    assert after.text.startswith("x\nd\n")
    assert restarted.text.startswith("[The shell was restarted: variables, functions and background jobs are gone.")
    assert "The shell was restarted" in again.text
    assert "x2" in again.text


async def test_a_restart_frees_a_shell_that_is_busy(bash: Call) -> None:
    await bash(command="sleep 60")

    answer = await bash(command="echo free", restart=True)

    assert "free\n[Exit code 0." in answer.text


async def test_what_background_jobs_print_between_calls_is_told_apart(sandbox: Sandbox, bash: Call) -> None:
    await bash(command="(while [ ! -e go ]; do sleep 0.01; done; echo late; touch gone) & disown")
    await bash(command="(sleep 0.2; echo later; touch done) & disown; touch go; while [ ! -e gone ]; do sleep 0.01; done")

    async def has_printed() -> bool:
        return "done" in [entry.name for entry in await sandbox.list()]

    await wait_until(has_printed, "the job has printed")
    answer = await bash(command="echo own")

    assert "[Printed by background jobs before this call:]\nlater\n[Output of this call:]\nown" in answer.text


async def test_long_output_says_at_its_end_how_much_is_missing(bash: Call) -> None:
    answer = await bash(command="yes | head -c 10000000; echo end")

    assert answer.text.split("\n")[-3] == "end"
    assert answer.text.split("\n")[-2] == f"[{answer.details['truncated_bytes']:,} bytes of output were left out.]"
    assert len(answer.text) < 70_000


async def test_bash_and_python_stand_in_one_place(sandbox: Sandbox) -> None:
    tools = {tool.name: calls(tool) for tool in tools_called(("bash", "python"), sandbox)}
    bash, python = tools["bash"], tools["python"]

    await bash(command="mkdir -p 'a b/$c'; cd 'a b/$c'; echo text > here")
    read = await python(code="open('here').read()")
    await python(code="import os; os.chdir('..')")
    listed = await bash(command="echo *")
    back = await python(code="os.listdir()")

    assert read.text == "'text\\n'"
    assert listed.text.startswith("$c\n[Exit code 0.")
    assert back.text == "['$c']"


async def test_moving_along_leaves_the_exit_code_of_the_command_before(room: Room) -> None:
    folder = WorkingFolder()
    bash = calls(BashTool(room.sandbox.shell(room.session), folder=folder))
    python = calls(PythonTool(room.sandbox.kernel(room.session), folder=folder))

    await bash(command="mkdir d; (exit 9)")
    await python(code="import os; os.chdir('d')")
    answer = await bash(command="echo $? $(basename $PWD)")

    assert answer.text.startswith("9 d\n")


async def test_a_cancelled_call_leaves_a_shell_that_can_be_used(sandbox: Sandbox, bash: Call) -> None:
    call = asyncio.create_task(bash(command="touch up; sleep 61", timeout=50))

    async def is_up() -> bool:
        return any(entry.name == "up" for entry in await sandbox.list())

    await wait_until(is_up, "the command runs")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert "after\n[Exit code 0." in (await bash(command="echo after")).text

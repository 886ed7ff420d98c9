"""What a command may throw at us: right answers or typed time limits, little memory, and neighbours that notice nothing."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.contract.sandbox.conftest import an_owner
from tests.contract.sandbox.memory import memory_growth
from tests.contract.sandbox.tools import Call, calls
from workers.sandbox import Sandbox, SandboxProvider, SandboxSpec, ShellResult
from workers.tools import BashTool, PythonTool

MUCH_MB = 48
"""Far below what flows, and above what an allocator keeps of its own."""
NEIGHBOUR_S = 3.0


@pytest.fixture
def bash(sandbox: Sandbox) -> Call:
    return calls(BashTool(sandbox.shell()))


@pytest.mark.slow
@pytest.mark.timeout(200)
async def test_200_megabytes_cost_little_memory_and_no_neighbour(provider: SandboxProvider, spec: SandboxSpec, sandbox: Sandbox) -> None:
    """The loop that reads the flood is the one that serves every other sandbox of the process."""
    bash = calls(BashTool(sandbox.shell()))
    async with await provider.start(spec, an_owner()) as other:
        neighbour = other.shell()
        await neighbour.run("n=0", timeout_s=10)
        with memory_growth() as growth:
            flood = asyncio.create_task(
                bash(command="head -c 200000000 /dev/zero | tr '\\0' x | fold -w 99; echo THE-END; (exit 4)", timeout_s=150)
            )
            answers: list[ShellResult] = []
            while not flood.done():
                answers.append(await neighbour.run("sleep 0.05; echo $((n += 1))", timeout_s=10))
            answer = await flood

    assert answer.details["exit_code"] == 4
    assert int(str(answer.details["truncated_bytes"])) > 201_000_000
    assert "THE-END\n[" in answer.text
    assert len(answer.text) < 70_000
    assert growth.peak_mb < MUCH_MB
    assert [result.output for result in answers] == [f"{number}\n" for number in range(1, len(answers) + 1)]
    assert max(result.took_s for result in answers) < NEIGHBOUR_S


@pytest.mark.slow
async def test_200_megabytes_of_one_command_without_a_shell(sandbox: Sandbox) -> None:
    with memory_growth() as growth:
        result = await sandbox.exec("head -c 200000000 /dev/zero; head -c 100000000 /dev/zero >&2; exit 3", timeout_s=50)

    assert (result.returncode, result.timed_out) == (3, False)
    assert result.truncated_bytes > 299_000_000
    assert growth.peak_mb < MUCH_MB


@pytest.mark.slow
async def test_200_megabytes_of_a_cell(sandbox: Sandbox) -> None:
    python = calls(PythonTool(sandbox.kernel()))
    await python(code="x = 5")

    with memory_growth() as growth:
        answer = await python(code="for i in range(2000): print('y' * 100_000)\nprint('THE-END')", timeout_s=50)

    assert answer.details["status"] == "ok"
    assert "\nTHE-END\n[" in answer.text
    assert int(str(answer.details["truncated_bytes"])) > 199_900_000
    assert growth.peak_mb < 4 * MUCH_MB  # 500 pieces of 128 KiB may wait here for the loop to read them
    assert (await python(code="x")).text == "5"


async def test_a_command_of_a_megabyte_in_one_line_is_run_whole(bash: Call) -> None:
    answer = await bash(command="x='" + "0123456789" * 100_000 + "'; echo ${#x} ${x: -3}", timeout=20)

    assert answer.text.startswith("1000000 789\n[Exit code 0.")


async def test_here_documents_of_thousands_of_lines_arrive_whole(bash: Call) -> None:
    lines = "".join(f'line {number} of $HOME `text` \\ "quoted"\n' for number in range(3000))
    started = time.monotonic()

    answer = await bash(command=f"cat > f <<'EOF'\n{lines}EOF\nwc -lc < f", timeout=20)

    assert answer.text.split()[:2] == ["3000", str(len(lines))]
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    "source", ["head -c 3000000 /dev/urandom", "cat /proc/self/exe", "printf '\\033]0;'; head -c 2000000 /dev/zero | tr '\\0' a"]
)
async def test_noise_becomes_text_that_can_be_handed_on(bash: Call, source: str) -> None:
    """An escape sequence that never ends, bytes of every value, programs: the answer is valid text and the terminal is as it was."""
    answer = await bash(command=f"{source}; (exit 6)", timeout=20)
    after = await bash(command="echo l1; echo l2")

    answer.text.encode()
    assert answer.details["exit_code"] == 6
    assert "\x1b" not in answer.text
    assert after.text.startswith("l1\nl2\n[Exit code 0.")


async def test_noise_in_a_cell_becomes_text_that_can_be_handed_on(sandbox: Sandbox) -> None:
    python = calls(PythonTool(sandbox.kernel()))

    answer = await python(code="import os\nos.write(1, os.urandom(300_000))\nprint(chr(0xd800), '\\x1b[31m')\n'ok'")

    answer.text.encode()
    assert "\x1b[" not in answer.text
    assert (await python(code="1 + 1")).text == "2"


DEAF = "for s in $(seq 1 64); do trap '' $s 2>/dev/null; done"
STUBBORN = {
    "the shell": f"{DEAF}; while :; do :; done",
    "a shell in it": f"{DEAF}; bash -c 'while :; do sleep 0.1; done'",
    "a subshell": f"({DEAF}; exec sleep 97)",
    "both sides of a pipe": f"({DEAF}; exec sleep 97) | ({DEAF}; while :; do sleep 0.1; done)",
}


@pytest.mark.slow
@pytest.mark.parametrize("case", STUBBORN)
async def test_a_shell_that_ignores_every_signal_ends_at_its_limit(bash: Call, case: str) -> None:
    started = time.monotonic()

    answer = await bash(command=STUBBORN[case], timeout=0.5)
    after = await bash(command="trap - $(seq 1 64) 2>/dev/null; echo after")

    assert answer.details["status"] == "timeout"
    assert time.monotonic() - started < 10
    assert "after\n[Exit code 0." in after.text

"""The persistent Python: variables stay, every cell ends, and whatever brings the kernel down is told."""

from __future__ import annotations

import asyncio
import time

import pytest
import pytest_asyncio

from pipeline.testing.wait import wait_until
from tests.contract.sandbox.rooms import SHARED_KERNEL, Room
from tests.prompt_image_files import a_jpeg, a_png, as_base64
from workers.sandbox import Kernel, KernelResult, Sandbox

KERNEL_STAYS = True
RESET = "get_ipython().reset(); import os; os.chdir(os.environ['HOME'])"

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def sandbox(room: Room) -> Sandbox:
    return room.sandbox


@pytest_asyncio.fixture(loop_scope="module")
async def kernel(room: Room) -> Kernel:
    """The one that tests have in turn: each finds no variable of those before, and the folder where a new one starts."""
    kernel = room.sandbox.kernel(SHARED_KERNEL)
    for _ in range(2):
        if (await run(kernel, RESET)).status == "ok":
            return kernel
        await kernel.close()
    raise AssertionError("a new kernel cannot be reset")


async def run(kernel: Kernel, code: str, *, timeout_s: float = 20.0) -> KernelResult:
    return await kernel.run(code, timeout_s=timeout_s)


async def test_variables_imports_folder_and_environment_stay(kernel: Kernel) -> None:
    await run(kernel, "import os; os.makedirs('d'); os.chdir('d'); os.environ['Q'] = '\u00e9'\ndef sq(n): return n * n")

    result = await run(kernel, "print('p'); (sq(9), os.path.basename(os.getcwd()), os.environ['Q'])")

    assert (result.status, result.stdout, result.result) == ("ok", "p\n", "(81, 'd', '\u00e9')")
    assert result.output == "p\n(81, 'd', '\u00e9')\n"


async def test_only_the_last_value_is_shown(kernel: Kernel) -> None:
    results = [await run(kernel, code) for code in ("10\n20", "None", "30;", "_ + 1", "a = 1")]

    assert [result.result for result in results] == ["20", None, None, "21", None]


async def test_an_error_is_told_in_plain_text(kernel: Kernel) -> None:
    result = await run(kernel, "def g(v):\n    return 1 / v\nprint('before')\ng(0)")

    assert (result.status, result.error_name, result.stdout) == ("error", "ZeroDivisionError", "before\n")
    assert "g(0)" in result.error_text
    assert "\x1b" not in result.output
    assert result.output.startswith("before\n")


@pytest.mark.slow
async def test_both_streams_and_children_are_heard(kernel: Kernel) -> None:
    result = await run(kernel, "import sys, os\nprint('out'); print('err', file=sys.stderr)\n_ = os.system('echo child')\n!echo bang")

    assert result.stdout.startswith("out\n")
    assert all(word in result.output for word in ("out", "err", "child", "bang"))


@pytest.mark.slow
async def test_what_a_child_wrote_before_its_cell_ended_is_shown_with_that_cell(kernel: Kernel) -> None:
    """A thread reads the descriptors. One that came late to the core had its text after the end of the cell: it was lost. Here no thread
    gets the core from the cell's own for a second. The last cell's text comes in halves of a character."""
    await run(kernel, "import os, sys, time; interval = sys.getswitchinterval(); sys.setswitchinterval(1)")
    written = [(await run(kernel, f"_ = os.write(1, b'written {number}')")).stdout for number in range(5)]
    await run(kernel, "sys.setswitchinterval(interval)")
    halves = await run(kernel, "_ = os.write(1, '\u00e4'.encode()[:1]); time.sleep(0.1); _ = os.write(1, '\u00e4'.encode()[1:])")

    assert written == [f"written {number}" for number in range(5)]
    assert halves.stdout == "\u00e4"


@pytest.mark.slow
async def test_a_cell_may_close_the_descriptor(kernel: Kernel) -> None:
    await run(kernel, "import os; saved = os.dup(1); os.close(1)")

    assert (await run(kernel, "print('still')")).stdout == "still\n"
    assert (await run(kernel, "os.dup2(saved, 1); _ = os.system('echo again')")).stdout == "again\n"


@pytest.mark.slow
async def test_at_the_limit_the_cell_is_interrupted_and_variables_stay(kernel: Kernel) -> None:
    await run(kernel, "x = 5")
    started = time.monotonic()

    result = await run(kernel, "print('begin', flush=True)\nwhile True:\n    pass", timeout_s=0.5)

    assert (result.status, result.state_lost) == ("timeout", False)
    assert "begin\n" in result.stdout
    assert time.monotonic() - started < 5
    assert (await run(kernel, "x")).result == "5"


@pytest.mark.slow
async def test_a_cell_without_time_ends_at_once(kernel: Kernel) -> None:
    await run(kernel, "x = 5")

    result = await run(kernel, "while True: pass", timeout_s=0)

    assert (result.status, result.state_lost) == ("timeout", False)
    assert (await run(kernel, "x")).result == "5"


@pytest.mark.slow
async def test_a_waiting_coroutine_can_be_interrupted(kernel: Kernel) -> None:
    await run(kernel, "import asyncio; x = 5")

    result = await run(kernel, "await asyncio.sleep(60)", timeout_s=0.3)

    assert (result.status, result.state_lost) == ("timeout", False)
    assert (await run(kernel, "x")).result == "5"


@pytest.mark.slow
async def test_a_cell_that_ignores_the_interrupt_loses_its_kernel(kernel: Kernel) -> None:
    await run(kernel, "x = 5")
    stubborn = "import time\nwhile True:\n    try:\n        time.sleep(0.1)\n    except BaseException:\n        pass"

    result = await run(kernel, stubborn, timeout_s=0.5)
    after = await run(kernel, "'x' in globals()")

    assert (result.status, result.state_lost) == ("timeout", True)
    assert (after.status, after.result, after.fresh_kernel) == ("ok", "False", True)


@pytest.mark.slow
async def test_the_interrupt_of_one_cell_never_hits_the_next(kernel: Kernel) -> None:
    """A cell that ends at its limit: the interrupt is on its way when the answer comes, and the next cell must not get it."""
    await run(kernel, "import time")
    for _ in range(10):
        ended = await run(kernel, "time.sleep(0.3)", timeout_s=0.3)
        assert ended.status in ("ok", "timeout")
        assert not ended.state_lost

        result = await run(kernel, "import time; time.sleep(0.05); sum(range(10))")

        assert (result.status, result.result) == ("ok", "45")


DEATHS = {
    "os._exit": ("import os; os._exit(3)", "exit code 3"),
    "segfault": ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
    "killed": ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", DEATHS)
async def test_a_kernel_that_died_says_how_and_the_next_cell_runs_in_a_new_one(kernel: Kernel, case: str) -> None:
    code, how = DEATHS[case]
    await run(kernel, "x = 5; print('up')")

    died = await run(kernel, code)
    after = await run(kernel, "'x' in globals()")

    assert (died.status, died.state_lost) == ("kernel_died", True)
    assert how in died.error_text
    assert died.took_s < 10
    assert (after.status, after.result, after.fresh_kernel) == ("ok", "False", True)


@pytest.mark.slow
async def test_quit_ends_the_kernel_and_the_next_cell_is_served(kernel: Kernel) -> None:
    ended = await run(kernel, "quit()")
    after = await run(kernel, "3 + 4")

    assert ended.state_lost
    assert (after.status, after.result, after.fresh_kernel) == ("ok", "7", True)


@pytest.mark.slow
async def test_a_kernel_that_cannot_answer_is_replaced_and_says_so(kernel: Kernel) -> None:
    """Without its streams a kernel goes idle after a cell and never sends the reply; its version decides which cell is the first."""
    results = [await run(kernel, code) for code in ("import sys; sys.stdout = sys.stderr = None", "print('ok')", "print('ok')")]

    assert (results[-1].status, results[-1].stdout) == ("ok", "ok\n")
    for result in results:
        assert (result.status, result.state_lost) in (("ok", False), ("kernel_died", True))
    assert any(result.state_lost for result in results)


@pytest.mark.slow
async def test_input_fails_at_once(kernel: Kernel) -> None:
    result = await run(kernel, "input('name? ')")

    assert (result.status, result.error_name) == ("error", "StdinNotImplementedError")
    assert result.took_s < 10


@pytest.mark.slow
async def test_lone_surrogates_break_nothing_and_are_never_handed_on(kernel: Kernel) -> None:
    printed = await run(kernel, "print('a' + chr(0xdcff) + 'b')")
    raised = await run(kernel, "raise ValueError(chr(0xd9ab))")
    sent = await run(kernel, "len('\ud800')")
    after = await run(kernel, "'fine'")

    assert raised.status == "error"
    assert sent.result == "1"
    assert after.result == "'fine'"
    assert (printed.stdout, printed.output) == ("a\\udcffb\n", "a\\udcffb\n")
    assert raised.error_text.endswith("ValueError: \\ud9ab")


@pytest.mark.slow
async def test_two_thousand_flushed_lines_all_arrive(kernel: Kernel) -> None:
    result = await run(kernel, "for i in range(2000):\n    print('part-%d' % i, flush=True)")

    assert result.stdout == "".join(f"part-{i}\n" for i in range(2000))
    assert not result.incomplete


@pytest.mark.slow
async def test_a_flood_keeps_its_ends_under_the_bound(kernel: Kernel) -> None:
    result = await kernel.run("print('first')\nprint('y' * 20_000_000)\nprint('last')", timeout_s=40, max_output_bytes=10_000)

    assert result.status == "ok"
    assert result.stdout.startswith("first\ny")
    assert result.stdout.endswith("y\nlast\n")
    assert len(result.stdout) < 11_000
    assert result.truncated_bytes > 19_000_000


@pytest.mark.slow
async def test_a_print_of_a_hundred_megabytes_comes_in_pieces(kernel: Kernel) -> None:
    """What a cell printed within a moment was one message, and one of this size was never taken: all output of the cell was lost."""
    result = await run(kernel, "print('first'); print('y' * 100_000_000); print('last')", timeout_s=40)

    assert (result.status, result.incomplete) == ("ok", False)
    assert result.stdout.startswith("first\nyyy")
    assert result.stdout.endswith("yyy\nlast\n")
    assert result.truncated_bytes > 99_900_000


@pytest.mark.slow
async def test_a_message_too_large_to_take_costs_output_and_not_the_kernel(kernel: Kernel) -> None:
    """The connection drops a message beyond its bound, and itself with it: later cells must be heard again."""
    result = await run(kernel, "x = 5; 'y' * 40_000_000", timeout_s=40)
    after = await run(kernel, "print('heard'); x")

    assert (result.status, result.incomplete) == ("ok", True)
    assert (after.status, after.stdout, after.result, after.incomplete) == ("ok", "heard\n", "5", False)


@pytest.mark.slow
async def test_every_cell_of_several_kernels_at_once_is_answered(sandbox: Sandbox) -> None:
    """Replies were lost to the loop's notice when a request was sent in the moment they came."""

    async def cells(name: str) -> list[str | None]:
        kernel = sandbox.kernel(name)
        return [(await run(kernel, str(n))).result for n in range(100)]

    for answers in await asyncio.gather(*map(cells, ("a", "b", "c"))):
        assert answers == [str(n) for n in range(100)]


@pytest.mark.slow
async def test_pictures_become_a_note(kernel: Kernel) -> None:
    code = "from IPython.display import display, HTML\ndisplay({'image/png': 'AAAA', 'text/plain': '<Figure>'}, raw=True)\nHTML('<b>x</b>')"

    result = await run(kernel, code)

    assert "<Figure>" in result.output
    assert "[not shown: image/png, 3 bytes]" in result.output
    assert "<IPython.core.display.HTML object>" in result.output


@pytest.mark.slow
async def test_pictures_are_given_where_they_are_asked_for(kernel: Kernel) -> None:
    """As many as were asked for; what is none, in whatever name, is told in words."""
    png, jpeg = a_png(56, 28), a_jpeg(28, 28)
    shown = [("image/png", png), ("image/png", b"<svg/>"), ("image/jpeg", jpeg), ("image/png", png)]
    displays = "\n".join(f"display({{{kind!r}: {as_base64(content)!r}, 'text/plain': '<Figure>'}}, raw=True)" for kind, content in shown)

    result = await kernel.run(f"from IPython.display import display\n{displays}", timeout_s=20.0, max_images=2)

    assert result.images == (png, jpeg)
    assert result.output.splitlines() == [
        "<Figure>",
        "[shown below: image/png, 56 x 28]",
        "<Figure>",
        "[not shown: image/png, 6 bytes]",
        "<Figure>",
        "[shown below: image/jpeg, 28 x 28]",
        "<Figure>",
        f"[not shown: image/png, 56 x 28, {len(png)} bytes]",
    ]


@pytest.mark.slow
async def test_help_is_shown(kernel: Kernel) -> None:
    assert "Return the absolute value" in (await run(kernel, "abs?")).output


@pytest.mark.slow
async def test_a_bare_await_works_and_a_second_loop_is_an_error(kernel: Kernel) -> None:
    awaited = await run(kernel, "import asyncio\nasync def f():\n    await asyncio.sleep(0.01)\n    return 'ok'\nawait f()")
    nested = await run(kernel, "c = f()\ntry:\n    asyncio.run(c)\nfinally:\n    c.close()")

    assert awaited.result == "'ok'"
    assert nested.error_name == "RuntimeError"


async def test_files_of_the_folder_can_be_imported_and_stand_in_for_nothing(sandbox: Sandbox, room: Room) -> None:
    kernel = sandbox.kernel(room.session)
    await sandbox.write_file("mine.py", b"value = 7")
    for name in ("json.py", "zmq.py", "ipykernel.py", "sitecustomize.py", "usercustomize.py"):
        await sandbox.write_file(name, b"raise SystemExit('shadowed')")

    result = await run(kernel, "import json, zmq, ipykernel, mine; mine.value")

    assert (result.status, result.result) == ("ok", "7")


@pytest.mark.slow
async def test_children_of_a_kernel_end_with_it(sandbox: Sandbox, kernel: Kernel) -> None:
    await run(kernel, "import subprocess; p = subprocess.Popen(['sleep', '63'])")

    await kernel.restart()

    async def is_gone() -> bool:
        listed = (await sandbox.exec(["ps", "-eo", "args="], timeout_s=10)).stdout_text
        return "sleep 63" not in [line.strip() for line in listed.splitlines()]

    await wait_until(is_gone, "the child is gone")
    assert (await run(kernel, "1")).fresh_kernel


@pytest.mark.slow
async def test_a_cancelled_cell_is_ended(kernel: Kernel) -> None:
    await run(kernel, "x = 5")
    call = asyncio.create_task(run(kernel, "import time; time.sleep(60)"))
    await asyncio.sleep(0)

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert (await run(kernel, "1 + 1")).result == "2"


@pytest.mark.slow
async def test_a_running_cell_can_be_interrupted_from_elsewhere(kernel: Kernel) -> None:
    await run(kernel, "x = 5")
    call = asyncio.create_task(run(kernel, "import time\nopen('up', 'w').close()\ntime.sleep(60)"))

    async def ended() -> bool:
        await kernel.interrupt()
        return call.done()

    await wait_until(ended, "the cell was interrupted")

    assert (await call).error_name == "KeyboardInterrupt"

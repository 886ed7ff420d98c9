"""One log file of several processes: whole lines, none lost in a rotation, and what cannot be written costs a line (ADR 33, 1 to 3)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from ops.logs.following import LogFollower
from ops.logs.lines import UNREADABLE, lines_of
from pipeline.log_file import SharedLogFile, log_files
from pipeline.logs import PROCESS_NAME, NodeLog

ROOT = Path(__file__).parents[3]
WRITERS, LINES, TOGETHER = 4, 600, 5

WRITER = """
import sys, structlog
from pipeline.logs import configure_logs
configure_logs(as_json=False, level="info")
log = structlog.get_logger()
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[1])):
    log.info("step", number=number, filler="x" * (number % 7) * 1500)
"""


def variables(path: Path, process: str, *, max_bytes: int = 1 << 30, files: int = 50) -> dict[str, str]:
    own = NodeLog(path=path, node="n1", max_bytes=max_bytes, files=files).for_children()
    return {**os.environ, **own, PROCESS_NAME: process}


def start(path: Path, process: str, program: str, *arguments: str, max_bytes: int = 1 << 30) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        env=variables(path, process, max_bytes=max_bytes),
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_lines_of_processes_that_write_at_once_are_whole_and_rotation_loses_none(tmp_path: Path) -> None:
    """Lines up to 9 kB, beyond what a pipe would keep together, and a file that is renamed every few dozen of them under all writers. A
    reader that looks meanwhile gets each line once."""
    path = tmp_path / "logs" / "node.log"
    writers = [start(path, f"run-{number}", WRITER, str(LINES), max_bytes=200_000) for number in range(WRITERS)]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    follower, followed = LogFollower(path), list[bytes]()
    while any(writer.poll() is None for writer in writers):
        followed += follower.read()
    followed += follower.read()
    errors = [writer.communicate()[1] for writer in writers]
    assert errors == [""] * WRITERS

    assert len(log_files(path)) > TOGETHER  # it was renamed, and often
    written = b"".join(file.read_bytes() for file in log_files(path)).splitlines()
    found = [orjson.loads(line) for line in written]
    expected = sorted((f"run-{number}", step) for number in range(WRITERS) for step in range(LINES))
    assert sorted((line["process"], line["number"]) for line in found) == expected
    assert sorted(followed) == sorted(written)
    assert [line["number"] for line in found if line["process"] == "run-0"] == list(range(LINES))  # each in its own order


def test_no_more_files_than_wanted_are_kept(tmp_path: Path) -> None:
    file = SharedLogFile(tmp_path / "node.log", max_bytes=100, files=3)

    for number in range(50):
        file.write(b"%047d\n" % number)

    assert [path.name for path in log_files(file.path)] == ["node.log.2", "node.log.1", "node.log"]
    lines = [int(line) for path in log_files(file.path) for line in path.read_bytes().splitlines()]
    assert lines == list(range(50 - len(lines), 50))


def test_who_has_an_older_file_open_writes_to_the_newest(tmp_path: Path) -> None:
    """A process that logs once an hour: by then what it has open was renamed, and may be gone."""
    seldom, often = (SharedLogFile(tmp_path / "node.log", max_bytes=100, files=2) for _ in range(2))
    seldom.write(b"first\n")
    for _ in range(10):
        often.write(b"x" * 60 + b"\n")

    seldom.write(b"last\n")

    assert b"last\n" in seldom.path.read_bytes()
    assert b"first\n" not in b"".join(path.read_bytes() for path in log_files(seldom.path))


TROUBLED = """
import shutil, sys, structlog
from pathlib import Path
from pipeline.logs import configure_logs
configure_logs(as_json=False, level="info")
log = structlog.get_logger()
log.info("before")
for command in sys.stdin:
    log.info(command.strip())
    print("went on", flush=True)
"""


def test_a_log_that_cannot_be_written_is_said_once_and_again_when_it_works(tmp_path: Path) -> None:
    """The folder has become a file. The process goes on; when there is a folder again, the log tells how many lines are missing."""
    folder = tmp_path / "logs"
    process = start(folder / "node.log", "run-0", TROUBLED)
    assert process.stdin is not None
    assert process.stdout is not None

    def does(word: str) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(word + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "went on\n"

    does("first")
    shutil.rmtree(folder)
    does("after the folder was removed")
    shutil.rmtree(folder)
    folder.write_text("in the way")
    for number in range(3):
        does(f"lost {number}")
    folder.unlink()
    does("last")
    _, errors = process.communicate()

    assert process.returncode == 0
    assert errors.count("cannot be written") == 1
    assert "Not a directory" in errors
    found = [orjson.loads(line) for line in (folder / "node.log").read_bytes().splitlines()]
    assert [line["event"] for line in found] == ["log_written_again", "last"]
    assert found[0]["lost"] == 3


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a small file system, which root may")
def test_a_full_disk_costs_lines_and_half_a_line_hides_no_other(tmp_path: Path) -> None:
    """A file system of a few pages in a mount namespace of the test's own. What was cut is shown as such, and what follows it is whole."""
    program = """
import os, sys
from pathlib import Path
from pipeline.log_file import SharedLogFile
folder = Path(sys.argv[1])
file = SharedLogFile(folder / "node.log", max_bytes=1 << 20, files=3)
other = SharedLogFile(folder / "node.log", max_bytes=1 << 20, files=3)
line = b'{"timestamp":"2026-11-30T00:00:00.%06dZ","level":"info","filler":"' + b"x" * 1900 + b'"}\\n'
assert file.trouble() == ""
lost = 0
for number in range(10):
    try:
        file.write(line % number)
    except OSError:
        lost += 1
assert 0 < lost < 10, lost
assert file.trouble(), "it would see that there is no room"
(folder / "room").unlink()
other.write(b'{"timestamp":"2026-11-30T00:00:01.000000Z","level":"info","who":"other"}\\n')
file.write(b'{"timestamp":"2026-11-30T00:00:02.000000Z","level":"info","who":"first"}\\n')
sys.stdout.buffer.write((folder / "node.log").read_bytes())
"""
    script = 'mount -t tmpfs -o size=16k none "$1" && head -c 4096 /dev/zero >"$1/room" && exec "$2" -c "$3" "$1"'
    done = subprocess.run(
        ["unshare", "-m", "/bin/sh", "-c", script, "sh", tmp_path, sys.executable, program], cwd=ROOT, capture_output=True, check=False
    )
    if b"unshare" in done.stderr or b"mount:" in done.stderr:
        pytest.skip(f"no mounts here: {done.stderr.decode().strip()}")
    assert done.returncode == 0, done.stderr.decode()

    found = [line for raw in done.stdout.split(b"\n") for line in lines_of(raw)]

    assert [line.fields.get("who") for line in found if "who" in line.fields] == ["other", "first"]
    assert [line.fields["event"] for line in found if "event" in line.fields] == [UNREADABLE]


def test_whatever_a_field_is_the_line_is_written(tmp_path: Path) -> None:
    """A number of a hundred bits, half a character from a file name, an object that does not want to be text."""
    program = """
import structlog
from pipeline.logs import configure_logs
configure_logs(as_json=False, level="info")
class Sullen:
    def __str__(self): raise RuntimeError("no")
    __repr__ = __str__
log = structlog.get_logger()
log.info("large", number=1 << 100)
log.info("half", name="\\udc80")
log.info("url", error=ValueError("redis://me:pa@ss@host:1"), why=["redis://:word@host"], inner={"token": "t", "at": "unix:///s?password=p"})
log.info("sullen", it=Sullen())
print("went on")
"""
    path = tmp_path / "node.log"
    process = start(path, "run-0", program)
    said, errors = process.communicate()

    assert (said, process.returncode) == ("went on\n", 0), errors
    found = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    assert [line["event"] for line in found] == ["large", "half", "url", "sullen"]
    url = found[2]
    assert (url["error"], url["why"]) == ("redis://me:***@host:1", ["redis://:***@host"])
    assert url["inner"] == {"token": "***", "at": "unix:///s?password=***"}


def test_a_thread_that_dies_and_a_library_that_warns_are_in_the_log(tmp_path: Path) -> None:
    program = """
import asyncio, gc, logging, threading
from pipeline.logs import configure_logs
configure_logs(as_json=False, level="info")
thread = threading.Thread(target=lambda: 1 / 0, name="leases")
thread.start(); thread.join()
logging.getLogger("some.library").warning("to redis://u:word@h: %s", "gone")
async def main():
    async def fails(): raise ValueError("nobody looks")
    asyncio.get_running_loop().create_task(fails())
    await asyncio.sleep(0)
asyncio.run(main())
gc.collect()
"""
    path = tmp_path / "node.log"
    process = start(path, "run-0", program)
    _, errors = process.communicate()

    found = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    assert [(line["event"], line.get("thread", line.get("library"))) for line in found] == [
        ("thread_died", "leases"),
        ("library_said", "some.library"),
        ("library_said", "asyncio"),
    ], errors
    assert "ZeroDivisionError" in found[0]["exception"]
    assert found[1]["text"] == "to redis://u:***@h: gone"
    assert "nobody looks" in found[2]["text"]
    assert errors == ""

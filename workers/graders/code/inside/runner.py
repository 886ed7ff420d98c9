"""Runs one program on one test, bounds it, ends what it leaves behind, and says how it went.

Standard input holds the order (lines of a name and a value, then an empty line), the program and the test's input; standard output gets
`ready` before anything of the program runs, and at the end the report. Nothing of a test's expected value is ever here.

The program is a fork of this process, in a session and a folder of its own:

    input, output, errors   files without a name in that folder; the input is a regular file, as on a judge's machine
    bounds                  time by the clock less the time it waited for a core, and by `cap_s` in any case; CPU, private memory, size of
                            each file it writes (so also of its output), processes and threads, each set before it begins; files by number
                            and size, where it may write, by looks
    a call                  what the function returned is written as JSON into one more file, and the process ends there and then

Invariants
    - When the report is made nothing that descends from the program runs: this process is a subreaper (Linux), so nothing leaves its tree.
    - `left` is said when the program changed anything outside its folder, as far as `places` tell: then nobody may run here after it.
    - The program is under the same user, so it can stop or kill this process, and can write to its standard output. It gains nothing by
      that: there is nothing here but its own output, which it has to know. A report that is missing or cannot be read is a failed test.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # of `typing`, without loading it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType
    from typing import Any

    from workers.graders.code.inside.leftovers import Tree, end_descendants, end_session, left_behind, others_in
    from workers.graders.code.inside.watch import watch

PR_SET_CHILD_SUBREAPER = 36
STACK_BYTES = 64 << 20
"""What the program's main thread may recurse into; the usual 8 MiB end honest recursion in C functions early."""
STACKS = 2
"""Threads with large stacks at once."""
ERRORS_KEPT = 4000
NOT_EMPTY = 3
"""Exit code: an earlier program left something here that was not noticed."""
PHASE_COMPILING, PHASE_RUNNING = b"c", b"r"
COUNTING_S, REMOVING_S, MOST_REMOVED = 0.5, 1.0, 100_000
"""What a program left that takes longer goes with its sandbox."""
CLOCK_STEP_S = 0.01
"""Times of files are up to a tick behind the clock."""
PER_USER_COUNTS_ARE_OWN = (5, 14)
"""From this kernel on the processes of a user are counted by user namespace, so that those of other sandboxes do not count."""


def main() -> None:
    started = time.time() - CLOCK_STEP_S
    order, program, given = read_order()
    has_subreaper = become_subreaper()
    if order["places"] and others_in(os.getcwd(), order["round"]):
        os._exit(NOT_EMPTY)
    folder = os.path.join(os.getcwd(), order["folder"])
    os.mkdir(folder, 0o700)
    files = {name: nameless(folder) for name in ("in", "out", "err", "result", "phase")}
    if order["kind"] == "stdio":
        write_all(files["in"], given)
    child = os.fork()
    if child == 0:
        os.write(1, b"ready\n")
        become_program(order, folder, files)
        PROGRAMS[order["kind"]](order, program, given, files)
        return
    counted = [folder if place == "folder" else place for place in order["counted"].split()]
    ended = watch(child, float(order["time_s"]), float(order["cap_s"]), lambda: has_too_much(order, counted))
    swept = end_descendants() if has_subreaper else end_session(child)
    if ended["ended"] == "itself" and has_too_much(order, counted):
        ended["ended"] = "files"
    is_removed = Tree(MOST_REMOVED, REMOVING_S).remove(folder)
    output_bytes = int(order["output_bytes"])
    kept = {
        "out": content(files["out"], 0, output_bytes + 1),
        "err": content(files["err"], max(0, os.fstat(files["err"]).st_size - ERRORS_KEPT), ERRORS_KEPT),
        "result": content(files["result"], 0, output_bytes + 1),
    }
    said = dict(ended)
    said["phase"] = "compiling" if content(files["phase"], 0, 1) == PHASE_COMPILING else "running"
    said["err_size"] = os.fstat(files["err"]).st_size
    said["left"] = "" if swept and has_subreaper else "processes"
    said["left"] = said["left"] or ("" if is_removed else folder)
    said["left"] = said["left"] or left_behind(order["places"].split(), os.getcwd(), order["round"], started)
    for name, value in kept.items():
        said[name] = len(value)
    lines = "".join(f"{name} {one_line(value)}\n" for name, value in said.items())
    write_all(1, lines.encode() + b"\n" + kept["out"] + kept["err"] + kept["result"])
    os._exit(0)


def read_order() -> tuple[dict[str, str], bytes, bytes]:
    """The order, the program and the test's input."""
    pieces = []
    while True:
        piece = os.read(0, 1 << 20)
        if not piece:
            break
        pieces.append(piece)
    head, _, rest = b"".join(pieces).partition(b"\n\n")
    order = {name: value for name, _, value in (line.partition(" ") for line in head.decode().split("\n"))}
    length = int(order["program"])
    return order, rest[:length], rest[length:]


def become_subreaper() -> bool:
    """Whether whatever descends from this process stays below it."""
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def has_too_much(order: dict[str, str], places: Sequence[str]) -> bool:
    """Whether there are more files, or larger or deeper ones, than the program may have."""
    found = Tree(int(order["files"]), COUNTING_S)
    for place in places:
        found.count(place)
    return found.files > found.most or found.is_deep or found.bytes > int(order["disk_bytes"])


def nameless(folder: str) -> int:
    """A new file that no name leads to."""
    path = os.path.join(folder, "file")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.unlink(path)
    return descriptor


def content(descriptor: int, offset: int, size: int) -> bytes:
    """So much of a file."""
    pieces = []
    while size > 0:
        piece = os.pread(descriptor, min(size, 1 << 20), offset)
        if not piece:
            break
        pieces.append(piece)
        offset += len(piece)
        size -= len(piece)
    return b"".join(pieces)


def one_line(value: object) -> str:
    return str(value).replace("\n", " ")


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


# -- the program's side ----------------------------------------------------------------------------------------------------------------


def become_program(order: dict[str, str], folder: str, files: dict[str, int]) -> None:
    """Makes this process the program's: its own session, files, folder, environment and bounds."""
    os.setsid()
    os.lseek(files["in"], 0, os.SEEK_SET)
    for number, name in ((0, "in"), (1, "out"), (2, "err")):
        os.dup2(files[name], number)
        os.close(files[name])
    os.chdir(folder)
    os.environ.update(HOME=folder, TMPDIR=folder, PYTHONINTMAXSTRDIGITS="0")
    # made anew: the first ones took a pipe for granted
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))
    sys.argv = [os.path.join(folder, "solution.py")]
    sys.path.insert(0, folder)
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)
    bound(order)


def bound(order: dict[str, str]) -> None:
    """Bounds this process and what it starts, for good: a limit can be lowered, and not raised again."""
    import resource

    def at_most(which: int, soft: int, above: int = 0) -> None:
        _, hard = resource.getrlimit(which)
        hard = soft + above if hard == resource.RLIM_INFINITY else min(soft + above, hard)
        resource.setrlimit(which, (min(soft, hard), hard))

    whole_seconds = int(float(order["time_s"])) + 2
    at_most(resource.RLIMIT_CPU, whole_seconds, 1)
    memory_bytes = int(order["memory_bytes"])
    at_most(resource.RLIMIT_DATA, memory_bytes, STACKS * memory_bytes)
    give_room_for_stacks(memory_bytes)
    at_most(resource.RLIMIT_FSIZE, int(order["output_bytes"]) + 1)
    at_most(resource.RLIMIT_CORE, 0)
    if hasattr(resource, "RLIMIT_MSGQUEUE"):
        at_most(resource.RLIMIT_MSGQUEUE, 0)  # queues have names that only their own file system shows
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard), hard))
    release = os.uname().release.split(".")
    if sys.platform == "linux" and (int(release[0]), int(release[1])) >= PER_USER_COUNTS_ARE_OWN and order["walls"] == "yes":
        at_most(resource.RLIMIT_NPROC, tasks_here() + int(order["processes"]))


def give_room_for_stacks(memory_bytes: int) -> None:
    """Lets a program ask for threads with large stacks, as those do that recurse deeply.

    The kernel counts a thread's stack as private memory from the beginning, however little of it is ever used. So with the size of stacks
    the bound is raised by what two of them take. One above the memory that the program may have could not be used up: it gets that much.
    What is used in fact is seen at the end, and that is what the program is judged by.
    """
    import _thread
    import resource

    set_size = _thread.stack_size
    asked = [0]

    def stack_size(size: int = 0, /) -> int:
        before = asked[0]
        set_size(min(size, memory_bytes))
        asked[0] = size
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if size and hard != resource.RLIM_INFINITY:
            resource.setrlimit(resource.RLIMIT_DATA, (min(hard, memory_bytes + STACKS * min(size, memory_bytes)), hard))
        return before

    for module in (_thread, sys.modules.get("threading")):
        if module is not None:
            module.stack_size = stack_size  # type: ignore[attr-defined]


def tasks_here() -> int:
    """Processes and threads of this user that are there already, without this process's: it counts among the program's own."""
    found = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:  # noqa: SIM105
                found += len(os.listdir(f"/proc/{name}/task"))
            except OSError:
                pass
    return found


def prepared(program: bytes, files: dict[str, int], name: str) -> tuple[CodeType, dict[str, Any]]:
    """The program's code and the names of the module it runs as."""
    with open("solution.py", "wb") as file:
        file.write(program)
    os.pwrite(files["phase"], PHASE_COMPILING, 0)
    code = compile(program, sys.argv[0], "exec", dont_inherit=True)
    os.pwrite(files["phase"], PHASE_RUNNING, 0)
    os.close(files["phase"])
    module = type(sys)(name)
    module.__file__ = sys.argv[0]
    module.__dict__["__builtins__"] = __builtins__
    sys.modules[name] = module
    return code, module.__dict__


def run_as_program(order: dict[str, str], program: bytes, given: bytes, files: dict[str, int]) -> None:
    """The program as `python3 solution.py` would run it; how it ends is how this process ends."""
    code, names = prepared(program, files, "__main__")
    os.close(files["result"])
    exec(code, names)


PROGRAMS = {"stdio": run_as_program}
"""What becomes of a program, by the kind of the order; other files add theirs."""

"""Runs one program on one test, bounds it, ends what it leaves behind, and says how it went.

Standard input holds the order (lines of a name and a value, then an empty line), the program and the test's input; standard output gets
`ready` before anything of the program runs, and at the end the report. Nothing of a test's expected value is ever here.

The program is a fork of this process, in a session and a folder of its own:

    input, output, errors   files without a name in that folder; the input is a regular file, as on a judge's machine
    bounds                  time by the clock less the time it waited for a core, and by `cap_s` in any case; CPU, private memory, size of
                            each file it writes (so also of its output), processes and threads, each set before it begins
    a call                  what the function returned is written as JSON into one more file, and the process ends there and then

Invariants
    - When the report is made nothing that descends from the program runs: this process is a subreaper (Linux), so nothing leaves its tree.
    - `left` is said when the program changed anything outside its folder, as far as `places` tell: then nobody may run here after it.
    - The program is under the same user, so it can stop or kill this process, and can write to its standard output. It gains nothing by
      that: there is nothing here but its own output, which it has to know. A report that is missing or cannot be read is a failed test.
"""

from __future__ import annotations

import os
import select
import sys
import time

TYPE_CHECKING = False  # of `typing`, without loading it
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType
    from typing import Any

    from workers.graders.code.inside.plain import NotPlain, from_plain, to_plain

PR_SET_CHILD_SUBREAPER, SIGKILL = 36, 9
STACK_BYTES = 64 << 20
"""What the program's main thread may recurse into; the usual 8 MiB end honest recursion in C functions early."""
ERRORS_KEPT = 4000
PHASE_COMPILING, PHASE_RUNNING = b"c", b"r"
CLOCK_STEP_S = 0.01
"""Times of files are up to a tick behind the clock."""
PER_USER_COUNTS_ARE_OWN = (5, 14)
"""From this kernel on the processes of a user are counted by user namespace, so that those of other sandboxes do not count."""

USUAL_MODULES = (
    *("typing", "collections", "math", "heapq", "itertools", "functools", "bisect", "string", "re", "random", "operator", "copy", "sys"),
    *("datetime", "statistics", "json", "decimal", "fractions"),
)
"""What solutions of the task's kind take for granted: the modules, and ..."""
USUAL_NAMES_OF = ("typing", "collections", "heapq", "itertools", "functools", "bisect", "math")
"""... the public names of these."""


def main() -> None:
    started = time.time() - CLOCK_STEP_S
    order, program, given = read_order()
    has_subreaper = become_subreaper()
    folder = os.path.join(os.getcwd(), order["folder"])
    os.mkdir(folder, 0o700)
    files = {name: nameless(folder) for name in ("in", "out", "err", "result", "phase")}
    os.write(files["in"], given) if order["kind"] == "stdio" else None
    os.write(1, b"ready\n")
    child = os.fork()
    if child == 0:
        become_program(order, folder, files)
        PROGRAMS[order["kind"]](order, program, given, files)
        return
    ended = watch(child, float(order["time_s"]), float(order["cap_s"]))
    swept = end_descendants() if has_subreaper else end_session(child)
    is_removed = remove(folder)
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
    said["left"] = said["left"] or ("" if is_removed else folder) or left_behind(order["places"].split(), os.getcwd(), started)
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
    at_most(resource.RLIMIT_DATA, int(order["memory_bytes"]))
    at_most(resource.RLIMIT_FSIZE, int(order["output_bytes"]) + 1)
    at_most(resource.RLIMIT_CORE, 0)
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard), hard))
    release = os.uname().release.split(".")
    if sys.platform == "linux" and (int(release[0]), int(release[1])) >= PER_USER_COUNTS_ARE_OWN and order["walls"] == "yes":
        at_most(resource.RLIMIT_NPROC, tasks_here() + int(order["processes"]))


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


def run_call(order: dict[str, str], program: bytes, given: bytes, files: dict[str, int]) -> None:
    """Calls one function of the program with the arguments given, and writes down what it returned."""
    import json

    code, names = prepared(program, files, "solution")  # what stands under `__name__ == "__main__"` is not asked for
    dumps = json.dumps
    arguments = from_plain(json.loads(given.decode()))
    give_usual_names(code, names)
    exec(code, names)
    returned = entry_of(names, order["entry"])(*arguments)
    try:
        answer = {"value": to_plain(returned)}
    except NotPlain as refused:
        answer = {"not_plain": str(refused)}
    write_all(files["result"], dumps(answer).encode())
    sys.stdout.flush()
    os._exit(0)


def entry_of(names: dict[str, Any], entry: str) -> Callable[..., Any]:
    """The function: of the module, or a method of a new object of its class; `Solution` where the entry names no class."""
    class_name, _, function = entry.rpartition(".")
    holder = names.get(class_name or "Solution")
    by_name: Callable[..., Any] | None = names[function] if callable(names.get(function)) else None
    if not class_name and by_name is not None:
        return by_name
    if holder is not None and hasattr(holder, function):
        found: Callable[..., Any] = getattr(holder(), function)
        return found
    if by_name is not None:
        return by_name
    raise NameError("the program has no " + entry)


def give_usual_names(code: CodeType, names: dict[str, Any]) -> None:
    """Imports what the program uses of the usual modules without having imported it; what it does not name is not loaded."""
    import importlib

    used: set[str] = set()
    waiting = [code]
    while waiting:
        one = waiting.pop()
        used.update(one.co_names)
        waiting.extend(constant for constant in one.co_consts if hasattr(constant, "co_names"))
    for name in USUAL_MODULES:
        if name in used:
            names[name] = importlib.import_module(name)
    own = names["__builtins__"] if isinstance(names["__builtins__"], dict) else vars(names["__builtins__"])
    missing = used - set(names) - set(own)
    for name in USUAL_NAMES_OF:
        if not missing:
            break
        module = importlib.import_module(name)
        for found in [one for one in missing if one in getattr(module, "__all__", dir(module))]:
            names[found] = getattr(module, found)
            missing.discard(found)


PROGRAMS = {"stdio": run_as_program, "call": run_call}


# -- watching it -----------------------------------------------------------------------------------------------------------------------


def watch(child: int, time_s: float, cap_s: float) -> dict[str, object]:
    """Waits for the end of the program, and ends it when its time is over.

    Its time is what passed less what it waited for a core: on a busy machine an honest program is not called slow. `cap_s` ends the wait
    in any case. A program that has more processes or threads may have kept the cores from itself, so that is its own time too.
    """
    wait = waiter(child)
    began = time.monotonic()
    how, own = "itself", 0.0
    while True:
        passed = time.monotonic() - began
        own = max(0.0, passed - waited_for_core(child))
        reaped, status, usage = os.wait4(child, os.WNOHANG)
        if reaped:
            break
        if own >= time_s or passed >= cap_s:
            how = "time" if own >= time_s or not is_alone(child) else "cap"
            kill(child)
            _, status, usage = os.wait4(child, 0)
            break
        wait(max(0.001, min(time_s - own, cap_s - passed)))
    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    kib = usage.ru_maxrss // (1024 if sys.platform == "darwin" else 1)
    return {
        "ended": how,
        "exit": code,
        "own_s": f"{own:.3f}",
        "wall_s": f"{time.monotonic() - began:.3f}",
        "cpu_s": f"{usage.ru_utime + usage.ru_stime:.3f}",
        "peak_kib": kib,
    }


def waiter(child: int) -> Callable[[float], object]:
    """Waits so many seconds, or until the process has ended."""
    try:
        poll = select.poll()
        poll.register(os.pidfd_open(child), select.POLLIN)
    except (AttributeError, OSError):  # Python 3.8, an old kernel, another system
        import signal

        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # an end before this is seen by the first look
        return lambda wait_s: select.select([read_end], [], [], wait_s)[0] and os.read(read_end, 4096)
    return lambda wait_s: poll.poll(int(wait_s * 1000) + 1)


def is_alone(child: int) -> bool:
    """Whether the program has one thread and no other process."""
    try:
        return len(os.listdir(f"/proc/{child}/task")) == 1 and descendants(os.getpid()) == [child]
    except OSError:
        return True


def waited_for_core(pid: int) -> float:
    """Seconds in which the process's main thread could have run and no core was free; 0 where the system does not say."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def kill(pid: int) -> None:
    try:  # noqa: SIM105
        os.kill(pid, SIGKILL)
    except OSError:
        pass


def end_descendants() -> bool:
    """Kills whatever descends from this process, until the kernel says that nothing does."""
    for _ in range(100_000):
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        for pid in descendants(os.getpid()):
            kill(pid)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return True
    return False


def descendants(root: int) -> list[int]:
    """All that descends from a process, as one look at /proc sees it."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found.extend(below)
        waiting.extend(below)
    return found


def end_session(child: int) -> bool:
    """Where nothing keeps descendants together: ends the program's process group."""
    try:  # noqa: SIM105
        os.killpg(child, SIGKILL)
    except OSError:
        pass
    return True


def remove(folder: str) -> bool:
    """Removes a folder with all that is in it, whatever its modes are; whether it is gone."""
    try:
        os.chmod(folder, 0o700)
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                remove(entry.path)
            else:
                os.unlink(entry.path)
        os.rmdir(folder)
    except FileNotFoundError:
        pass
    except (OSError, RecursionError):
        return False
    return True


def left_behind(places: Sequence[str], workdir: str, since: float) -> str:
    """What there is that was not there before: the first find, in words; empty when there is nothing.

    Args:
        places: `empty:PATH` = a folder that has to be empty, `old:PATH` = a tree in which nothing may be newer than `since`, mounts
            left out; none = nobody looks.
    """
    for place in places:
        kind, _, path = place.partition(":")
        try:
            if kind == "empty":
                names = [name for name in os.listdir(path) if path != workdir or not name.startswith("test-")]
                if names:
                    return os.path.join(path, names[0])[:200]
            elif kind == "old":
                found = newer(path, since, workdir)
                if found:
                    return found[:200]
        except FileNotFoundError:
            if kind == "empty" and path == workdir:
                return path + " is gone"
        except OSError as refused:
            return f"{path}: {refused.strerror}"
    if places:
        for name in ("shm", "sem", "msg"):
            try:
                with open("/proc/sysvipc/" + name) as file:
                    if len(file.readlines()) > 1:
                        return "System V " + name
            except OSError:
                pass
    return ""


def newer(top: str, since: float, workdir: str) -> str:
    """The first path below `top`, on its own file system, that was changed since then."""
    device = os.lstat(top).st_dev
    waiting = [top]
    while waiting:
        folder = waiting.pop()
        if folder == workdir:
            continue
        if os.lstat(folder).st_ctime >= since:
            return folder
        for entry in os.scandir(folder):
            state = entry.stat(follow_symlinks=False)
            if state.st_dev != device or entry.path == workdir:
                continue
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            elif state.st_ctime >= since:
                return entry.path
    return ""

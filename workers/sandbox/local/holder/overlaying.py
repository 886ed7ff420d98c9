"""To mount the layers of a sandbox's root before the command that builds its walls runs, for one that cannot do it well enough.

Apptainer mounts its own overlay without the option `userxattr`. In a user namespace that overlay cannot mark a folder, so a folder of the
image can neither be removed nor replaced (EIO).

1. The process gets a user namespace of its own, in which it has its own uid and gid and no other, and with it a mount namespace. Whatever
   is mounted there is seen by it and its children alone, and gone with the last of them, however they end.
2. The command that it becomes has no capability in either namespace: the kernel takes them all at exec, as the uid is not 0.
3. What the command builds is in namespaces below these. Who enters joins the one that owns the mounts in one step, from wherever above.
4. The layers are named to the kernel by descriptors: no sign in a path means something to it, and none of a node's paths is seen inside.
5. What is below is never written: the kernel copies what is changed into `upper`.

Standard library only; imports nothing of this package, since the probe runs it as a program of its own:
`python -I -S overlaying.py LOWER UPPER WORK AT COMMAND...`
"""

from __future__ import annotations

import ctypes
import os
import sys

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_NOSUID, MS_NODEV = 0x2, 0x4


def mount_layers(lower: str, upper: str, work: str, at: str) -> None:
    """Shows `lower` with the changes in `upper` at the folder `at`, to this process and what it becomes. The process must have one thread.

    Args:
        work: an empty folder on the file system of `upper`, or one that was used so before.

    Raises:
        OSError: says which step was refused.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def check(answer: int, what: str) -> None:
        if answer != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{what}: {os.strerror(number)}")

    uid, gid = os.geteuid(), os.getegid()
    check(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS), "a user namespace of its own")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        try:
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
        except OSError as error:
            raise OSError(error.errno, f"{name} of a user namespace of its own: {error.strerror}") from error
    held: list[int] = []
    try:
        for folder in (lower, upper, work):
            held.append(os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        options = "lowerdir=/proc/self/fd/{},upperdir=/proc/self/fd/{},workdir=/proc/self/fd/{},userxattr".format(*held)
        check(libc.mount(b"overlay", os.fsencode(at), b"overlay", MS_NOSUID | MS_NODEV, options.encode()), "an overlay with userxattr")
    finally:
        for descriptor in held:
            os.close(descriptor)


def main() -> None:
    lower, upper, work, at, *command = sys.argv[1:]
    try:
        mount_layers(lower, upper, work, at)
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(error.strerror)


if __name__ == "__main__":
    main()

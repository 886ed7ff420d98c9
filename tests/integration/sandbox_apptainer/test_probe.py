"""Why Apptainer does not work on a node: the step that fails is named, with its cause and what helps. The nodes are real ones, made of
user namespaces."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.file_systems import FileSystem
from workers.sandbox.apptainer import FoundApptainer, find_apptainer
from workers.sandbox.apptainer.probe import candidates, is_setuid, refuse_file_system

ROOT = Path(__file__).parents[3]
PROGRAM = (
    "import sys; from pathlib import Path; from workers.sandbox.apptainer import find_apptainer; "
    "print(find_apptainer(Path(sys.argv[1]), [Path(sys.argv[2])]).why)"
)


tried_by_a_user = pytest.mark.skipif(os.geteuid() == 0, reason="root is refused before anything is tried")


def why_on(node: list[str], scratch: Path, program: Path) -> str:
    """What the probe says on a node that a command makes."""
    command = [*node, sys.executable, "-c", PROGRAM, str(scratch), str(program)]
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def a_program(path: Path, *, suid: int, refusal: str) -> Path:
    """An Apptainer that is there, and refuses to make a user namespace as the real one does."""
    path.write_text(
        "#!/bin/sh\ncase $1 in --version) echo apptainer version 1.3.6 ;;\n"
        f'buildcfg) echo APPTAINER_SUID_INSTALL={suid} ;;\n*) echo "{refusal}" >&2; exit 255 ;; esac\n'
    )
    path.chmod(0o755)
    return path


def test_it_works_here(found: FoundApptainer) -> None:
    assert (found.why, found.own_configuration) == ("", True)


def test_uid_0_is_refused_before_anything_is_tried(place: Path, program: Path) -> None:
    why = why_on(["unshare", "--user", "--map-root-user"], place, program)

    assert "not built by root (uid 0)" in why
    assert "setpriv" in why


def test_a_node_without_user_namespaces_is_named_with_its_switch(place: Path, program: Path) -> None:
    """The kernel says `No space left on device`, which sends people to look at their disks."""
    forbid = 'echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"'
    node = ["unshare", "--user", "--map-current-user", "--keep-caps", "sh", "-c", forbid, "sh"]

    why = why_on(node, place, program)

    assert "a user namespace is refused" in why
    assert "max_user_namespaces is 0: root must allow user namespaces" in why


def test_a_node_that_covers_parts_of_proc_is_named(place: Path, program: Path) -> None:
    """As a container without privileges is: a new /proc would uncover them, so the kernel refuses to mount one."""
    as_ourselves = f"unshare --user --map-user={os.getuid()} --map-group={os.getgid()}"
    cover = f'mount -t tmpfs none /proc/fs && exec {as_ourselves} "$@"'
    node = ["unshare", "--user", "--map-root-user", "--mount", "--propagation", "private", "sh", "-c", cover, "sh"]

    why = why_on(node, place, program)

    assert "a /proc and namespaces of its own is refused" in why
    assert "Parts of /proc are covered" in why


@tried_by_a_user
def test_of_a_setuid_installation_it_is_said_that_its_containers_cannot_be_entered(place: Path) -> None:
    refusal = "FATAL: Failed to create user namespace: permission denied"
    setuid = a_program(place / "apptainer", suid=1, refusal=refusal)
    plain = a_program(place / "singularity", suid=0, refusal=refusal)

    found = find_apptainer(place, [setuid, plain])

    of_setuid, of_plain = found.why.split(f"; {plain}")
    assert found.path is None
    assert refusal in of_setuid
    assert "cannot be entered without the rights of root" in of_setuid
    assert "cannot be entered" not in of_plain
    assert (is_setuid(setuid), is_setuid(plain)) == (True, False)


@tried_by_a_user
def test_one_that_does_not_run_and_one_that_is_not_there(place: Path) -> None:
    broken = place / "apptainer"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)

    assert "it does not run" in find_apptainer(place, [broken]).why
    assert "neither apptainer nor singularity" in find_apptainer(place, []).why


def test_both_names_are_looked_for_apptainer_first(place: Path) -> None:
    for name in ("singularity", "apptainer"):
        a_program(place / name, suid=0, refusal="")

    assert candidates(str(place)) == [place / "apptainer", place / "singularity"]


@pytest.mark.parametrize("name", ["nfs", "lustre"])
def test_a_network_file_system_is_refused_by_its_name(name: str, place: Path) -> None:
    assert f"{place} is on {name}, a network file system" in refuse_file_system(place, FileSystem(name=name, is_network=True))
    assert refuse_file_system(place, FileSystem(name="ext4", is_network=False)) == ""

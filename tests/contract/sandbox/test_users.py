"""Who the user of a sandbox is by its own files: somebody, and nobody of the node."""

from __future__ import annotations

import grp
import os
import pwd
from dataclasses import replace

from tests.contract.sandbox.conftest import an_owner
from tests.contract.sandbox.kinds import Kind
from workers.sandbox import SandboxProvider, SandboxSpec


async def test_the_user_has_a_name_and_nobody_of_the_node_is_known(walled: Kind, provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Programs that look their own user up (ssh, git, getpass) fail without."""
    node_user, node_group = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(os.getgid()).gr_name
    async with await provider.start(replace(spec, workdir="/deep/in"), an_owner()) as sandbox:
        seen = await sandbox.exec(
            f"whoami; id -un; id -gn; getent passwd $(id -u); grep -c -e ^{node_user}: /etc/passwd; grep -c -e ^{node_group}: /etc/group",
            timeout_s=10,
        )

    known = f"agent:x:{os.getuid()}:{os.getgid()}:user of the sandbox:/deep/in:/bin/bash"
    assert seen.stdout_text.splitlines() == ["agent", "agent", "agent", known, "0", "0"]


async def test_what_the_sandbox_makes_of_its_users_stays(walled: Kind, provider: SandboxProvider, spec: SandboxSpec) -> None:
    first = await provider.start(spec, an_owner("job"))
    await first.exec("echo mine >/etc/passwd; rm /etc/group", timeout_s=10)

    handle = await first.park()
    async with await provider.attach(handle, an_owner("job", attempt=2)) as second:
        seen = await second.exec("cat /etc/passwd; ls /etc/group", timeout_s=10)

    assert seen.stdout == b"mine\n"
    assert b"No such file" in seen.stderr

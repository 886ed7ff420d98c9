"""An image's own folders and files can be changed in every way, what was changed is there after `park`, and the image stays as it is."""

from __future__ import annotations

import os

from tests.contract.sandbox.conftest import an_owner
from tests.contract.sandbox.kinds import Kind
from tests.contract.sandbox.test_walls import glance
from tests.sandbox_ground import image_folder
from workers.sandbox import SandboxProvider, SandboxSpec

REMOVED = "rm -r /usr/share/common-licenses"
RENAMED = "mv /etc/skel /etc/skeleton"
REPLACED_BY_A_FILE = "rm -r /usr/share/base-files; echo file >/usr/share/base-files"
REPLACED_BY_A_FOLDER = "rm -r /usr/share/info; mkdir /usr/share/info; echo new >/usr/share/info/new"
REPLACED_BY_A_LINK = "mv /usr/share/bug /usr/share/bug.dpkg-old; ln -s /srv /usr/share/bug"
UPGRADED = """
    printf '#!/bin/sh\\necho two\\n' >/usr/bin/git.dpkg-new; chmod 755 /usr/bin/git.dpkg-new
    ln /usr/bin/git /usr/bin/git.dpkg-tmp; mv /usr/bin/git.dpkg-new /usr/bin/git; rm /usr/bin/git.dpkg-tmp
"""
"""As a package manager does it: the new file beside the old, a second name for the old, one rename over it."""
CHANGED_IN_PLACE = "echo more >>/etc/debian_version; truncate -s 0 /etc/issue; chmod 000 /etc/fstab; touch -d @1 /etc/profile"
LOOK = """
    ls -d /usr/share/common-licenses; ls -A /etc/skel; ls -A /etc/skeleton; cat /usr/share/base-files; ls -A /usr/share/info
    readlink /usr/share/bug; git; ls /usr/bin | grep '[.]dpkg-'; tail -n 1 /etc/debian_version
"""


async def test_folders_of_the_image_can_be_removed_renamed_and_replaced(walled: Kind, provider: SandboxProvider, spec: SandboxSpec) -> None:
    """An overlay without `userxattr`, in a user namespace, cannot mark a folder: `rm -r` gave an input/output error."""
    image = image_folder()
    assert image is not None
    before = glance(image)
    contents = {name: (image / "etc" / name).read_bytes() for name in ("debian_version", "issue", "passwd", "group")}
    skeleton = sorted(os.listdir(image / "etc/skel"))
    first = await provider.start(spec, an_owner("job"))
    changes = (REMOVED, RENAMED, REPLACED_BY_A_FILE, REPLACED_BY_A_FOLDER, REPLACED_BY_A_LINK, UPGRADED, CHANGED_IN_PLACE)

    for change in changes:
        done = await first.exec(f"set -e; {change}", timeout_s=20)
        assert (done.returncode, done.stderr_text) == (0, ""), change
    seen = await first.exec(LOOK, timeout_s=10)
    handle = await first.park()
    async with await provider.attach(handle, an_owner("job", attempt=2)) as second:
        seen_again = await second.exec(LOOK, timeout_s=10)

    lines = seen.stdout_text.splitlines()
    assert (sorted(lines[: len(skeleton)]), lines[len(skeleton) :]) == (skeleton, ["file", "new", "/srv", "two", "more"])
    assert seen.stderr_text.count("No such file or directory") == 2
    assert (seen_again.stdout, seen_again.stderr) == (seen.stdout, seen.stderr)
    assert glance(image) == before
    assert {name: (image / "etc" / name).read_bytes() for name in contents} == contents

"""A worker of a node, to be killed: what a process of `nursery.py` becomes.

It goes through a job's life with a sandbox: makes it, parks it as INIT does, attaches to it as RUN does, lets commands whose lines hold its
word run in it, daemons among them, and stops it. It says each moment before it comes, and at its end the name of the error that ended
it, or `ends`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from workers.sandbox import SandboxError, SandboxOwner, SandboxSpec
from workers.sandbox.service import RemoteSandboxes, ServiceNotThere
from workers.sandbox.spec import Isolation

STARTS = """
sleep {word} &
setsid sleep {word} </dev/null >/dev/null 2>&1 &
(setsid sh -c 'sleep {word}; :' </dev/null >/dev/null 2>&1 &)
trap '' HUP TERM INT
(trap '' HUP TERM INT; while :; do sleep {word}; done) &
"""
UNMARKED = "(env -i setsid /bin/sleep {word} </dev/null >/dev/null 2>&1 &)\n"


async def live(place: Path, isolation: str, image: str, word: str, last: str, say: Callable[[str], None]) -> None:
    """Lives a job's life.

    Args:
        last: the moment it shall reach: in `runs`, and with `kernel`, which is just before, it stays.
    """
    job, spec = f"job-{word}", SandboxSpec(isolation=Isolation(isolation), image=image)
    say("connects")
    try:
        async with RemoteSandboxes(place / "run", boot=word) as node:
            say("starts")
            sandbox = await node.start(spec, SandboxOwner(job_id=job, attempt=1, boot_id=word))
            say("fills")
            await sandbox.write_file("made", b"by init")
            await sandbox.exec("echo here", timeout_s=30)
            say("parks")
            handle = await sandbox.park()
            say("attaches")
            sandbox = await node.attach(handle, SandboxOwner(job_id=job, attempt=2, boot_id=word))
            script = STARTS + (UNMARKED if isolation != "none" else "")
            await sandbox.shell().run(script.format(word=word), timeout_s=30)
            if last == "kernel":
                await sandbox.kernel().run(f"import subprocess; p = subprocess.Popen(['sleep', '{word}'])", timeout_s=60)
                say("kernel")
            say("runs")
            await sandbox.exec(f"sleep {word if last in ('runs', 'kernel') else 0}", timeout_s=600)
            say("stops")
            await sandbox.stop(grace_s=0.02)
    except (SandboxError, ServiceNotThere) as error:
        say(type(error).__name__)
    else:
        say("ends")

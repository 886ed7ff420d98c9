"""Workers of a node, to be killed: `python crew_program.py PLACE ISOLATION IMAGE`. A line `WORD LAST` on its input makes one.

Each is a process of its own, forked from this one, which has imported everything already. It goes through a job's life with a sandbox:
makes it, parks it as INIT does, attaches to it as RUN does, lets commands whose lines hold WORD run in it, daemons among them, and
stops it. It says each moment before it comes (`WORD PID MOMENT`), stays in `runs` when that is the LAST it shall reach, and prints at its
end what ended it: the name of the error, or `ends`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
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


async def life(place: str, isolation: str, image: str, word: str, last: str) -> None:
    def say(moment: str) -> None:
        os.write(1, f"{word} {os.getpid()} {moment}\n".encode())

    job, spec = f"job-{word}", SandboxSpec(isolation=Isolation(isolation), image=image)
    say("connects")
    try:
        async with RemoteSandboxes(Path(place) / "run", boot=word) as node:
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
        sys.stderr.write(f"{word}: {error!r}\n")
        say(type(error).__name__)
    else:
        say("ends")


def main() -> None:
    place, isolation, image = sys.argv[1:]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    for line in sys.stdin:
        word, last = line.split()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                asyncio.run(life(place, isolation, image, word, last))
            finally:
                os._exit(0)


main()

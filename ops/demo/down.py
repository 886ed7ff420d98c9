"""Ends demos that were kept."""

from __future__ import annotations

import signal
import sys
import time

from ops.demo.places import kept_demos
from workers.sandbox.local.identity import is_running, send_signal

DOWN_TIMEOUT_S = 20.0


def down() -> int:
    """Stops demos that were kept: their hosts, and with them what those started."""
    found = False
    for path, state in kept_demos():
        found = True
        if state.is_up():
            send_signal(state.host, signal.SIGTERM)
            deadline_s = time.monotonic() + DOWN_TIMEOUT_S
            while is_running(state.host) and time.monotonic() < deadline_s:
                time.sleep(0.05)
            if is_running(state.host):
                print(f"{state.run}: still stopping; its log: {state.logs}/host.log", file=sys.stderr)
                return 1
            print(f"{state.run}: stopped")
        else:
            print(f"{state.run}: was not running any more")
        path.unlink(missing_ok=True)
    if not found:
        print("no demo is up")
    return 0

"""What a worker loads before it works."""

from __future__ import annotations

import subprocess
import sys

OF_KERNELS = ("zmq", "jupyter_client", "traitlets")


def test_a_worker_starts_without_the_client_of_kernels() -> None:
    """It reaches kernels through the node service; the service alone talks to them, and has loaded what it needs before it has work."""
    program = "import sys, workers.worker; print(*sorted({name.partition('.')[0] for name in sys.modules}))"

    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()

    assert "workers" in loaded
    assert not set(OF_KERNELS) & set(loaded)

"""The environment of sandboxed processes, built from nothing: what is not written here does not get in."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

MARK = "ROLLSTREAM_SANDBOX_ID"
"""In every process of a sandbox: a sweep finds by it what outlived a killed holder."""
PASSED_ON = ("TZ",)
INSIDE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where programs are behind walls, unless the image says more."""
LIBRARY_PATHS = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH")
"""Without them some installed interpreters do not even start."""
LANG = "en_US.UTF-8" if sys.platform == "darwin" else "C.UTF-8"


def library_paths() -> dict[str, str]:
    """Where the loader looks, as the worker has it."""
    return {name: os.environ[name] for name in LIBRARY_PATHS if name in os.environ}


def sandbox_environment(sandbox_id: str, home: str, temporary: str, base: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """What each process of a sandbox starts with.

    Args:
        base: `PATH` and the like: of the worker where there are no walls, of the image where there are.
        added: what the task wants.
    """
    passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {
        **passed_on,
        **base,
        "LANG": LANG,
        "HOME": home,
        "TMPDIR": temporary,
        "IPYTHONDIR": f"{temporary}/ipython",
        "JUPYTER_CONFIG_DIR": f"{temporary}/jupyter",
        "JUPYTER_DATA_DIR": f"{temporary}/jupyter",
        "JUPYTER_RUNTIME_DIR": f"{temporary}/jupyter",
        **added,
        MARK: sandbox_id,
    }

"""Prometheus's promtool for tests: where it is, and what it says."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROMETHEUS = ROOT / "ops/prometheus"
RULES = PROMETHEUS / "alerts.yml"


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """What it says to a command; skips the test where there is none, unless it is required."""
    named = os.environ.get("ROLLSTREAM_TEST_PROMTOOL") or shutil.which("promtool")
    own = ROOT / ".venv/tools/promtool"
    binary = named or (str(own) if own.exists() else None)
    if binary is None:
        why = "no promtool: ./ops/launch test --system-packages, or ROLLSTREAM_TEST_PROMTOOL=/path"
        if os.environ.get("ROLLSTREAM_REQUIRE_PROMTOOL"):
            pytest.fail(why)
        pytest.skip(why)
    return subprocess.run([binary, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=50, check=False)

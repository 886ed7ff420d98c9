"""Replicas of housekeeping as processes: RQ takes its key prefix when it is imported, so each namespace needs a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import redis

from pipeline.settings import QueueSettings
from tests.e2e.conftest import ROOT

PATIENCE_S = 45.0


@dataclass
class Site:
    """Folders, a namespace and processes of a test's own."""

    home: Path
    settings: QueueSettings
    looker: redis.Redis
    replicas: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def environment(self, **variables: str) -> dict[str, str]:
        """What processes see; names of housekeeping's settings are given without their beginning."""
        folders = {f"ROLLSTREAM_{name.upper()}_DIR": str(self.home / name) for name in ("run", "data", "scratch", "state")}
        queue = {"ROLLSTREAM_REDIS_URL": self.settings.redis_url, "ROLLSTREAM_NAMESPACE": self.settings.namespace}
        own = {name if name.isupper() else f"ROLLSTREAM_HOUSEKEEPING_{name.upper()}": value for name, value in variables.items()}
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "COLUMNS": "120",
            "RQ_KEY_PREFIX": self.prefix,
            **folders,
            **queue,
            **own,
        }

    @property
    def prefix(self) -> str:
        return f"{self.settings.namespace}:hk"

    def command(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs `rollstream WORDS`."""
        return self.program([sys.executable, "-m", "ops.cli", *words], **variables)

    def program(self, words: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs any program to its end."""
        return subprocess.run(
            words,
            cwd=ROOT,
            env=self.environment(**variables),
            capture_output=True,
            text=True,
            timeout=600,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    def once(self, name: str, *words: str, **variables: str) -> dict[str, Any]:
        """Does a job here, in a process, and answers what it found."""
        done = self.command("housekeeping", "once", name, "--json", *words, **variables)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def start(self, **variables: str) -> subprocess.Popen[bytes]:
        """Starts a replica."""
        with (self.home / f"replica-{len(self.replicas)}.log").open("wb") as log:
            replica = subprocess.Popen(
                [sys.executable, "-m", "ops.cli", "housekeeping", "run"],
                cwd=ROOT,
                env=self.environment(**variables),
                stdout=log,
                stderr=log,
            )
        self.replicas.append(replica)
        return replica

    def rq_keys(self, pattern: str) -> list[str]:
        """Keys of RQ, without our prefix."""
        return sorted(key.decode().removeprefix(f"{self.prefix}:") for key in self.looker.scan_iter(f"{self.prefix}:{pattern}", count=1000))

    def executions(self, job_id: str) -> int:
        """How often a job of RQ came to an end."""
        return int(self.looker.xlen(f"{self.prefix}:results:{job_id}"))

    def status(self, job_id: str) -> str:
        """What RQ says of a job; empty = it knows none."""
        found = self.looker.hget(f"{self.prefix}:job:{job_id}", "status")
        return found.decode() if isinstance(found, bytes) else ""

    def finished(self, name: str) -> list[str]:
        """Jobs of that line of the cron that ended well."""
        jobs = [key.removeprefix("job:") for key in self.rq_keys(f"job:{name}-*")]
        return [job for job in jobs if self.status(job) == "finished"]


@pytest.fixture
def site(settings: QueueSettings, looker: Callable[[str], redis.Redis]) -> Iterator[Site]:
    """A site whose replicas are gone after the test, with RQ's keys."""
    with TemporaryDirectory(prefix="hk-") as folder:
        site = Site(Path(folder), settings, looker(settings.redis_url))
        yield site
        for replica in site.replicas:
            if replica.poll() is None:
                replica.kill()
            replica.wait()
        for key in site.looker.scan_iter(f"{site.prefix}:*", count=1000):
            site.looker.delete(key)

"""What the node service needs to know, and where the others find it: table `[sandbox]`, in the environment `ROLLSTREAM_SANDBOX_<NAME>`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from pipeline.folders import Folders
from pipeline.settings import ENVIRONMENT_PREFIX, TableSettings
from workers.sandbox.network import NetworkRules

SANDBOXES = "sandboxes"
"""Folder below scratch."""


class SandboxSettings(TableSettings):
    """Settings of the sandboxes of one node."""

    table = "sandbox"
    variables = f"{ENVIRONMENT_PREFIX}SANDBOX_"

    backend: str = Field(default="auto", pattern=r"^[a-z]+$")
    """What builds the walls; `auto` = the first that works here and has any."""
    accept_untrusted: bool = False
    """With the backend `process`: serve tasks that ask for isolation although there is none. For development."""
    entry: Literal["outside", "inside"] = "outside"
    """How what runs behind walls gets there: it enters from outside, or a server inside starts it, where a site lets nobody enter."""
    network_allow: tuple[str, ...] = ()
    """What sandboxes of the class `isolated+network` may reach: hosts (`pypi.org:443`, `*.pythonhosted.org`), addresses, networks. Empty =
    that class is not served."""
    node: str = Field(default="", pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,63})?$")
    """Name of this node; empty = the workers' default."""
    run_dir: Path | None = None
    """Folder of the service's socket; none = the run folder of this machine. Workers and commands look there."""
    scratch_dir: Path | None = None
    """Where sandboxes live; none = the scratch folder of this machine."""
    autostart: bool = True
    """Whether a worker starts a service where none answers. Off: it waits for one."""
    starts: int = Field(default=0, ge=0, le=256)
    """Sandboxes that come up at once; 0 = as many as there are cores for this process."""
    starts_per_image: int = Field(default=2, ge=1, le=256)
    """Of them, from one image."""
    start_s: float = Field(default=180.0, gt=0)
    """Longest from asking for a sandbox to its first answer, waiting for others included."""
    warm: int = Field(default=0, ge=0, le=64)
    """Sandboxes that are kept ready of each of the specs seen last; 0 = none."""
    warm_ttl_s: float = Field(default=600.0, gt=0)
    """Longest that one is kept ready."""
    janitor_s: float = Field(default=60.0, gt=0)
    """Between two looks for what was left behind."""
    grace_s: float = Field(default=10.0, ge=0)
    """After the first SIGTERM attachments have this long."""

    @field_validator("network_allow")
    @classmethod
    def _is_list_of_hosts(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        NetworkRules.parse(patterns)
        return patterns

    @property
    def network(self) -> NetworkRules | None:
        """`network_allow`, read; None when nothing is on it."""
        return NetworkRules.parse(self.network_allow) if self.network_allow else None

    @property
    def run(self) -> Path:
        """Folder of the socket."""
        return self.run_dir or Folders.from_environment().run

    @property
    def scratch(self) -> Path:
        """Folder that sandboxes live below."""
        return self.scratch_dir or Folders.from_environment().scratch

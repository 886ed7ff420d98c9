"""Which text environments a worker may run. A job names one of them; what is imported for it is said here alone."""

from __future__ import annotations

from fnmatch import fnmatchcase

from pydantic import Field

from pipeline.settings import ENVIRONMENT_PREFIX, TableSettings


class GymSettings(TableSettings):
    """Text environments of a worker."""

    table = "gym"
    variables = f"{ENVIRONMENT_PREFIX}GYM_"

    allowed: tuple[str, ...] = ("rollstream/*", "gem/game:*")
    """`PACKAGE/ENVIRONMENT` with `*` and `?`. One that is allowed is allowed with all options it takes, so none that runs what it is told
    or reads files by name should be."""
    modules: tuple[str, ...] = ()
    """Modules that register environments of gymnasium or GEM, imported in the environments' processes."""
    processes: int = Field(default=4, ge=1, le=256)
    """Environments that are kept between steps; more at a time are made again and brought to where they were."""
    start_timeout_s: float = Field(default=60.0, gt=0, le=600)
    """Processor time for the import of a package and the beginning of an episode."""
    step_timeout_s: float = Field(default=10.0, gt=0, le=600)
    """Processor time of one step."""
    memory_mb: int = Field(default=2_048, ge=64, le=65_536)
    """Address space of one process beyond what it begins with."""

    def allows(self, package: str, environment: str) -> bool:
        """Whether a job may have it."""
        return any(fnmatchcase(f"{package}/{environment}", pattern) for pattern in self.allowed)

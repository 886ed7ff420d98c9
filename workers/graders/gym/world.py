"""One environment with its seed, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any, Literal, get_args

Package = Literal["rollstream", "gem", "gymnasium", "verifiers"]
PACKAGES: tuple[Package, ...] = get_args(Package)


@dataclass(frozen=True, slots=True, kw_only=True)
class GymWorld:
    """What must be the same for two episodes to be one: the environment, how it is made, the seed of its `reset`."""

    package: Package
    environment: str
    """As the package registers it."""
    options: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments, as JSON
    seed: int = 0

    def as_map(self) -> dict[str, Any]:
        """For the environment's process."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Happened:
    """What `reset` or a `step` brought."""

    text: str
    reward: float
    terminated: bool
    truncated: bool
    system: str = ""
    """Of `reset`: what stands before its text as the system message."""

    @property
    def ends(self) -> bool:
        return self.terminated or self.truncated

    @property
    def digest(self) -> str:
        """Of all of it: equal for two episodes that went the same way."""
        whole = repr((self.text, self.reward, self.terminated, self.truncated, self.system))
        return blake2b(whole.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Replayed:
    """What `reset` or a `step` brought when it was done again: enough to judge it. Texts of a whole episode may be megabytes."""

    digest: str
    reward: float
    terminated: bool
    truncated: bool

    @classmethod
    def of(cls, happened: Happened) -> Replayed:
        """Of what came."""
        return cls(happened.digest, happened.reward, happened.terminated, happened.truncated)


@dataclass(frozen=True, slots=True)
class Refused:
    """A text that is no action of this environment: nothing was done."""

    why: str


@dataclass(frozen=True, slots=True)
class Crashed:
    """An action on which the environment breaks each time, while everything before it goes as it went: the model's doing."""

    why: str

"""Where a demo keeps its things, and how others find a demo that was kept."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from pipeline.folders import Folders, make_own_folder, make_private_folder
from workers.sandbox.local.identity import ProcessIdentity, identify, is_running, machine_boot

PREFIX = "demo-"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoState:
    """A demo that runs, as its state file says."""

    run: str
    pid: int
    """Of the host process."""
    started: int
    """With the pid: that very process."""
    boot: str
    """Of the machine."""
    redis_url: str
    """Without a password."""
    model_url: str
    logs: str

    @property
    def host(self) -> ProcessIdentity:
        """The host process."""
        return ProcessIdentity(self.pid, self.started)

    def is_up(self) -> bool:
        """Whether its host runs."""
        return self.boot == machine_boot() and is_running(self.host)


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Folders of one demo."""

    run: str
    state_file: Path
    logs: Path
    scratch: Path
    sandbox_run: Path
    """Sockets of the demo's own sandbox service."""
    model_socket: Path
    """Of a scripted model."""
    model_state: Path
    """Where a real model server tells its address."""
    models: Path
    """Models that demos made, kept for later ones."""


def new_run() -> str:
    """An id for a new demo: each is a run of its own."""
    return time.strftime("demo-%m%d-%H%M%S") + f"-{os.getpid() % 1000:03d}"


def places_of(run: str) -> Places:
    """Where the demo of a run keeps its things."""
    folders = Folders.from_environment()
    make_own_folder(folders.state, "ROLLSTREAM_STATE_DIR")
    make_private_folder(folders.scratch, "ROLLSTREAM_SCRATCH_DIR")
    make_private_folder(folders.run)
    return Places(
        run=run,
        state_file=folders.state / f"{run}.json",
        logs=folders.state / "logs" / run,
        scratch=folders.scratch / run,
        sandbox_run=folders.run / f"{run[-10:]}-sbx",
        model_socket=folders.run / f"{run[-10:]}-llm",
        model_state=folders.state / "logs" / run / "model.json",
        models=folders.state / "models",
    )


def write_state(places: Places, *, redis_url: str, model_url: str) -> None:
    """Says that this process hosts the demo."""
    me = identify(os.getpid())
    assert me is not None  # we run
    state = DemoState(
        run=places.run,
        pid=me.pid,
        started=me.started,
        boot=machine_boot(),
        redis_url=redis_url,
        model_url=model_url,
        logs=str(places.logs),
    )
    fresh = places.state_file.with_suffix(".new")
    fresh.write_bytes(orjson.dumps(asdict(state)))
    fresh.replace(places.state_file)


def read_state(path: Path) -> DemoState | None:
    """The state in a file; None when there is none or it is not ours to read."""
    try:
        found = orjson.loads(path.read_bytes())
        return DemoState(**{name: found[name] for name in DemoState.__slots__})
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return None


def kept_demos() -> Iterator[tuple[Path, DemoState]]:
    """Demos that left a state file."""
    for path in sorted(Folders.from_environment().state.glob(f"{PREFIX}*.json")):
        state = read_state(path)
        if state is not None:
            yield path, state

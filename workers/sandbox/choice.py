"""Which backends work on this node, and which one serves.

1. `auto` is the first that works of `apptainer` and `bubblewrap`. `process`, which has no walls, is only ever used when it is named.
2. A backend works when a whole sandbox of it was made, entered and ended here; not when its program is installed.
3. `accept_untrusted` lets `process` serve tasks that ask for isolation, on a developer's machine with a server of its own. With the address
   of a Redis it is refused: others submit there, and the node would run what they send as its own user.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from pipeline.errors import InvalidRequest
from pipeline.folders import make_private_folder
from workers.sandbox.apptainer import ApptainerBackend, find_apptainer
from workers.sandbox.base import Probe
from workers.sandbox.bubblewrap import BubblewrapBackend, find_bwrap
from workers.sandbox.local import Backend, Entry, LocalSandboxes
from workers.sandbox.local.trials import trial_folders
from workers.sandbox.network import NetworkRules
from workers.sandbox.process import ProcessBackend
from workers.sandbox.spec import Isolation

AUTO = "auto"
AUTO_ORDER = ("apptainer", "bubblewrap")
BACKENDS = (*AUTO_ORDER, "process")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was found out about this node."""

    wanted: str
    backend: Backend | None
    """The one that serves; None when what was wanted does not work."""
    probes: Mapping[str, Probe]
    """All that were tried, by name."""

    @property
    def isolation(self) -> frozenset[Isolation]:
        """What this node serves."""
        return self.probes[self.backend.name].isolation if self.backend is not None else frozenset()

    def why_none(self) -> str:
        """Each backend that was tried with what keeps it from working, and what can be done; for a person."""
        tried = "\n".join(f"  {probe.backend}: {probe.why}" for probe in self.probes.values() if not probe.works)
        advice = "For code that you trust there is a backend without walls: ROLLSTREAM_SANDBOX_BACKEND=process"
        return f"no sandbox backend works here ({self.wanted!r} is set):\n{tried}\n{advice}"


async def choose_backend(
    wanted: str,
    *,
    scratch_dir: Path,
    run_dir: Path,
    accept_untrusted: bool = False,
    redis_url: str = "",
    every: bool = False,
    network: NetworkRules | None = None,
    entry: Entry = "outside",
) -> Choice:
    """Tries what the setting `sandbox.backend` allows, in order, until one works.

    Args:
        scratch_dir, run_dir: where sandboxes and their sockets will be; probes leave nothing there.
        redis_url: the address that the node's workers were given; empty = they have a server of their own.
        every: try all backends, also behind the first that works: for a report.
        network: where sandboxes of the class `isolated+network` may go; None = that class is not served.
        entry: how what runs behind walls gets there (ADR 20).

    Raises:
        InvalidRequest: no such backend, or one that may not be used like this.
    """
    if wanted != AUTO and wanted not in BACKENDS:
        raise InvalidRequest(f"expected {AUTO} or one of {', '.join(BACKENDS)}, got {wanted!r}", field="sandbox.backend")
    if accept_untrusted and wanted != "process":
        raise InvalidRequest("is for the backend process only; the others have walls", field="sandbox.accept_untrusted")
    if accept_untrusted and redis_url:
        raise InvalidRequest(
            "is refused with a Redis address: whoever can submit there would run code as this user, with this user's files and network",
            field="sandbox.accept_untrusted",
        )
    if entry == "inside" and wanted == "process":
        raise InvalidRequest("inside of what? The backend process has no walls: outside is the only entry", field="sandbox.entry")
    if entry == "inside" and network is not None:
        raise InvalidRequest(
            "inside leaves no way to the network: it is opened by entering. Take sandbox.network_allow away, or enter from outside",
            field="sandbox.entry",
        )
    names = AUTO_ORDER if wanted == AUTO else (wanted,)
    chosen: Backend | None = None
    probes: dict[str, Probe] = {}
    for name in (*names, *(other for other in BACKENDS if every and other not in names)):
        if chosen is not None and not every:
            break
        backend, probes[name] = await _try(name, scratch_dir, run_dir, accept_untrusted=accept_untrusted, network=network, entry=entry)
        if chosen is None and name in names and probes[name].works:
            chosen = backend
    if chosen is not None and chosen.name == "process":
        log.warning(
            "process_sandbox_has_no_walls",
            meaning="FOR DEVELOPMENT ONLY: code of models runs as this user, with this user's files and network",
            accept_untrusted=accept_untrusted,
        )
    return Choice(wanted=wanted, backend=chosen, probes=probes)


async def _try(
    name: str, scratch_dir: Path, run_dir: Path, *, accept_untrusted: bool, network: NetworkRules | None, entry: Entry
) -> tuple[Backend | None, Probe]:
    """Finds the backend's program, then makes, enters and ends one sandbox."""
    entry = "outside" if name == "process" else entry
    await asyncio.to_thread(make_private_folder, scratch_dir, "ROLLSTREAM_SANDBOX_SCRATCH_DIR")
    await asyncio.to_thread(make_private_folder, run_dir, "ROLLSTREAM_SANDBOX_RUN_DIR")
    backend, why = await asyncio.to_thread(_find, name, scratch_dir, accept_untrusted=accept_untrusted, network=network)
    if backend is None:
        return None, Probe(backend=name, works=False, isolation=frozenset(), why=why)
    with trial_folders(scratch_dir, run_dir) as (scratch, run):
        async with LocalSandboxes(backend, scratch_dir=scratch, run_dir=run, node="probe", entry=entry) as sandboxes:
            probe = await sandboxes.probe()
    return backend if probe.works else None, probe


def _find(name: str, scratch_dir: Path, *, accept_untrusted: bool, network: NetworkRules | None) -> tuple[Backend | None, str]:
    if name == "process":
        return ProcessBackend(accept_untrusted=accept_untrusted), ""
    if name == "apptainer":
        apptainer = find_apptainer(scratch_dir)
        if apptainer.path is None:
            return None, apptainer.why
        return ApptainerBackend(apptainer.path, own_configuration=apptainer.own_configuration, network=network), ""
    bwrap = find_bwrap(scratch_dir)
    return (BubblewrapBackend(bwrap.path, network=network), "") if bwrap.path is not None else (None, bwrap.why)

"""Which causes the servers' standing together shows. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ops.status.set_up import MasterFacts, SetUpFacts
from ops.status.trouble import Trouble
from pipeline.redis_address import SetUp

DOCTOR = ("rollstream", "doctor")
TOO_FEW = ", too few to let a replica take over when the master is lost"
REPLICATION = ("rollstream", "redis", "cli", "INFO", "replication")


def of_set_up(facts: SetUpFacts) -> Iterator[Trouble]:
    """All of them."""
    if not facts.map_is_known:
        yield Trouble(cause="master_down", what="no node of the Cluster that the address names answers", next=DOCTOR, is_blocking=True)
    if facts.unserved:
        yield Trouble(
            cause="slots_unserved",
            what=f"no node of the Cluster serves the slots {_ranges(facts.unserved)}{_of_shards(facts.unserved_shards)}: give them to one "
            "(redis-cli --cluster fix)",
            next=DOCTOR,
            is_blocking=bool(facts.unserved_shards),
        )
    yield from _of_sentinels(facts)
    for master in facts.masters:
        if not master.answers and (facts.set_up is SetUp.CLUSTER or master.address):
            yield _master_down(facts, master)
        elif master.replicas is not None:
            yield from _of_replicas(facts, master)


def _master_down(facts: SetUpFacts, master: MasterFacts) -> Trouble:
    others = ", ".join(master.replicas_known)
    if facts.set_up is SetUp.SENTINEL:
        seen = sum(sentinel.sees_master_down for sentinel in facts.sentinels)
        told = f"the master of {facts.name!r}, does not answer ({seen} of {len(facts.sentinels)} Sentinels see it down)"
    else:
        told = f"master of the slots {_ranges(master.slots)}{_of_shards(master.shards)}, does not answer"
    then = (
        f"its replica {others} takes over within seconds, or it comes back" if others else "it has no replica that is well: start it again"
    )
    return Trouble(
        cause="master_down",
        what=f"{master.address}, {told}; {then}",
        next=("rollstream", "status") if others else DOCTOR,
        is_blocking=facts.set_up is SetUp.SENTINEL or bool(master.shards),
    )


def _of_replicas(facts: SetUpFacts, master: MasterFacts) -> Iterator[Trouble]:
    who = f"master {master.address}" if master.address else "Redis"
    down = list(dict.fromkeys(replica for sentinel in facts.sentinels for replica in sentinel.replicas_down))
    which = f" ({', '.join(down)} is down)" if down else ""
    count = f"{who} has {_count(master.replicas or 0)} in sync{which}"
    if (master.replicas or 0) < facts.wait_replicas:
        yield Trouble(
            cause="replica_lost",
            what=f"{count}, and wait_replicas = {facts.wait_replicas}: nothing that is written counts as done until one is back",
            next=REPLICATION,
            is_blocking=True,
        )
    elif facts.set_up is not SetUp.SINGLE and not master.replicas:
        yield Trouble(cause="replica_lost", what=f"{count}: when it is lost, nobody takes over and what it holds is gone", next=REPLICATION)
    elif down:
        yield Trouble(cause="replica_lost", what=count, next=REPLICATION)


def _of_sentinels(facts: SetUpFacts) -> Iterator[Trouble]:
    lost = [sentinel for sentinel in facts.sentinels if sentinel.fault]
    if not lost:
        return
    well = [sentinel for sentinel in facts.sentinels if not sentinel.fault]
    total = max([sentinel.others + 1 for sentinel in well], default=len(facts.sentinels))
    enough = max([sentinel.quorum for sentinel in well], default=0)
    no_majority = len(well) <= total // 2 or len(well) < enough
    yield Trouble(
        cause="sentinel_lost",
        what=f"of {total} Sentinels {len(well)} watch {facts.name!r}{TOO_FEW if no_majority else ''}; {lost[0].address}: {lost[0].fault}",
        next=DOCTOR,
        is_blocking=not well,
    )


def _count(replicas: int) -> str:
    return "no replica" if not replicas else "1 replica" if replicas == 1 else f"{replicas} replicas"


def _ranges(slots: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{first}-{last}" if first != last else str(first) for first, last in slots)


def _of_shards(shards: Sequence[int]) -> str:
    return f" (shards {', '.join(map(str, shards))})" if shards else " (no shard of ours)"

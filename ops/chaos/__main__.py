"""`python -m ops.chaos`: chaos campaigns by hand."""

from __future__ import annotations

import argparse
import asyncio
import sys

from ops.chaos.campaign import Campaign, Plan
from pipeline.testing.servers import found_servers


def main() -> int:
    """Runs the campaign that the options describe on each server found; 1 when something did not hold."""
    parser = argparse.ArgumentParser(prog="python -m ops.chaos", description="Break a running pipeline, then count.")
    parser.add_argument("--server", default="", help="only this one (valkey, redis7, redis8)")
    parser.add_argument("--jobs", type=int, default=800)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--restarts", type=int, default=0, help="SIGKILLs of the server, append-only file `always`")
    parser.add_argument("--outage", action="store_true", help="cut all connections for two leases")
    parser.add_argument("--runs", type=int, default=1, help="runs, each on a shard of its own; the first floods")
    parser.add_argument("--no-failpoints", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    failed = False
    for kind in found_servers():
        if options.server and kind.name != options.server:
            continue
        plan = Plan(
            jobs=options.jobs, kills=options.kills, restarts=options.restarts, outage=options.outage, runs=options.runs, seed=options.seed
        )
        if options.no_failpoints:
            plan = Plan(**{**{name: getattr(plan, name) for name in plan.__slots__}, "failpoints": (), "freezes": 0})
        verdict = asyncio.run(Campaign(plan, kind, say=lambda line: print(f"  {line}", flush=True)).run())
        print(f"{kind.name}: {verdict}", flush=True)
        failed = failed or bool(verdict.faults)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

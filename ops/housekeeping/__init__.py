"""Work beside the queue of rollouts: sweeps, reports and exports by a cron, pulls and builds of images on demand
(docs/adr/0030-housekeeping.md).

JOBS, job_named, a_workplace     what there is to do, and doing it here
HousekeepingQueue                RQ's queues of it; run_replica: a cron and workers
HousekeepingSettings             `[housekeeping]`
"""

from ops.housekeeping.jobs import JOBS, HousekeepingJob, a_workplace, job_named
from ops.housekeeping.queue import HousekeepingQueue
from ops.housekeeping.replica import run_replica
from ops.housekeeping.settings import HousekeepingSettings

__all__ = ["JOBS", "HousekeepingJob", "HousekeepingQueue", "HousekeepingSettings", "a_workplace", "job_named", "run_replica"]

"""Doubles and builders for tests: small real things, so that nothing is patched. Open to the tests of handlers and trainers too."""

from pipeline.testing.builders import (
    A_RUN,
    a_grade,
    a_group,
    a_job,
    a_prompt,
    a_segment,
    a_settlement,
    a_template,
    a_trajectory,
    a_turn,
    a_unit,
    jobs_of,
)
from pipeline.testing.lossy_proxy import LossyProxy, Trap
from pipeline.testing.manual_worker import ManualWorker, carry, held_of
from pipeline.testing.queue_audit import Entry, QueueAudit
from pipeline.testing.servers import PrivateServer, ServerKind, found_servers
from pipeline.testing.wait import WaitedTooLong, wait_in_thread, wait_until

__all__ = [
    # records
    "A_RUN",
    # doubles
    "Entry",
    "LossyProxy",
    "ManualWorker",
    "PrivateServer",
    "QueueAudit",
    "ServerKind",
    "Trap",
    # waiting
    "WaitedTooLong",
    "a_grade",
    "a_group",
    "a_job",
    "a_prompt",
    "a_segment",
    "a_settlement",
    "a_template",
    "a_trajectory",
    "a_turn",
    "a_unit",
    "carry",
    "found_servers",
    "held_of",
    "jobs_of",
    "wait_in_thread",
    "wait_until",
]

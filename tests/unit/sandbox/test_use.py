"""What two attachments used together."""

from __future__ import annotations

from workers.sandbox.use import KEPT_NOTICES, SandboxUse, joined


def test_a_sandbox_that_was_attached_again_is_not_counted_twice() -> None:
    init = SandboxUse(enforced={"memory": "cgroup v2"}, memory_peak_bytes=300, processes_peak=2, cpu_s=4.0, disk_bytes=50, network_bytes=10)
    run = SandboxUse(
        enforced={"memory": "cgroup v2"},
        memory_peak_bytes=200,
        processes_peak=9,
        cpu_s=7.0,
        cpu_before_s=4.0,
        disk_bytes=40,
        network_bytes=5,
    )
    judged = SandboxUse(enforced={"memory": "watchdog"}, cpu_s=1.5)

    job = joined(joined(init, run), judged)

    assert job.cpu_s == 8.5
    assert (job.memory_peak_bytes, job.processes_peak, job.disk_bytes, job.network_bytes) == (300, 9, 50, 15)
    assert job.enforced == {"memory": "cgroup v2, then watchdog"}
    assert joined(job, judged).enforced == job.enforced
    assert SandboxUse.from_map(job.to_map()) == job


def test_notices_of_a_job_stay_few() -> None:
    many = SandboxUse(notices=tuple(map(str, range(KEPT_NOTICES))))

    assert joined(many, SandboxUse(notices=("last",))).notices == (*many.notices[1:], "last")

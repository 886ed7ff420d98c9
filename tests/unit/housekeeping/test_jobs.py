"""The list of jobs: each can be found, has a period, and its ticks are numbered by one clock."""

from __future__ import annotations

from importlib import import_module

import pytest

from ops.housekeeping import JOBS, HousekeepingSettings
from ops.housekeeping.queue import FUNCTIONS
from pipeline.errors import InvalidRequest
from pipeline.settings import QueueSettings


@pytest.mark.parametrize("name", JOBS)
def test_each_job_has_its_function_and_a_period(name: str) -> None:
    module, _, function = JOBS[name].function.partition(":")

    assert callable(getattr(import_module(f"ops.housekeeping.{module}"), function))
    settings = HousekeepingSettings(gone_run_keep_s=1, export_runs=("*",), export_dir="/x")  # type: ignore[arg-type]  # as text comes
    assert JOBS[name].every_s(settings) > 0


def test_what_needs_a_setting_never_runs_without_it() -> None:
    settings = HousekeepingSettings()

    assert [name for name in JOBS if not JOBS[name].every_s(settings)] == ["runs", "export"]


@pytest.mark.parametrize("path", sorted(FUNCTIONS))
def test_each_function_that_a_worker_may_run_is_there(path: str) -> None:
    module, _, name = path.rpartition(".")

    assert callable(getattr(import_module(module), name))


def test_a_housekeeping_server_has_its_own_user_and_the_queues_password_never_reaches_it() -> None:
    from ops.housekeeping.queue import server_of

    queue = QueueSettings(redis_url="redis://queue", redis_user="worker", redis_password_file="/secret")  # type: ignore[arg-type]

    assert server_of(HousekeepingSettings(), queue) is queue
    own = server_of(HousekeepingSettings(redis_url="redis://hk"), queue)
    assert (own.redis_url, own.redis_user, own.redis_password_file) == ("redis://hk", "", None)


def test_a_queue_on_sentinels_or_a_cluster_asks_for_a_standalone_server() -> None:
    from ops.housekeeping.queue import server_of

    queue = QueueSettings(redis_url="redis+cluster://a:1,b:2")

    with pytest.raises(InvalidRequest, match="one standalone server"):
        server_of(HousekeepingSettings(), queue)
    assert server_of(HousekeepingSettings(redis_url="redis://hk"), queue).redis_url == "redis://hk"

"""The scenarios of the redis cases, by the id of the case: each plays its story on the product and says what came out differently."""

from __future__ import annotations

import signal
import time
from collections.abc import Awaitable, Callable

from ops.child_processes import log_tail
from pipeline.messages import Stage
from pipeline.redis_client import ask
from pipeline.testing.wait import wait_until
from tests.cases.areas.clock_jumps import server_with_a_clock_of_its_own
from tests.cases.areas.redis_stage import RUN, QueueStage, queue_stage
from tests.cases.case import Case, Difference

Scenario = Callable[[Case], Awaitable[list[Difference]]]

SCENARIOS: dict[str, Scenario] = {}
"""Filled by `scenario`."""

MEBIBYTE = 1024 * 1024


def scenario(case_id: str) -> Callable[[Scenario], Scenario]:
    """Marks the function that plays the case `case_id`."""

    def mark(play: Scenario) -> Scenario:
        if case_id in SCENARIOS:
            raise ValueError(f"two scenarios for {case_id}")
        SCENARIOS[case_id] = play
        return play

    return mark


def differs(what: str, expected: object, found: object) -> list[Difference]:
    """A difference, when there is one."""
    return [] if expected == found else [Difference(what, expected, found)]


@scenario("redis-017")
async def a_job_longer_than_the_lease_is_not_started_twice(case: Case) -> list[Difference]:
    lease_s = float(case.input["setup"]["reclaim_after_s"])
    async with queue_stage(lease_s=lease_s) as stage:
        stage.start_worker("A")
        stage.start_worker("B")
        job = await stage.add("J1", seconds=4 * lease_s)
        results = await stage.wait_results(1)
        return [
            *differs("J1_attempts", case.expect["J1_attempts"], stage.diary("begin", job)),
            *differs("outcome", "ok", results[0]["out"]),
            *await stage.verdicts(),
        ]


@scenario("redis-019")
async def a_frozen_worker_reports_after_its_successor(case: Case) -> list[Difference]:
    lease_s = float(case.input["setup"]["reclaim_after_s"])
    async with queue_stage(lease_s=lease_s) as stage:
        first = stage.start_worker("A", slots=1)
        job = await stage.add("J1", seconds=1)
        await stage.wait_begun(job)
        first.process.send_signal(signal.SIGSTOP)
        stage.start_worker("B")
        results = await stage.wait_results(1)
        first.process.send_signal(signal.SIGCONT)
        await wait_until(
            lambda: stage.diary("end", job) + stage.diary("cancelled", job) >= 2, "the first worker came to an end", timeout_s=20
        )
        first.asked_to_stop = True
        first.process.send_signal(signal.SIGTERM)
        await wait_until(lambda: first.exit_code is not None, "the first worker has left, and with it all it had to say", timeout_s=40)
        return [
            *differs("outcome", "ok", results[0]["out"]),
            *differs("late_result_ignored", 1, len(await stage.results())),
            *await stage.verdicts(),
        ]


@scenario("redis-021")
async def redis_is_restarted_with_its_data(case: Case) -> list[Difference]:
    async with queue_stage(persistence="always") as stage:
        stage.start_worker("A")
        jobs = [await stage.add(name, seconds=6 if name == "J1" else 0) for name in case.input["setup"]["jobs"]]
        await stage.wait_begun(jobs[0])
        await stage.wait_results(len(jobs) - 1)  # the others take no time: only the first is at work
        stage.server.restart()
        results = await stage.wait_results(len(jobs))
        return [*differs("outcomes", {"ok"}, {result["out"] for result in results}), *await stage.verdicts()]


@scenario("redis-023")
async def a_reader_whose_block_runs_over_still_stops(case: Case) -> list[Difference]:
    async with queue_stage() as stage:
        stage.start_worker("A")
        second = stage.start_worker("B")
        await _has_names(stage, "A", "B")
        await wait_until(lambda: _all_read(stage, 2 * len(Stage)), "both wait for entries, in each stage", timeout_s=20)
        await stage.add("J1")
        await stage.wait_results(1)
        asked_s = time.monotonic()
        second.asked_to_stop = True
        second.process.send_signal(signal.SIGTERM)
        await wait_until(lambda: second.exit_code is not None, "B stopped", timeout_s=20)
        took_s = time.monotonic() - asked_s
        bound_s = case.expect["B_stops_within_s"]
        late = [] if took_s <= bound_s else [Difference("B_stops_within_s", bound_s, took_s)]
        return [*late, *differs("exit code", 0, second.exit_code), *await stage.verdicts()]


@scenario("redis-025")
async def a_key_of_the_wrong_type_does_not_part_result_and_acknowledgement(case: Case) -> list[Difference]:
    """The statistics of the story are the reward events here: the one thing a settle writes that nobody needs."""
    async with queue_stage(lease_s=4.0) as stage:
        worker = stage.start_worker("A")
        job = await stage.add("J1", seconds=1, members=1)
        member = f"{job}.0"
        await stage.wait_begun(member)
        await ask(stage.client, "SET", stage.keys.reward, "no stream")

        def reported() -> bool:
            return "WRONGTYPE" in log_tail(worker.log)

        await wait_until(reported, "the error is reported", timeout_s=20)
        await ask(stage.client, "DEL", stage.keys.reward)
        results = await stage.wait_results(1)
        return [
            *differs("job_not_repeated", 1, stage.diary("begin", member)),
            *differs("results", 1, len(results)),
            *await stage.verdicts(but="announced"),
        ]


@scenario("redis-027")
async def a_damaged_entry_is_one_dead_letter_with_its_bytes(case: Case) -> list[Difference]:
    async with queue_stage() as stage:
        worker = stage.start_worker("A")
        await _has_names(stage, "A")
        for entry in case.input["setup"]["raw_entries"]:
            payload = bytes.fromhex(entry["payload_hex"])
            await ask(stage.client, "XADD", stage.keys.stage_stream(Stage.RUN), "*", "payload", payload)
        await wait_until(lambda: _dead(stage), "a dead letter", timeout_s=20)
        await _janitor_rounds(stage, 2)  # whoever reads again does so in each
        dead = await ask(stage.client, "XRANGE", stage.keys.dead, "-", "+")
        raw = [fields[b"raw"] for _, fields in dead]
        kept = [any(bytes.fromhex(text) in found for found in raw) for text in case.expect["dead_letter_payload_hex"]]
        warnings = log_tail(worker.log).count('"level":"warning"')
        many = [] if warnings <= case.expect["warnings_max"] else [Difference("warnings_max", case.expect["warnings_max"], warnings)]
        return [
            *differs("dead_letter_count", case.expect["dead_letter_count"], len(dead)),
            *differs("the bytes are kept", [True] * len(kept), kept),
            *many,
            *await stage.verdicts(),
        ]


@scenario("redis-029")
async def used_up_attempts_end_the_job_with_its_reason(case: Case) -> list[Difference]:
    async with queue_stage() as stage:
        stage.start_worker("A")
        attempts = int(case.input["setup"]["max_attempts"])
        group = await stage.add("J1", max_failed=attempts - 1, members=1, fails=True)
        results = await stage.wait_results(1)
        members = await stage.audit.members(group)
        return [
            *differs("final_state", "infra_failure", results[0]["out"]),
            *differs("reason_kept", True, "told to fail" in results[0]["why"]),
            *differs("attempts of RUN", attempts, stage.diary("begin", f"{group}.0")),
            *differs("group_told", ["infra_failure"], [line[0] for line in members.values()]),
            *differs("group closed", "closed", (await stage.audit.hash(stage.keys.group(group)))["st"]),
            *await stage.verdicts(),
        ]


@scenario("redis-031")
async def a_huge_result_is_kept_and_a_gigantic_one_is_refused(case: Case) -> list[Difference]:
    first, second = (int(big["bytes"]) for big in case.input["setup"]["big"])
    async with queue_stage(max_body_bytes=64 * MEBIBYTE) as stage:
        stage.start_worker("A")
        big = await stage.add("big", bytes=first)
        gigantic = await stage.add("gigantic", bytes=second)
        await stage.wait_begun(gigantic)
        started_s = time.monotonic()
        await stage.add("other")
        results = await _results_of(stage, "other", 30)
        delay_s = time.monotonic() - started_s
        await stage.wait_results(3, timeout_s=60)
        results = {record["job"]: record for record in await stage.results()}
        stored = await ask(stage.client, "STRLEN", stage.keys.body(big, results[big]["ra"], "run"))
        bound_s = case.expect["other_jobs_delayed_max_s"]
        late = [] if delay_s <= bound_s else [Difference("other_jobs_delayed_max_s", bound_s, delay_s)]
        return [
            *differs("first: stored whole", first, stored),
            *differs("second: outcome", "infra_failure", results[gigantic]["out"]),
            *differs("second: reason", True, results[gigantic]["why"].startswith("result_too_large")),
            *late,
            *await stage.verdicts(),
        ]


@scenario("redis-033")
async def a_full_redis_takes_the_result_in_the_end(case: Case) -> list[Difference]:
    """It takes it while it is full: what ends a job may go over the bound. So nobody frees memory before the result is there."""
    async with queue_stage() as stage:
        stage.start_worker("A")
        job = await stage.add("J1", seconds=2)
        await stage.wait_begun(job)
        used = int((await ask(stage.client, "INFO", "memory"))["used_memory"])
        await ask(stage.client, "CONFIG", "SET", "maxmemory", used // 2)
        await wait_until(lambda: stage.diary("end", job), "RUN of J1 ended", timeout_s=20)
        ended_s = time.monotonic()
        await stage.wait_results(1)
        took_s = time.monotonic() - ended_s
        await ask(stage.client, "CONFIG", "SET", "maxmemory", 0)
        bound_s = case.expect["J1_done_within_s_of_free"]
        late = [] if took_s <= bound_s else [Difference("J1_done_within_s_of_free", bound_s, took_s)]
        return [*late, *differs("run_not_repeated", 1, stage.diary("begin", job)), *await stage.verdicts()]


@scenario("redis-035")
async def the_clock_of_the_server_jumps(case: Case) -> list[Difference]:
    lease_s = float(case.input["setup"]["reclaim_after_s"])
    async with server_with_a_clock_of_its_own(lease_s=lease_s) as (stage, jump):
        stage.start_worker("A")
        jobs = [await stage.add(name, seconds=3 * lease_s) for name in case.input["setup"]["jobs"]]
        for job in jobs:
            await stage.wait_begun(job)
        await jump(-3600)
        await _renews(stage, "A")  # the leases hold by a clock that is behind, before it is ahead
        await jump(+7200)
        await stage.wait_results(len(jobs))
        again = {job: stage.diary("begin", job) for job in jobs}
        return [*differs("no_reclaim_of_live_jobs", dict.fromkeys(jobs, 1), again), *await stage.verdicts()]


@scenario("redis-037")
async def a_cancel_finds_the_job_wherever_it_is(case: Case) -> list[Difference]:
    async with queue_stage() as stage:
        done = await stage.add("Jc")
        stage.start_worker("A", slots=1)
        await stage.wait_results(1)
        running = await stage.add("Jb", seconds=60)
        await stage.wait_begun(running)
        waiting = await stage.add("Ja", seconds=60)  # the only RUN slot is taken
        asked_s = time.monotonic()
        for _ in range(2):
            for target in (waiting, running, done, f"{RUN}.Jd"):
                await stage.scripts.cancel("job", [target], "user")
        await stage.wait_results(3)
        took_s = time.monotonic() - asked_s
        results = {record["job"]: record for record in await stage.results()}
        return [
            *differs("Ja: never run", 0, stage.diary("begin", waiting)),
            *differs("Ja", ("cancelled", "user"), (results[waiting]["out"], results[waiting]["why"])),
            *differs("Jb: stopped within 5 s", True, took_s < 5 and stage.diary("cancelled", running) == 1),
            *differs("Jc: result stays", "ok", results[done]["out"]),
            *differs("idempotent", 3, len(await stage.results())),
            *await stage.verdicts(),
        ]


@scenario("redis-039")
async def a_stopped_service_hands_its_jobs_back(case: Case) -> list[Difference]:
    async with queue_stage() as stage:
        first = stage.start_worker("A", slots=1)
        jobs = [await stage.add(name, seconds=5) for name in case.input["setup"]["jobs"]]
        await wait_until(lambda: any(stage.diary("begin", job) for job in jobs), "a job began", timeout_s=20)
        asked_s = time.monotonic()
        first.asked_to_stop = True
        first.process.send_signal(signal.SIGTERM)
        await wait_until(lambda: first.exit_code is not None, "A stopped", timeout_s=40)
        took_s = time.monotonic() - asked_s
        stage.start_worker("A", slots=4)
        await stage.wait_results(len(jobs), timeout_s=40)
        counted = [(await stage.audit.job(job))["failed"] + (await stage.audit.job(job))["lost"] for job in jobs]
        bound_s = case.expect["stops_within_s"]
        late = [] if took_s <= bound_s else [Difference("stops_within_s", bound_s, took_s)]
        return [
            *late,
            *differs("exit code", 0, first.exit_code),
            *differs("no attempt was counted", ["00"] * len(jobs), counted),
            *await stage.verdicts(),
        ]


async def _has_names(stage: QueueStage, *workers: str) -> None:
    async def all_there() -> bool:
        names = [stage.keys.worker(f"{part.value}-{worker}-0") for worker in workers for part in Stage]
        return int(await ask(stage.client, "EXISTS", *names)) == len(names)

    await wait_until(all_there, f"workers {', '.join(workers)} are up", timeout_s=20)


async def _all_read(stage: QueueStage, readers: int) -> bool:
    """Whether so many connections wait in a read of their stage's streams."""
    clients = (await ask(stage.client, "CLIENT", "LIST")).decode().splitlines()
    return sum(" cmd=xreadgroup " in line and " flags=b" in line for line in clients) >= readers


async def _janitor_rounds(stage: QueueStage, count: int) -> None:
    """Until so many rounds have gone by from now on: each leaves its time."""
    seen = set()

    async def enough() -> bool:
        seen.add(await ask(stage.client, "HGET", stage.keys.key("janitor"), "seen"))
        return len(seen) > count

    await wait_until(enough, f"{count} rounds of a janitor", timeout_s=30)


async def _renews(stage: QueueStage, worker: str) -> None:
    """Until the leases of a RUN worker are renewed once more."""

    async def beat() -> bytes:
        found: bytes = await ask(stage.client, "HGET", stage.keys.worker(f"{Stage.RUN.value}-{worker}-0"), "beat")
        return found

    before = await beat()

    async def again() -> bool:
        return await beat() != before

    await wait_until(again, f"RUN of {worker} renews its leases", timeout_s=20)


async def _dead(stage: QueueStage) -> bool:
    return int(await ask(stage.client, "XLEN", stage.keys.dead)) > 0


async def _results_of(stage: QueueStage, job: str, timeout_s: float) -> dict[str, dict[str, str]]:
    async def there() -> bool:
        return any(record["job"] == f"{RUN}.{job}" for record in await stage.results())

    await wait_until(there, f"result of {job}", timeout_s=timeout_s)
    return {record["job"]: record for record in await stage.results()}

"""What a goal needs, by arithmetic (docs/adr/0036-scaling-and-sizing.md)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ops.plan import Plan, PlanSettings, as_map, as_text, costs, make_plan
from ops.plan.sizing import with_room
from ops.plan.view import bytes_text
from pipeline import codec
from pipeline.errors import InvalidRequest
from pipeline.messages import ChatMessage, Stage
from pipeline.testing import a_segment, a_trajectory, a_turn

NODE = {Stage.INIT: 4, Stage.RUN: 64, Stage.EVAL: 4}
PLAIN = {"filtered": 0.0, "wasted": 0.0, "head_room": 0.0}


def plan_of(**asked: object) -> Plan:
    return make_plan(PlanSettings.model_validate(PLAIN | asked), NODE)


def test_slots_are_the_rate_times_what_a_job_keeps_busy() -> None:
    """Little's law: 32 x 8 jobs in 64 s are 4 a second; 4 a second of 5 turns of 3 s keep 60 slots."""
    plan = plan_of(groups=32, group_size=8, step_s=64, turns=5, model_s=2, tool_s=1, init_s=0.5, eval_s=1.2)

    assert plan.jobs_per_s == pytest.approx(4)
    assert {stage.value: need.busy for stage, need in plan.stages.items()} == pytest.approx({"init": 2, "run": 60, "eval": 4.8})
    assert [need.slots for need in plan.stages.values()] == [2, 60, 5]
    assert [need.nodes for need in plan.stages.values()] == [1, 1, 2]
    assert (plan.nodes, plan.deciding, plan.node_slots) == (2, Stage.EVAL, {Stage.INIT: 1, Stage.RUN: 30, Stage.EVAL: 3})
    assert plan.models.calls == pytest.approx(40)
    assert plan.job_s == pytest.approx(16.7)


def test_filtered_and_wasted_work_is_begun_too() -> None:
    assert plan_of(filtered=0.5, wasted=0.2).jobs_per_s == pytest.approx(plan_of().jobs_per_s / 0.5 / 0.8)


def test_head_room_stays_free_and_nothing_is_added_by_rounding() -> None:
    assert [with_room(60, 0.25), with_room(60.1, 0.25), with_room(0.1 * 3 * 10, 0.0), with_room(0, 0.5)] == [80, 81, 3, 1]
    roomy = plan_of(groups=32, step_s=64, turns=5, model_s=2, tool_s=1, head_room=0.25, server_calls=8)
    assert roomy.stages[Stage.RUN].slots == 80
    assert roomy.models.servers == 7  # 40 calls, 5 servers, a quarter free


def test_a_stage_has_as_many_processes_as_its_slots_need() -> None:
    plan = plan_of(groups=640, group_size=8, step_s=64, turns=5, model_s=2, tool_s=1)

    assert (plan.stages[Stage.RUN].slots, plan.stages[Stage.RUN].processes) == (1200, 5)


def test_redis_has_room_for_what_stands_there_and_for_what_admission_counts() -> None:
    """4 jobs a second of 16 s are 64 open ones; one step is unread."""
    asked = {
        "groups": 32,
        "group_size": 8,
        "step_s": 64,
        "turns": 4,
        "model_s": 3,
        "tool_s": 1,
        "init_s": 0,
        "eval_s": 0,
        "unread_steps": 1,
    }
    plan = make_plan(PlanSettings.model_validate(PLAIN | asked), NODE, trajectory_bytes=100_000)

    memory = plan.redis.memory_bytes
    assert memory["open jobs"] == pytest.approx(64 * (costs.OPEN_JOB_BYTES + 100_000))
    assert memory["unread results"] == pytest.approx(256 * (costs.RESULT_BYTES + 100_000))
    assert memory["tombstones"] == pytest.approx(0.5 * 172_800 * 70)
    assert plan.redis.reserved_bytes == pytest.approx(64 * 65_536)
    assert plan.redis.maxmemory_bytes == pytest.approx((sum(memory.values()) + 64 * 65_536) / 0.8, rel=1e-6)
    assert plan.redis.in_bytes_per_s >= 4 * 2 * 100_000  # the journal, and the body
    assert plan.redis.out_bytes_per_s >= 4 * 2 * 100_000  # EVAL, and the trainer
    assert plan.redis.aof_bytes_an_hour >= 3600 * 4 * 2 * 100_000


def test_jobs_that_are_held_for_long_cost_their_renewals() -> None:
    """4,000 jobs in RUN have two leases each, renewed four times in 30 s; half as long a lease is renewed twice as often."""
    asked = PlanSettings.model_validate(PLAIN | {"groups": 1, "group_size": 4, "step_s": 1, "turns": 1, "model_s": 1000, "tool_s": 0})
    none = asked.model_copy(update={"model_s": 0.0})

    def share(settings: PlanSettings, lease_s: float = 30.0) -> float:
        plan = make_plan(settings, NODE, lease_s=lease_s)
        return plan.redis.cpu_share - costs.REST_SHARE_A_PROCESS * sum(need.processes for need in plan.stages.values())

    renewals = 4000 * 2 * 4 / 30 * costs.RENEW_US / 1e6
    assert share(asked) - share(none) == pytest.approx(renewals)
    assert share(asked, 15) - share(none, 15) == pytest.approx(2 * renewals)


def test_more_than_one_core_of_redis_is_more_than_one_shard() -> None:
    few, many = plan_of(step_s=600), plan_of(groups=64_000, step_s=60)

    assert few.redis.shards == 1
    assert many.redis.shards == pytest.approx(many.redis.cpu_share / costs.FULL_SHARE, abs=1)
    assert many.redis.shards > 1


def test_the_bytes_of_a_trajectory_are_as_its_tokens_say() -> None:
    """Held against a record that was written: the constants are not from nowhere."""
    asked = PlanSettings(turns=6, prompt_tokens=800, sampled_tokens=300, observation_tokens=150)
    tokens = 800 + 6 * 450
    turns = tuple(a_turn(index, start=800 + index * 450, end=800 + index * 450 + 300) for index in range(6))
    said = [ChatMessage(role="user", content="word" * 800)]
    for _ in range(6):
        said += [ChatMessage(role="assistant", content="word" * 300), ChatMessage(role="tool", content="word" * 150)]
    written = codec.encode(a_trajectory(segments=(a_segment(tokens),), turns=turns, messages=tuple(said), answer="word" * 300))

    assert costs.trajectory_bytes(asked) == pytest.approx(len(written), rel=0.1)


def test_people_and_programs_get_the_same_plan() -> None:
    plan = plan_of(groups=32, step_s=64, turns=5, model_s=2, tool_s=1)

    text, said = "\n".join(as_text(plan)), json.loads(json.dumps(as_map(plan)))
    assert "4.00 jobs/s begin" in text
    assert "./ops/launch node --init" in text
    assert max(map(len, text.splitlines())) <= 160
    assert said["stages"]["run"]["slots"] == 60
    assert said["asked"]["groups"] == 32
    assert said["measured"] is None
    assert [bytes_text(size) for size in (0, 1023, 1536, 150 * 1024, 5e15)] == ["0 B", "1023 B", "1.5 KiB", "150 KiB", "4547 TiB"]


def test_the_file_says_what_no_option_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rollstream.toml"
    file.write_text("[plan]\ngroups = 128\nturns = 12\n")
    monkeypatch.setenv("ROLLSTREAM_PLAN_STEP_S", "300")

    asked = PlanSettings.load(file, turns=3.5)

    assert (asked.groups, asked.turns, asked.step_s, asked.group_size) == (128, 3.5, 300.0, 8)
    with pytest.raises(InvalidRequest, match=r"plan\.head_room"):
        PlanSettings.load(file, head_room=1.0)


def test_the_arrays_of_a_token_are_ten_bytes() -> None:
    """Id, two masks and a logprob; what TOKEN_BYTES stands for."""
    few, many = (codec.encode(a_segment(tokens)) for tokens in (1000, 2000))

    assert (len(many) - len(few)) / 1000 == pytest.approx(costs.TOKEN_BYTES, abs=0.01)
    assert np.dtype("<u4").itemsize + 2 + np.dtype("<f4").itemsize == costs.TOKEN_BYTES

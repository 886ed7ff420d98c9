"""What Redis says of the whole pipeline, as metrics. Pure: the facts are those of `rollstream status`, and so is what is made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ops.dead.letters import LOST
from ops.metrics.balance import ShardBalance
from ops.metrics.definitions import Families
from ops.node.reading import NodeView
from ops.status.facts import Facts, RedisFacts, RunFacts
from ops.status.trends import jobs_a_second
from ops.status.trouble import ORDER
from ops.status.troubles import IMAGE_MISSING
from ops.status.verdict import Judgement, Verdict
from pipeline.inference_pool import PoolState
from pipeline.inference_pool.records import Standing
from pipeline.messages import Outcome, Stage
from pipeline.supervisor.actions import Verdict as GroupVerdict
from pipeline.supervisor.token_fates import TokenFate

RUN_STATES = ("open", "paused", "cancelled", "closed")
NODE_STATES = ("starting", "up", "draining", "failed", "ended", "lost", "unknown")
STANDINGS: tuple[Standing, ...] = ("up", "draining", "down", "unsynced")
DEAD_KINDS = ("lost", "image_missing", "other")


def say_judgement(families: Families, judgement: Judgement) -> None:
    """Verdict and causes; also of a Redis that does not answer."""
    for verdict in Verdict:
        families.say("rollstream_verdict", verdict is judgement.verdict, verdict.value)
    causes = Counter(trouble.cause for trouble in judgement.troubles)
    for cause in ORDER:
        families.say("rollstream_causes", causes[cause], cause)


def say_facts(families: Families, facts: Facts, shards: Sequence[ShardBalance]) -> None:
    """All the rest.

    Args:
        shards: by number.
    """
    if facts.redis is not None:
        _redis(families, facts.redis)
    _stages(families, facts)
    _dead_letters(families, facts, shards)
    _runs(families, facts, shards)
    _nodes(families, facts)
    families.say("rollstream_look_refused_parts", len(facts.refused))
    for number, shard in enumerate(shards):
        families.say("rollstream_shard_astray_jobs", shard.astray, str(number))


def _redis(families: Families, server: RedisFacts) -> None:
    families.say("rollstream_redis_info", 1, server.version, server.fsync)
    families.say("rollstream_redis_persistence_failed", server.aof_fails, "aof")
    families.say("rollstream_redis_persistence_failed", server.snapshot_fails, "snapshot")
    families.say("rollstream_redis_used_bytes", server.used_bytes)
    families.say("rollstream_redis_max_bytes", server.max_bytes)
    families.say("rollstream_redis_reserved_bytes", server.reserved_bytes)
    families.say("rollstream_redis_aof_bytes", server.aof_bytes)
    families.say("rollstream_redis_disk_free_bytes", server.disk_free_bytes)
    families.say("rollstream_redis_evicted_keys_total", server.evicted_keys)


def _stages(families: Families, facts: Facts) -> None:
    for stage in Stage:
        streams = [stream for stream in facts.streams if stream.stage is stage]
        workers = [worker for worker in facts.workers if worker.stage is stage]
        oldest_ms = min((stream.oldest_ms for stream in streams if stream.oldest_ms), default=facts.now_ms)
        word = stage.value
        families.say("rollstream_stage_waiting_jobs", sum(stream.waiting for stream in streams), word)
        families.say("rollstream_stage_lane_waiting_jobs", sum(stream.waiting for stream in streams if stream.node), word)
        families.say("rollstream_stage_held_jobs", sum(stream.held for stream in streams), word)
        families.say("rollstream_stage_oldest_waiting_seconds", max(0, facts.now_ms - oldest_ms) / 1000, word)
        families.say("rollstream_stage_ended_jobs_per_second", jobs_a_second(facts, stage), word)
        families.say("rollstream_stage_workers", len(workers), word)
        families.say("rollstream_stage_idle_workers", sum(bool(worker.idle_why) for worker in workers), word)
        families.say("rollstream_stage_slots", sum(worker.slots for worker in workers), word)
    families.say("rollstream_delayed_jobs", facts.delayed)


def _dead_letters(families: Families, facts: Facts, shards: Sequence[ShardBalance]) -> None:
    families.say("rollstream_dead_letters", facts.dead_total)
    families.say("rollstream_dead_letters_total", sum(shard.dead_ever for shard in shards))
    recent = Counter(
        "lost" if LOST.match(letter.why) else "image_missing" if letter.kind == IMAGE_MISSING else "other" for letter in facts.dead
    )
    for kind in DEAD_KINDS:
        families.say("rollstream_dead_letters_recent", recent[kind], kind)


def _runs(families: Families, facts: Facts, shards: Sequence[ShardBalance]) -> None:
    states = Counter(run.look.state.partition(" ")[0] for run in facts.runs)
    for state in RUN_STATES:
        families.say("rollstream_runs", states[state], state)
    families.say("rollstream_runs_left_out", max(0, sum(shard.runs_known for shard in shards) - len(facts.runs)))
    for run in facts.runs:
        _run(families, run)
        if run.pool is not None:
            _servers(families, run.look.name, run.pool)
    for shard in shards:
        for name, balance in shard.runs.items():
            families.say("rollstream_run_accepted_jobs_total", balance.accepted, name)
            families.say("rollstream_run_waiting_jobs", balance.waiting, name)
            families.say("rollstream_run_in_flight_jobs", balance.in_flight, name)
            families.say("rollstream_run_awaiting_jobs", balance.awaiting, name)
            families.say("rollstream_run_unaccounted_jobs", balance.unaccounted, name)
            families.say("rollstream_run_steps_total", balance.steps, name)
            since_ms = balance.unread_since_ms or facts.now_ms
            families.say("rollstream_run_unread_oldest_seconds", max(0, facts.now_ms - since_ms) / 1000, name)
            for outcome in Outcome:
                families.say("rollstream_run_ended_jobs_total", balance.ended.get(outcome.value, 0), name, outcome.value)


def _run(families: Families, run: RunFacts) -> None:
    look, name = run.look, run.look.name
    families.say("rollstream_run_has_work", run.has_work, name)
    families.say("rollstream_run_groups_in_flight", look.groups_in_flight, name)
    for verdict in GroupVerdict:
        families.say("rollstream_run_groups_total", look.groups.get(verdict.value, 0), name, verdict.value)
    for fate in TokenFate:
        families.say("rollstream_run_tokens_total", look.tokens.get(fate.value, 0), name, fate.value)
    families.say("rollstream_run_reserve_prompts", look.reserve, name)
    families.say("rollstream_run_open_steps", len(look.steps), name)
    families.say("rollstream_run_unread_results", run.unread, name)
    families.say("rollstream_run_unread_bytes", run.unread_bytes, name)
    families.say("rollstream_run_trainer_contact_seconds", look.contact_s, name)
    families.say("rollstream_run_model_places", look.places, name)
    families.say("rollstream_run_held_jobs", look.held, name)
    for cause in dict.fromkeys(reason.cause.value for reason in run.reasons):
        families.say("rollstream_run_waits", 1, name, cause)


def _servers(families: Families, run: str, pool: PoolState) -> None:
    standings = Counter(server.standing for server in pool.servers)
    for standing in STANDINGS:
        families.say("rollstream_run_model_servers", standings[standing], run, standing)
    paused = len(pool.servers) if pool.is_paused else sum(server.engine_paused for server in pool.servers)
    families.say("rollstream_run_model_servers_paused", paused, run)
    families.say("rollstream_run_model_requests", sum(server.running for server in pool.servers), run, "running")
    families.say("rollstream_run_model_requests", sum(server.waiting for server in pool.servers), run, "waiting")
    fullest = max((server.kv_used for server in pool.servers), default=-1.0)
    families.say("rollstream_run_model_kv_used_ratio", fullest if fullest >= 0 else None, run)
    families.say("rollstream_run_rerouted_jobs_total", pool.rerouted, run)
    families.say("rollstream_run_rerouted_tokens_total", pool.lost_tokens, run)


def _nodes(families: Families, facts: Facts) -> None:
    states = Counter(node.state if node.state in NODE_STATES else "unknown" for node in facts.nodes)
    for state in NODE_STATES:
        families.say("rollstream_nodes", states[state], state)
    idle = {worker.node for worker in facts.workers if worker.idle_why}
    for node in facts.nodes:
        if not node.has_ended:
            _node(families, node, has_idle_worker=node.name in idle)
    versions = {worker.version for worker in facts.workers} | {node.fields.get("version", "") for node in facts.nodes if node.is_alive}
    families.say("rollstream_software_versions", len(versions - {""}))


def _node(families: Families, node: NodeView, *, has_idle_worker: bool) -> None:
    families.say("rollstream_node_up", node.is_alive, node.name)
    families.say("rollstream_node_failed", node.has_failed, node.name)
    families.say("rollstream_node_crashes_total", node.number("crashes"), node.name)
    if not node.is_alive:
        return  # what it said last holds no more
    families.say("rollstream_node_degraded", bool(node.fields.get("degraded")) or has_idle_worker, node.name)
    for stage in Stage:
        families.say("rollstream_node_slots", node.slots(stage), node.name, stage.value)
    families.say("rollstream_node_disk_free_bytes", node.number("scratch.free"), node.name, "scratch")
    families.say("rollstream_node_disk_free_bytes", node.number("images.free"), node.name, "images")
    families.say("rollstream_node_left_seconds", None if node.left_ms is None else node.left_ms / 1000, node.name)
    families.say("rollstream_node_skew_seconds", None if node.skew_ms is None else node.skew_ms / 1000, node.name)

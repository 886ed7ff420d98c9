"""Every metric of the exporter and of a node: name, type, labels. What each means is in docs/reference/metrics.md; a test compares them.

What is answered is made through `Families`, which knows no other names: nothing can be said that is not in the list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

PAGE = "docs/reference/metrics.md"
CONTENT_TYPE = CONTENT_TYPE_LATEST


@dataclass(frozen=True, slots=True)
class Definition:
    """One metric."""

    name: str
    """As it is scraped; a histogram's without `_bucket`, `_sum` and `_count`."""
    kind: Literal["gauge", "counter", "histogram"]
    labels: tuple[str, ...] = ()


OF_THE_QUEUE: tuple[Definition, ...] = (
    Definition("rollstream_exporter_info", "gauge", ("version",)),
    Definition("rollstream_exporter_leader", "gauge", ()),
    Definition("rollstream_redis_up", "gauge", ()),
    Definition("rollstream_look_seconds", "gauge", ()),
    Definition("rollstream_look_failures_total", "counter", ()),
    Definition("rollstream_look_refused_parts", "gauge", ()),
    Definition("rollstream_verdict", "gauge", ("verdict",)),
    Definition("rollstream_causes", "gauge", ("cause",)),
    Definition("rollstream_redis_info", "gauge", ("version", "fsync")),
    Definition("rollstream_redis_writable", "gauge", ()),
    Definition("rollstream_redis_persistence_failed", "gauge", ("kind",)),
    Definition("rollstream_redis_used_bytes", "gauge", ()),
    Definition("rollstream_redis_max_bytes", "gauge", ()),
    Definition("rollstream_redis_reserved_bytes", "gauge", ()),
    Definition("rollstream_redis_aof_bytes", "gauge", ()),
    Definition("rollstream_redis_disk_free_bytes", "gauge", ()),
    Definition("rollstream_redis_evicted_keys_total", "counter", ()),
    Definition("rollstream_stage_waiting_jobs", "gauge", ("stage",)),
    Definition("rollstream_stage_lane_waiting_jobs", "gauge", ("stage",)),
    Definition("rollstream_stage_held_jobs", "gauge", ("stage",)),
    Definition("rollstream_stage_oldest_waiting_seconds", "gauge", ("stage",)),
    Definition("rollstream_stage_ended_jobs_per_second", "gauge", ("stage",)),
    Definition("rollstream_stage_workers", "gauge", ("stage",)),
    Definition("rollstream_stage_idle_workers", "gauge", ("stage",)),
    Definition("rollstream_stage_slots", "gauge", ("stage",)),
    Definition("rollstream_delayed_jobs", "gauge", ()),
    Definition("rollstream_shard_astray_jobs", "gauge", ("shard",)),
    Definition("rollstream_dead_letters", "gauge", ()),
    Definition("rollstream_dead_letters_total", "counter", ()),
    Definition("rollstream_dead_letters_recent", "gauge", ("kind",)),
    Definition("rollstream_runs", "gauge", ("state",)),
    Definition("rollstream_runs_left_out", "gauge", ()),
    Definition("rollstream_run_has_work", "gauge", ("run",)),
    Definition("rollstream_run_accepted_jobs_total", "counter", ("run",)),
    Definition("rollstream_run_waiting_jobs", "gauge", ("run",)),
    Definition("rollstream_run_in_flight_jobs", "gauge", ("run",)),
    Definition("rollstream_run_awaiting_jobs", "gauge", ("run",)),
    Definition("rollstream_run_ended_jobs_total", "counter", ("run", "outcome")),
    Definition("rollstream_run_unaccounted_jobs", "gauge", ("run",)),
    Definition("rollstream_run_groups_in_flight", "gauge", ("run",)),
    Definition("rollstream_run_groups_total", "counter", ("run", "verdict")),
    Definition("rollstream_run_tokens_total", "counter", ("run", "fate")),
    Definition("rollstream_run_reserve_prompts", "gauge", ("run",)),
    Definition("rollstream_run_open_steps", "gauge", ("run",)),
    Definition("rollstream_run_steps_total", "counter", ("run",)),
    Definition("rollstream_run_unread_results", "gauge", ("run",)),
    Definition("rollstream_run_unread_bytes", "gauge", ("run",)),
    Definition("rollstream_run_unread_oldest_seconds", "gauge", ("run",)),
    Definition("rollstream_run_trainer_contact_seconds", "gauge", ("run",)),
    Definition("rollstream_run_waits", "gauge", ("run", "cause")),
    Definition("rollstream_run_model_servers", "gauge", ("run", "standing")),
    Definition("rollstream_run_model_servers_paused", "gauge", ("run",)),
    Definition("rollstream_run_model_requests", "gauge", ("run", "state")),
    Definition("rollstream_run_model_kv_used_ratio", "gauge", ("run",)),
    Definition("rollstream_run_model_places", "gauge", ("run",)),
    Definition("rollstream_run_held_jobs", "gauge", ("run",)),
    Definition("rollstream_run_rerouted_jobs_total", "counter", ("run",)),
    Definition("rollstream_run_rerouted_tokens_total", "counter", ("run",)),
    Definition("rollstream_nodes", "gauge", ("state",)),
    Definition("rollstream_node_up", "gauge", ("node",)),
    Definition("rollstream_node_failed", "gauge", ("node",)),
    Definition("rollstream_node_degraded", "gauge", ("node",)),
    Definition("rollstream_node_slots", "gauge", ("node", "stage")),
    Definition("rollstream_node_crashes_total", "counter", ("node",)),
    Definition("rollstream_node_disk_free_bytes", "gauge", ("node", "disk")),
    Definition("rollstream_node_left_seconds", "gauge", ("node",)),
    Definition("rollstream_node_skew_seconds", "gauge", ("node",)),
    Definition("rollstream_software_versions", "gauge", ()),
)
"""From `rollstream metrics serve`."""

OF_A_NODE: tuple[Definition, ...] = (
    Definition("rollstream_launcher_info", "gauge", ("node", "version")),
    Definition("rollstream_launcher_processes", "gauge", ("state",)),
    Definition("rollstream_worker_slots", "gauge", ("stage",)),
    Definition("rollstream_worker_busy_slots", "gauge", ("stage",)),
    Definition("rollstream_worker_claims_total", "counter", ("stage",)),
    Definition("rollstream_worker_retries_total", "counter", ("stage",)),
    Definition("rollstream_worker_attempts_total", "counter", ("stage", "end")),
    Definition("rollstream_worker_attempt_seconds", "histogram", ("stage",)),
    Definition("rollstream_worker_sandbox_starts_total", "counter", ("result",)),
    Definition("rollstream_worker_sandbox_start_seconds", "histogram", ()),
    Definition("rollstream_worker_turn_seconds", "histogram", ()),
    Definition("rollstream_worker_model_calls_total", "counter", ("result",)),
    Definition("rollstream_worker_model_call_seconds", "histogram", ()),
    Definition("rollstream_worker_sampled_tokens_total", "counter", ()),
)
"""From the launcher of a node."""


class Families(Collector):
    """What one answer says, in the order of a list.

    Args:
        definitions: all that may be said.
    """

    def __init__(self, definitions: Sequence[Definition]) -> None:
        self._definitions = {definition.name: definition for definition in definitions}
        self._found: dict[str, Metric] = {}

    def say(self, name: str, value: float | None, *labels: str) -> None:
        """A gauge or a counter; None = it is not known, and left out.

        Args:
            labels: values, in the order of the definition.
        """
        if value is None:
            return
        definition = self._definitions[name]
        assert len(labels) == len(definition.labels)
        if definition.kind == "gauge":
            gauge = self._found.setdefault(name, GaugeMetricFamily(name, f"See {PAGE}", labels=definition.labels))
            assert isinstance(gauge, GaugeMetricFamily)
            gauge.add_metric(labels, value)
        else:
            counter = self._found.setdefault(name, CounterMetricFamily(name, f"See {PAGE}", labels=definition.labels))
            assert isinstance(counter, CounterMetricFamily)
            counter.add_metric(labels, value)

    def say_histogram(self, name: str, bounds: Sequence[float], counts: Sequence[float], total: float, *labels: str) -> None:
        """A histogram.

        Args:
            bounds: upper ones of its buckets, B of them.
            counts: in each bucket alone, B + 1 of them.
            total: sum of what was observed.
        """
        definition = self._definitions[name]
        assert definition.kind == "histogram"
        assert len(labels) == len(definition.labels)
        histogram = self._found.setdefault(name, HistogramMetricFamily(name, f"See {PAGE}", labels=definition.labels))
        assert isinstance(histogram, HistogramMetricFamily)
        seen, buckets = 0.0, []
        for bound, count in zip((*map(str, bounds), "+Inf"), counts, strict=True):
            seen += count
            buckets.append((bound, seen))
        histogram.add_metric(labels, buckets, total)

    def collect(self) -> Iterator[Metric]:
        """For `prometheus_client`."""
        yield from (self._found[name] for name in self._definitions if name in self._found)

    def text(self) -> bytes:
        """As it is scraped, of type `CONTENT_TYPE`."""
        return generate_latest(self)

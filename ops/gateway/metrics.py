"""Numbers of a gateway and of its run, for Prometheus. Labels are routes, codes and words of closed lists: never an id."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from trainer_client import RunStatistics

SECONDS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 300.0, 1800.0)
PREFIX = "rollstream_gateway_"


class Metrics:
    """Counts what calls did; what else there is to say is asked when somebody looks."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._calls = Counter(f"{PREFIX}requests", "Requests that were answered.", ("method", "route", "code"), registry=self._registry)
        self._seconds = Histogram(
            f"{PREFIX}request_seconds",
            "From a request's head to the end of its answer.",
            ("route",),
            buckets=SECONDS,
            registry=self._registry,
        )
        self.in_flight = Gauge(f"{PREFIX}requests_in_flight", "Requests that are being answered.", registry=self._registry)
        self._undelivered = Counter(
            f"{PREFIX}answers_not_taken", "Answers that a client did not read to their end.", registry=self._registry
        )
        self._now = Gauge(f"{PREFIX}now", "How the gateway stands.", ("what",), registry=self._registry)
        self._run = Gauge(
            "rollstream_run_jobs", "Jobs of the run: waiting, in flight, and ended by outcome.", ("state",), registry=self._registry
        )
        self._tokens = Gauge("rollstream_run_tokens", "Sampled tokens by what became of them.", ("fate",), registry=self._registry)
        self._ledger = Gauge("rollstream_run_ledger", "Steps, groups and prompts of the run.", ("what",), registry=self._registry)

    def answered(self, method: str, route: str, code: int, seconds: float, *, was_taken: bool) -> None:
        """One call is over."""
        self._calls.labels(method, route, str(code)).inc()
        self._seconds.labels(route).observe(seconds)
        if not was_taken:
            self._undelivered.inc()

    def render(self, now: Mapping[str, float], run: RunStatistics | None) -> tuple[bytes, str]:
        """All of it as text, and that text's type.

        Args:
            now: numbers of the gateway.
            run: None = Redis does not answer; the gateway's own numbers are there all the same.
        """
        for what, value in now.items():
            self._now.labels(what).set(value)
        self._now.labels("redis_answers").set(run is not None)
        if run is not None:
            for state, count in {"waiting": run.waiting, "in_flight": run.in_flight, **run.outcomes}.items():
                self._run.labels(state).set(count)
            for fate, count in run.tokens.items():
                self._tokens.labels(fate).set(count)
            ledger = {"reserve": run.reserve, "groups_in_flight": run.groups_in_flight, "steps_reached": run.steps_reached}
            for what, count in ledger.items():
                self._ledger.labels(what).set(count)
        return generate_latest(self._registry), CONTENT_TYPE_LATEST


__all__ = ["Metrics"]

"""What `AsyncGRPOTrainer` of TRL is given: a rollout worker that takes steps of a run, and a weight transfer that updates its servers.

    with connect_blocking(url, run="math-1") as run:
        run.servers.attach(urls, control="trainer")
        run.feed(rows, epochs=2)
        worker = TrlWorker(run, StepRequest(task="math", groups=8, n=8, max_staleness=4))
        trainer = AsyncGRPOTrainer(..., rollout_worker=worker, weight_transfer=TrlWeights(run, worker, push))
        trainer.train()

TRL calls both from its main process; its other ranks get their rows from there. Made for TRL 1.16 (`RolloutWorkerProtocol` and
`WeightTransferProtocol` of its experimental part).

Invariants:
  1. Rows go into `rollout_buffer` in the order of steps, all rows of a group together; a full buffer holds the worker back, so the run's
     reserve and `ahead` bound what is sampled beyond it.
  2. A step is acked when TRL has taken its last row and has set a new version twice since: TRL says nothing when it has trained a row,
     takes some ahead, and makes a version of what it trained. So a trainer that dies finds again what it may not have trained.
  3. What ends the worker's thread is raised by `check_health`, which TRL calls while it waits.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.errors import RollstreamError
from pipeline.step_request import StepRequest
from trainer_client.adapters.trl import samples
from trainer_client.batches.advantages import GRPO, Advantage
from trainer_client.errors import WaitTimeout

if TYPE_CHECKING:
    import torch
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

LOOK_EVERY_S = 0.5
"""How often a worker that waits looks whether it is to stop."""
UPDATES_UNTIL_TRAINED = 2
"""Versions after its last row was taken until a step counts as trained."""


@dataclass(slots=True)
class _Handed:
    """A step whose rows are all in the buffer."""

    step: Any
    rows: int
    """Rows that were put into the buffer up to its last one."""
    updates: int = 0
    """Versions that TRL set since it has taken that row."""


class TrlWorker:
    """A `RolloutWorkerProtocol`.

    Args:
        run: of `connect_blocking`.
        request: what each step asks for. Its `groups` are no optimizer step of TRL's, which takes rows as it needs them.
        advantage: what TRL's own worker computes is `GRPO(std=True, ddof=0, eps=1e-8)`.
        max_rows: of the buffer.
    """

    def __init__(self, run: Any, request: StepRequest, *, advantage: Advantage | None = None, max_rows: int = 1024) -> None:
        self.rollout_buffer: queue.Queue[RolloutSample] = queue.Queue(maxsize=max_rows)
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        self._run = run
        self._request = request
        self._advantage = advantage or GRPO(std=True, ddof=0, eps=1e-8)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._seen_s = time.monotonic()
        self._put = 0
        self._handed: deque[_Handed] = deque()
        self._next: int | None = None  # the step after the last that was handed over; None = where the run goes on
        self._lock = threading.Lock()
        self._version = 0
        self._versions: dict[int, int] = {}

    def start(self) -> None:
        """Begins to take steps, in a thread."""
        if self._thread is not None:
            return
        self._seen_s = time.monotonic()
        self._thread = threading.Thread(target=self._work, name="rollstream-trl-worker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; steps that were not acked come again when the run is connected the next time."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def update_model_version(self, model_version: int) -> None:
        """TRL has other weights: rows that are sampled from now on are of this version."""
        with self._lock:
            self._version = model_version
            self._versions[_number(self._run.policy_version)] = model_version
            taken = self._put - self.rollout_buffer.qsize()
            for handed in self._handed:
                if handed.rows <= taken:
                    handed.updates += 1

    def check_health(self, stale_after_s: float) -> None:
        """Raises what ended the worker, or why no step comes when none came for so long."""
        if self._failure is not None:
            raise RuntimeError(f"the rollout worker has ended: {self._failure}") from self._failure
        silent_s = time.monotonic() - self._seen_s
        if silent_s > stale_after_s:
            raise RuntimeError(f"no step for {silent_s:.0f} s (stale_after_s={stale_after_s:.0f}): {'; '.join(self._run.why_waiting())}")

    def _work(self) -> None:
        try:
            for step in self._steps():
                rows = list(samples(step.rollouts(advantage=self._advantage), versions=self._known_versions()))
                for row in rows:
                    if not self._put_row(row):
                        return
                self.metrics_queue.put(dict(step.metrics))
                with self._lock:
                    self._handed.append(_Handed(step, self._put))
                self._next = step.index + 1
                self._ack_trained()
            while not self._stop.wait(LOOK_EVERY_S):  # the prompts have ended; what was handed over is still to be acked
                self._seen_s = time.monotonic()
                self._ack_trained()
        except BaseException as error:  # noqa: BLE001  # raised by check_health in TRL's own thread
            self._failure = error

    def _steps(self) -> Iterator[Any]:
        """Steps as they come; a look at `stop` and at what may be acked in between."""
        while not self._stop.is_set():
            try:
                for step in self._run.steps(self._request, timeout_s=LOOK_EVERY_S, start=self._next):
                    self._seen_s = time.monotonic()
                    yield step
                    if self._stop.is_set():
                        return
            except WaitTimeout:
                self._ack_trained()
                continue
            return

    def _put_row(self, row: RolloutSample) -> bool:
        row.enqueued_at = time.time()
        while not self._stop.is_set():
            self._seen_s = time.monotonic()  # a full buffer is TRL's time, not ours
            try:
                self.rollout_buffer.put(row, timeout=LOOK_EVERY_S)
            except queue.Full:
                self._ack_trained()
                continue
            with self._lock:
                self._put += 1
            return True
        return False

    def _ack_trained(self) -> None:
        with self._lock:
            done = 0
            while done < len(self._handed) and self._handed[done].updates >= UPDATES_UNTIL_TRAINED:
                done += 1
            trained = [self._handed.popleft() for _ in range(done)]
        if trained:
            trained[-1].step.ack()  # and all before it

    def _known_versions(self) -> dict[int, int]:
        with self._lock:
            return dict(self._versions)


class TrlWeights:
    """A `WeightTransferProtocol`: each transfer is one `weight_update` of the run.

    Args:
        run: of `connect_blocking`.
        push: loads what it is given into the servers of an update: `push(servers, named_tensors)`. With servers that read a path
            (`reload_weights`), it saves the tensors there first.
    """

    def __init__(self, run: Any, push: Callable[[Any, Iterator[tuple[str, torch.Tensor]]], None]) -> None:
        self._run = run
        self._push = push
        self._update: AbstractContextManager[Any] | None = None
        self._servers: Any = None

    def init_weight_transfer(self) -> None:
        """Nothing is to be set up: servers are attached to the run."""

    def pause(self) -> None:
        """No model call begins any more; the engines stand."""
        self._update = self._run.weight_update(_number(self._run.policy_version) + 1)
        self._servers = self._update.__enter__()

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Loads weights into all servers of the update. What fails undoes the update: the servers wait for the next."""
        try:
            self._push(self._servers, iterator)
        except BaseException as error:
            self._leave(error)
            raise

    def resume(self) -> None:
        """The servers bear the label of the new version, and the jobs go on."""
        if self._update is None:
            raise RollstreamError("resume without pause: TRL calls pause, send_weights and resume in turn")
        self._leave(None)

    def destroy(self) -> None:
        """An update that was begun and not ended is undone."""
        if self._update is not None:
            self._leave(RollstreamError("training ended during a weight update"))

    def _leave(self, error: BaseException | None) -> None:
        update, self._update = self._update, None
        if update is None:
            return
        if error is None:
            update.__exit__(None, None, None)
        else:
            update.__exit__(type(error), error, error.__traceback__)


def _number(version: str) -> int:
    """Of a policy version; 0 of none."""
    number = version.rpartition(".")[2]
    return int(number) if number else 0


__all__ = ["TrlWeights", "TrlWorker"]

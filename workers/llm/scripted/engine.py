"""The engine of the scripted server: calls that take time, can be aborted, paused and cross a change of weights.

Invariants:
  1. A call ends once: at its end token, its budget, its stop string, an abort, or with the task that awaits it.
  2. The ids of a call are settled when it starts; time only decides how many of them are out. So an aborted call returns a prefix of
     what it would have returned, and a frozen one goes on where it stood.
  3. The label of the weights at the time a token came out is the token's version; spans follow from that alone. Its logprob is that of the
     weights, whatever their label: who labels wrong is found out. Until weights are loaded they are those that the label names.
  4. While the engine is paused no token comes out, `wait` excepted, which lets what was accepted before finish.

There is no timer a token: each running call has one, for its end.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import Counter, deque
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from pipeline.engines.control import PauseMode
from workers.llm.backend import Finish, LogprobsMode
from workers.llm.scripted.call import Call, Output, Running
from workers.llm.scripted.distribution import forced_logprob, token_logprobs
from workers.llm.scripted.options import Latency, ServerOptions
from workers.llm.scripted.policy import Policy
from workers.llm.scripted.prefix_cache import PrefixCache
from workers.llm.tokenizer import Tokenizer


class EngineBusyError(Exception):
    """More calls than the server keeps."""


class EnginePausedError(Exception):
    """The server takes no calls while it is paused."""


class Engine:
    """All calls of one server. Lives on one event loop."""

    def __init__(self, options: ServerOptions, tokenizer: Tokenizer, policy: Policy) -> None:
        self._options = options
        self._tokenizer = tokenizer
        self._policy = policy
        self._end_of_text = tokenizer.specials.get("<|endoftext|>")
        """The model's other end token: it ends a call too, and is named as its reason."""
        self.cache = PrefixCache(block_size=options.block_size, max_blocks=options.cache_blocks)
        self.version = "default"
        """The label of the weights."""
        self.loaded: str | None = None
        """The weights that were loaded last; None = those that the label names."""
        self.paused: PauseMode | None = None
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._calls: dict[int, Running] = {}
        """By identity: a client may send one id twice."""
        self._line: deque[Running] = deque()
        self._n_running = 0
        self._n_accepted = 0
        self._cleared = False
        """The pause that goes on cleared the cache: calls in flight are computed anew."""
        self.finished: Counter[str] = Counter()
        """Calls by finish; `disconnected` ones are not among vLLM's, so they have a word of their own."""
        self._ended_tokens = 0
        self.prompt_tokens = 0

    @property
    def n_running(self) -> int:
        """Calls that hold a place, frozen ones included."""
        return self._n_running

    @property
    def n_waiting(self) -> int:
        """Calls in line; those that arrived during a pause do not show, as in vLLM."""
        return len(self._line)

    @property
    def generation_tokens(self) -> int:
        """Tokens sampled so far, those of calls in flight included."""
        now = asyncio.get_running_loop().time()
        return self._ended_tokens + sum(running.tokens_out(now) for running in self._calls.values())

    @property
    def kv_used(self) -> float:
        """Share of the KV cache that calls in flight hold, 0 to 1."""
        now, size = asyncio.get_running_loop().time(), self._options.block_size
        lengths = [len(running.call.prompt_ids) + running.tokens_out(now) for running in self._calls.values() if running.placed]
        return min(1.0, sum(-(-length // size) for length in lengths) / self._options.cache_blocks)

    def request_ids(self) -> list[str]:
        """Ids of all calls accepted and not ended."""
        return [running.call.request_id for running in self._calls.values()]

    # ---- one call

    async def run(self, call: Call) -> Output:
        """Sample. Ends early by `abort` or with the awaiting task.

        Raises:
            EngineBusyError: too many calls.
            EnginePausedError: paused, on a wire that refuses then.
        """
        if self.paused in ("abort", "wait") and self._options.wire == "0.33":
            raise EnginePausedError
        if len(self._calls) >= self._options.max_requests:
            raise EngineBusyError
        running = Running(call)
        self._calls[id(running)] = running
        try:
            output = await self._run(running)
        except asyncio.CancelledError:
            self.finished["disconnected"] += 1
            raise
        finally:
            self._forget(running)
        self.finished[output.finish] += 1
        self._ended_tokens += len(output.token_ids)
        return output

    async def _run(self, running: Running) -> Output:
        while not self._resumed.is_set() and not running.aborted:
            await self._wait(running)
        if not running.aborted:
            await self._take_place(running)
        if not running.placed:
            return Output(token_ids=[], logprobs=[], finish="abort", stop_reason=None, spans=[], cached_tokens=0)
        call, loop = running.call, asyncio.get_running_loop()
        cached, kept = self.cache.look_up(call.prompt_ids, call.cache_salt)
        self.cache.add(call.prompt_ids, call.cache_salt, self.weights)
        self.prompt_tokens += len(call.prompt_ids)
        said = self._say(call)
        running.start(said, self._times(call, len(said[0])), loop.time(), self.version, self.weights, kept)
        if self.paused == "keep":
            running.freeze(loop.time())
        await asyncio.sleep(0)  # even at no latency others get their turn
        while not running.aborted:
            frozen = self.paused == "keep"
            left_s = running.left_s(loop.time())
            if not frozen and left_s <= 0:
                break
            await self._wait(running, None if frozen else left_s)
        return self._output(running, loop.time(), cached)

    async def _take_place(self, running: Running) -> None:
        """Stand in line until there is a place and the engine samples."""
        running.accepted = True
        self._n_accepted += 1
        self._idle.clear()
        self._line.append(running)
        self._move_line()
        while running in self._line:
            if running.aborted:
                self._line.remove(running)
                return
            await self._wait(running)

    async def _wait(self, running: Running, timeout_s: float | None = None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await running.changed.wait()
        except TimeoutError:
            return
        running.changed.clear()

    def _move_line(self) -> None:
        while self._line and self._n_running < self._options.max_running and self.paused != "keep":
            first = self._line.popleft()
            self._n_running += 1
            first.placed = True
            first.changed.set()

    def _forget(self, running: Running) -> None:
        self._calls.pop(id(running), None)
        if running.placed:
            self._n_running -= 1
        elif running in self._line:
            self._line.remove(running)
        if running.accepted:
            self._n_accepted -= 1
            if not self._n_accepted:
                self._idle.set()
        self._move_line()

    def _say(self, call: Call) -> tuple[list[int], Finish, int | str | None]:
        """The ids of a call, the stop token included, and why they end."""
        budget = call.sampling.max_tokens
        if call.script is not None:
            ids = list(call.script)
            if not ids or ids[-1] not in call.stop_token_ids | {self._policy.end_id}:
                ids.append(self._policy.end_id)
        elif call.allowed_token_ids:
            ids = [random.Random(f"{call.seed}").choice(call.allowed_token_ids)] * budget
        else:
            seed = call.seed if call.sampling.temperature > 0 else 0
            ids = self._policy.utter(call.prompt_ids, seed, budget)
        if call.ignore_eos:
            ids += [self._policy.end_id] * (budget - len(ids))
        text = self._tokenizer.stream()
        seen = ""
        for place, id_ in enumerate(ids[:budget]):
            if id_ == self._policy.end_id and not call.ignore_eos:
                return ids[: place + 1], "stop", None
            if id_ in call.stop_token_ids or (id_ == self._end_of_text and not call.ignore_eos):
                return ids[: place + 1], "stop", id_
            if call.stop:
                seen += text.push(id_)
                for stop in call.stop:
                    if stop in seen:
                        return ids[: place + 1], "stop", stop
        return ids[:budget], "length", None

    def _times(self, call: Call, n_tokens: int) -> np.ndarray:
        """Seconds after its start at which each token is out, shape [n_tokens]."""
        latency = self._options.latency
        if call.delay_s is not None:
            return np.arange(1, n_tokens + 1) * call.delay_s
        if latency == Latency():
            return np.zeros(n_tokens)
        rng = np.random.default_rng(zlib.crc32(f"{call.request_id}/{call.seed}".encode("utf-8", "replace")))
        steps = latency.per_token_s * rng.lognormal(0.0, latency.sigma, n_tokens)
        steps[0] = latency.first_token_s * rng.lognormal(0.0, latency.sigma)
        times: np.ndarray = np.cumsum(steps)
        return times

    def _output(self, running: Running, now: float, cached: int) -> Output:
        call = running.call
        n_out = running.tokens_out(now) if running.aborted else len(running.ids)
        whole = n_out == len(running.ids)
        ids = running.ids[:n_out]
        edges = [*(mark for mark in running.marks if mark[0] < n_out), (n_out, "", "")]
        stretches = [(start, end, label, weights) for (start, label, weights), (end, _, _) in pairwise(edges)]
        spans: list[tuple[str, int, int]] = []
        for start, end, label, _ in stretches:
            if spans and spans[-1][0] == label:
                start = spans.pop()[1]
            spans.append((label, start, end))
        weights = [weights for start, end, _, weights in stretches for _ in range(end - start)]
        mode, vocab_size = self._options.logprobs_mode, self._tokenizer.vocab_size
        if call.allowed_token_ids:
            logprobs = [forced_logprob(mode, vocab_size)] * n_out
        else:
            logprobs = token_logprobs(call.prompt_ids, ids, weights, call.sampling, mode=mode, vocab_size=vocab_size)
        self.cache.add([*call.prompt_ids, *ids], call.cache_salt, self.weights)
        prompt = call.prompt_ids
        return Output(
            token_ids=ids,
            logprobs=logprobs,
            finish=running.finish if whole else "abort",
            stop_reason=running.stop_reason if whole else None,
            spans=spans,
            cached_tokens=cached,
            prompt_logprobs=self._score(prompt[:1], prompt[1:], self.weights, call, "raw") if call.scores_prompt else None,
            scored=[
                {id_: self._score([*prompt, *ids[:place]], [id_], weights[place], call, mode)[0] for id_ in call.scored_ids}
                for place in range(n_out)
            ]
            if call.scored_ids
            else None,
        )

    def _score(self, before: Sequence[int], ids: Sequence[int], weights: str, call: Call, mode: LogprobsMode) -> list[float]:
        """Logprobs of given tokens where they stand."""
        vocab_size = self._tokenizer.vocab_size
        return token_logprobs(before, ids, [weights] * len(ids), call.sampling, mode=mode, vocab_size=vocab_size)

    # ---- control

    def abort(self, request_ids: Sequence[str], *, accepted_only: bool = False) -> None:
        """End calls by their full ids; unknown ones are nobody's.

        Args:
            accepted_only: not those that a pause keeps out.
        """
        wanted = frozenset(request_ids)
        for running in self._calls.values():
            if running.call.request_id in wanted and (running.accepted or not accepted_only):
                running.aborted = True
                running.changed.set()

    async def pause(self, mode: PauseMode, *, clear_cache: bool) -> None:
        """Stop sampling; see the wire's table of modes. `wait` returns when what was accepted before is done."""
        now = asyncio.get_running_loop().time()
        self.paused = mode
        self._resumed.clear()
        if mode == "keep":
            for running in self._calls.values():
                running.freeze(now)
                running.changed.set()
        else:
            if mode == "abort":
                self.abort([running.call.request_id for running in self._calls.values() if running.accepted])
            await self._idle.wait()
        if clear_cache:
            self.cache.clear()
            self._cleared = True

    def flush(self) -> None:
        """Forget cached prefixes; during a pause calls in flight lose their own keys and values, too, and are computed anew."""
        self.cache.clear()
        self._cleared = self.paused is not None

    def resume(self) -> None:
        """Sample again."""
        now = asyncio.get_running_loop().time()
        frozen, self.paused, self._cleared = self.paused == "keep", None, False
        self._resumed.set()
        for running in self._calls.values():
            if frozen:
                running.thaw(now)
            running.changed.set()
        self._move_line()

    @property
    def weights(self) -> str:
        """What makes the logprobs."""
        return self.version if self.loaded is None else self.loaded

    def set_version(self, version: str) -> None:
        """Label the weights; tokens that come out from now on bear it."""
        self.version = version
        self._tell_calls()

    def load(self, weights: str) -> None:
        """Other weights, under the label that stands; tokens that come out from now on are theirs."""
        self.loaded = weights
        self._tell_calls()

    def _tell_calls(self) -> None:
        now = asyncio.get_running_loop().time()
        for running in self._calls.values():
            running.change(self.version, self.weights, now, recomputed=self._cleared)

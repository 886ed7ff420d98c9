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
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from workers.llm.backend import Finish, LogprobsMode
from workers.llm.scripted.call import Call, Output, Running
from workers.llm.scripted.distribution import forced_logprob, token_logprobs
from workers.llm.scripted.line import Line
from workers.llm.scripted.options import Latency, ServerOptions
from workers.llm.scripted.policy import Policy
from workers.llm.scripted.prefix_cache import PrefixCache
from workers.llm.tokenizer import Tokenizer


class Engine(Line[Running]):
    """All calls of one server. Lives on one event loop."""

    def __init__(self, options: ServerOptions, tokenizer: Tokenizer, policy: Policy) -> None:
        super().__init__(options)
        self._tokenizer = tokenizer
        self._policy = policy
        self._end_of_text = tokenizer.specials.get("<|endoftext|>")
        """The model's other end token: it ends a call too, and is named as its reason."""
        self.cache = PrefixCache(block_size=options.block_size, max_blocks=options.cache_blocks)
        self.version = "default"
        """The label of the weights."""
        self.loaded: str | None = None
        """The weights that were loaded last; None = those that the label names."""
        self._cleared = False
        """The pause that goes on cleared the cache: calls in flight are computed anew."""
        self.prompt_tokens = 0

    @property
    def generation_tokens(self) -> int:
        """Tokens sampled so far, those of calls in flight included."""
        now = asyncio.get_running_loop().time()
        return self._ended_tokens + sum(running.tokens_out(now) for running in self._seats())

    @property
    def kv_used(self) -> float:
        """Share of the KV cache that calls in flight hold, 0 to 1."""
        now, size = asyncio.get_running_loop().time(), self._options.block_size
        lengths = [len(running.call.prompt_ids) + running.tokens_out(now) for running in self._seats() if running.placed]
        return min(1.0, sum(-(-length // size) for length in lengths) / self._options.cache_blocks)

    # ---- one call

    def _seat(self, call: Call) -> Running:
        return Running(call)

    async def _sample(self, running: Running) -> Output:
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

    def _stand(self) -> None:
        now = asyncio.get_running_loop().time()
        for running in self._seats():
            running.freeze(now)
            running.changed.set()

    def _go_on(self) -> None:
        now = asyncio.get_running_loop().time()
        for running in self._seats():
            running.thaw(now)

    def _forget_computed(self) -> None:
        self.cache.clear()
        self._cleared = True

    def flush(self) -> None:
        """Forget cached prefixes; during a pause calls in flight lose their own keys and values, too, and are computed anew."""
        self.cache.clear()
        self._cleared = self.paused is not None

    def resume(self) -> None:
        """Sample again."""
        self._cleared = False
        super().resume()

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
        for running in self._seats():
            running.change(self.version, self.weights, now, recomputed=self._cleared)

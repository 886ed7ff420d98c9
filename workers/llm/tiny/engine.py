"""The engine of a small network: calls join a batch when they have a place, and each step gives every one of them a token.

Invariants:
  1. The logprob of a token is that of the distribution it was drawn from, by the weights whose label it bears: weights and label of a
     step are those that stood when it began.
  2. When `pause` has returned no step is going on. What stands keeps its keys and values across a change of weights unless the pause
     cleared them; then they are computed anew from its tokens.
  3. What is drawn follows from logits and the seed of the call. Logits differ in their last bits with the size of the batch, so the same
     call may give other tokens in other company.
  4. One thread computes, and the event loop does not wait for it: calls come, end and are aborted between steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from pipeline.engines.control import PauseMode
from workers.llm import chatml
from workers.llm.scripted.call import Call, Output
from workers.llm.scripted.http import BadRequestError
from workers.llm.scripted.line import Line
from workers.llm.scripted.options import ServerOptions
from workers.llm.tiny.checkpoint import load_model
from workers.llm.tiny.model import KeyValues, TinyLM
from workers.llm.tiny.sampling import Floats, chosen, distributions, draw, is_plain, log_softmax
from workers.llm.tiny.seat import TinySeat, Token
from workers.llm.tokenizer import Tokenizer

END_OF_TEXT = "<|endoftext|>"
MOST_JOINING = 16
"""Prompts that are read in one step: those that sample wait for them."""


class NothingCached:
    """No prefix is kept from call to call: reading a prompt of so small a model again costs less than looking for it."""

    def __init__(self) -> None:
        self.queries = 0
        self.hits = 0

    def clear(self) -> None:
        """Nothing is there."""


class TinyEngine(Line[TinySeat]):
    """All calls of one server.

    Args:
        options: `max_running` is the size of the batch.
        model: what samples until others are loaded, which must have its shape.
    """

    def __init__(self, options: ServerOptions, tokenizer: Tokenizer, model: TinyLM) -> None:
        super().__init__(options)
        self._tokenizer = tokenizer
        self._model = model
        self._end_ids: dict[int, int | None] = {tokenizer.special(chatml.CLOSE): None}
        if END_OF_TEXT in tokenizer.specials:
            self._end_ids[tokenizer.special(END_OF_TEXT)] = tokenizer.special(END_OF_TEXT)
        self.cache = NothingCached()
        self.version = "default"
        self.prompt_tokens = 0
        self.steps = 0
        self._kept = KeyValues(model.config, options.max_running)
        self._rows: list[TinySeat] = []
        """Calls in the batch, in the order of its rows."""
        self._joining: list[TinySeat] = []
        self._stepping: asyncio.Task[None] | None = None
        """Runs while there are calls that have a place."""
        self._between = asyncio.Event()
        """No step is going on."""
        self._between.set()
        self._may_step = asyncio.Event()
        self._may_step.set()

    @property
    def generation_tokens(self) -> int:
        """Tokens sampled so far, those of calls in flight included."""
        return self._ended_tokens + sum(len(seat.ids) for seat in self._seats())

    @property
    def kv_used(self) -> float:
        """Share of the room for keys and values that calls hold, 0 to 1."""
        return float(self._kept.lengths[: self._kept.n].sum()) / (self._options.max_running * self._model.config.max_len)

    # ---- calls

    def _seat(self, call: Call) -> TinySeat:
        return TinySeat(call, self._tokenizer, self._end_ids)

    async def _sample(self, seat: TinySeat) -> Output:
        self.prompt_tokens += len(seat.call.prompt_ids)
        self.cache.queries += len(seat.call.prompt_ids)
        self._joining.append(seat)
        try:
            if self._stepping is None:
                self._stepping = asyncio.create_task(self._step_on(), name="steps of the network")
            while seat.finish is None and seat.error is None and not seat.aborted:
                await self._wait(seat)
        except asyncio.CancelledError:
            seat.aborted = True
            raise
        if seat.error is not None:
            raise BadRequestError(f"the network failed: {seat.error!r}", status=500, kind="InternalServerError")
        return seat.output()

    async def _step_on(self) -> None:
        """Steps for as long as there is somebody in the batch or at its door."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._dismiss()
                if not self._rows and not self._joining:
                    return
                if pace_s := max(seat.call.delay_s or 0.0 for seat in (*self._rows, *self._joining)):
                    await asyncio.sleep(pace_s)  # somebody asked for slow tokens: all of the batch have them
                if not self._may_step.is_set():
                    await self._may_step.wait()
                    continue
                new, self._joining = self._joining[:MOST_JOINING], self._joining[MOST_JOINING:]
                seats = [*self._rows, *new]
                self._between.clear()
                try:
                    label = self.version
                    tokens = await loop.run_in_executor(None, self._step, seats, new, self._model)
                finally:
                    self._between.set()
                self._rows = seats
                for seat, token in zip(seats, tokens, strict=True):
                    if not seat.aborted:  # its answer is on its way
                        seat.take(token, label)
                    if seat.finish is not None:
                        seat.changed.set()
        except Exception as error:  # noqa: BLE001  # whatever torch raises is the answer to those that wait for it
            for seat in [*self._rows, *self._joining]:
                seat.error = error
                seat.changed.set()
            self._rows, self._joining, self._kept.n = [], [], 0
        finally:
            self._stepping = None

    def _dismiss(self) -> None:
        """Frees the rows of calls that are over."""
        self._joining = [seat for seat in self._joining if not seat.aborted]
        for row in reversed(range(len(self._rows))):
            if self._rows[row].finish is not None or self._rows[row].aborted:
                self._kept.remove(row)
                self._rows[row] = self._rows[-1]
                self._rows.pop()

    # ---- in the thread

    def _step(self, seats: Sequence[TinySeat], new: Sequence[TinySeat], model: TinyLM) -> list[Token]:
        """A token for each seat; the last ones are `new` and read their prompts first."""
        with torch.inference_mode():
            found = []
            if self._kept.n:
                found.append(model.go_on(self._kept, torch.tensor([seat.ids[-1] for seat in seats[: self._kept.n]])))
            if new:
                found.append(model.begin(self._kept, [seat.all_ids for seat in new]))
                for seat in new:
                    if seat.call.scores_prompt and not seat.ids:
                        seat.prompt_logprobs = self._score_prompt(model, seat.call.prompt_ids)
            logits_N_V: Floats = torch.cat(found).double().numpy()
        self.steps += 1
        return self._choose(seats, logits_N_V)

    def _choose(self, seats: Sequence[TinySeat], logits_N_V: Floats) -> list[Token]:
        temperatures = np.array([seat.call.sampling.temperature or 1.0 for seat in seats])
        processed_N_V = log_softmax(logits_N_V / temperatures[:, None])
        scaled = {}
        for row, seat in enumerate(seats):
            call = seat.call
            if not is_plain(call.sampling, call.allowed_token_ids):
                scaled[row], processed_N_V[row] = distributions(
                    logits_N_V[row], call.sampling, call.prompt_ids, seat.ids, call.allowed_token_ids
                )
        drawn = draw(processed_N_V, np.array([seat.uniform() for seat in seats]))
        tokens = []
        for row, seat in enumerate(seats):
            processed_V = processed_N_V[row]
            id_ = seat.forced()
            if id_ is None:
                id_ = int(drawn[row]) if seat.call.sampling.temperature > 0 else int(processed_V.argmax())
            told_V = chosen(self._options.logprobs_mode, logits_N_V[row], scaled.get(row, processed_V), processed_V)
            told = {wanted: float(np.float32(told_V[wanted])) for wanted in (id_, *seat.call.scored_ids)}
            tokens.append(Token(id_, told[id_], {wanted: told[wanted] for wanted in seat.call.scored_ids}))
        return tokens

    def _score_prompt(self, model: TinyLM, ids: Sequence[int]) -> list[float]:
        logits: Floats = model(torch.tensor([list(ids)]))[0, :-1].double().numpy()
        return [float(np.float32(value)) for value in log_softmax(logits)[np.arange(len(ids) - 1), list(ids[1:])]]

    # ---- control

    async def pause(self, mode: PauseMode, *, clear_cache: bool) -> None:
        """Stop sampling. When it returns, no step is going on."""
        await super().pause(mode, clear_cache=False)
        await self._between.wait()
        if clear_cache:
            self._forget_computed()

    def _stand(self) -> None:
        self._may_step.clear()

    def _go_on(self) -> None:
        self._may_step.set()

    def _forget_computed(self) -> None:
        """Those that stand come in again behind their prompt and what they have said."""
        self._joining = [*self._rows, *self._joining]
        self._rows, self._kept.n = [], 0

    def flush(self) -> None:
        """Nothing is cached; during a pause calls that stand are computed anew."""
        if self.paused is not None:
            self._forget_computed()

    def set_version(self, version: str) -> None:
        """Label the weights; steps that begin from now on bear it."""
        self.version = version

    def load(self, weights: str) -> None:
        """Take the weights in a folder, from the next step on.

        Raises:
            BadRequestError: they cannot be read, or are of another shape; those that stand go on.
        """
        try:
            self._model = load_model(Path(weights), self._model.config)
        except (OSError, ValueError, RuntimeError) as error:
            raise BadRequestError(
                f"cannot load {weights}: {error}", param="weights_path", status=500, kind="InternalServerError"
            ) from error

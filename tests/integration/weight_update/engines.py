"""Scripted servers that a test loads, restarts and kills, and the truth of each token: its logprob is that of the weights that made it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.messages import Sampling, Trajectory
from tests.integration.weight_update.loading import OLD, weights_of
from workers.llm.scripted import ScriptedServer, ServerOptions
from workers.llm.scripted.distribution import token_logprobs
from workers.llm.scripted.options import Latency


class Engines:
    """Servers at fixed addresses, in the test's own process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.servers: dict[str, ScriptedServer] = {}

    def url(self, name: str) -> str:
        return f"unix:{self._folder / name}"

    def __getitem__(self, name: str) -> ScriptedServer:
        return self.servers[name]

    async def start(self, name: str, options: ServerOptions | None = None, *, weights: str = OLD, per_token_s: float = 0.0) -> str:
        """A server whose weights nobody has labelled; its address."""
        options = replace(options or ServerOptions(latency=Latency(per_token_s=per_token_s, sigma=0.0)), weights=weights)
        server = ScriptedServer(options, socket_path=self._folder / name)
        self.servers[name] = await server.__aenter__()
        return self.url(name)

    async def die(self, name: str) -> None:
        """Its process is gone: calls in flight with it."""
        await self.servers[name].die()
        (self._folder / name).unlink(missing_ok=True)

    async def leave(self) -> None:
        for name in self.servers:
            await self.die(name)


def logprobs_of(weights: Sequence[str], prompt_ids: Sequence[int], ids: Sequence[int], sampling: Sampling | None = None) -> list[float]:
    """What each token's logprob is when these weights made it."""
    vocab_size = ScriptedServer().tokenizer.vocab_size
    return token_logprobs(prompt_ids, ids, weights, sampling or Sampling(), mode="processed", vocab_size=vocab_size)


def lies_in(trajectory: Trajectory, weights: Callable[[str], str] = weights_of) -> list[str]:
    """Stretches of tokens that bear another version than that of the weights which made them.

    Args:
        weights: what was loaded for a version.
    """
    found: list[str] = []
    for segment in trajectory.segments:
        ids = segment.token_ids.tolist()
        for turn in trajectory.turns:
            labels = [
                (max(turn.start, span.start), min(turn.end, span.end), span.version)
                for span in segment.versions
                if span.start < turn.end and turn.start < span.end
            ]
            held = [weights(label) for start, end, label in labels for _ in range(end - start)]
            expected = logprobs_of(held, ids[: turn.start], ids[turn.start : turn.end], turn.sampling)
            if segment.logprobs[turn.start : turn.end].tolist() != expected:
                found.append(f"tokens {turn.start} to {turn.end}, said to be of {labels}")
    return found

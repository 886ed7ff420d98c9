"""DAPO's loss, and the optimizer that follows it.

    loss = sum over loss tokens of  -min(r A, clip(r, 1 - LOW, 1 + HIGH) A) · min(q, TRUNCATED) / loss tokens of the step

r is the ratio of the policy to what it was when the step came; q that of what it was then to what sampled the token (an engine with older
weights, other arithmetic): truncated importance sampling. No term holds the policy to a reference. The divisor is of the whole step, so how
it is cut into minibatches changes no token's weight.

Yu et al. 2025 (DAPO), arXiv 2503.14476: clip-higher and the token-level loss.

Shapes: R rows, T tokens, N loss tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trainer_client.batches import PaddedRows, as_tensors
from workers.llm.tiny.model import TinyLM

CLIP_LOW, CLIP_HIGH, TRUNCATED = 0.2, 0.28, 2.0
LEARNING_RATE = 3e-4
EPSILON = 1e-4
"""Of Adam: about the gradient of a weight when there is something to learn. With the usual 1e-8, weights whose gradient is noise move as
far as the others, and what the model could do before is lost."""
MINIBATCHES = 4
LONGEST_GRADIENT = 1.0


@dataclass(slots=True)
class _Tally:
    """What is counted over the minibatches of a step."""

    tokens: int = 0
    clipped: int = 0
    entropy: float = 0.0
    gradients: list[float] = field(default_factory=list)


class Learner:
    """A model that learns, and its optimizer."""

    def __init__(self, model: TinyLM, *, learning_rate: float = LEARNING_RATE, minibatches: int = MINIBATCHES) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), eps=EPSILON, weight_decay=0.0)
        self._minibatches = minibatches

    def learn(self, rows: PaddedRows, *, seed: int) -> dict[str, float]:
        """One pass over a step, an update a minibatch.

        Args:
            seed: decides which rows go together.

        Returns:
            `clipped`: share of tokens whose ratio was held; `behaviour_ratio`: mean of q, 1 where sampler and trainer agree; `truncated`:
            share of tokens whose q was; `entropy` of the distributions, nats; `gradient`: mean length, before it is cut.
        """
        step = as_tensors(rows)
        with torch.no_grad():
            old = self._logprobs(step)[0]
            ratios = (old - step["behaviour_logprobs"][step["loss_mask"]]).exp()
        # back into the rectangle, so that each minibatch finds its own
        step["old"] = torch.zeros_like(step["behaviour_logprobs"]).masked_scatter(step["loss_mask"], old)
        tally = _Tally()
        for part in self._parts(len(step["token_ids"]), seed):
            loss = self._loss({name: tensor[part] for name, tensor in step.items()}, tally)
            self.optimizer.zero_grad()
            loss.backward()
            tally.gradients.append(float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), LONGEST_GRADIENT)))
            self.optimizer.step()
        return {
            "clipped": tally.clipped / tally.tokens,
            "behaviour_ratio": float(ratios.mean()),
            "truncated": float((ratios > TRUNCATED).float().mean()),
            "entropy": tally.entropy / tally.tokens,
            "gradient": sum(tally.gradients) / len(tally.gradients),
        }

    def _parts(self, rows: int, seed: int) -> Iterator[Tensor]:
        """Numbers of rows in a shuffled order, in parts of nearly the same size."""
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
        yield from order.tensor_split(min(self._minibatches, rows))

    def _loss(self, rows: Mapping[str, Tensor], tally: _Tally) -> Tensor:
        new, entropies = self._logprobs(rows)
        mask = rows["loss_mask"]
        advantages, old = rows["advantages"][mask], rows["old"][mask]
        ratio = (new - old).exp()
        free, held = ratio * advantages, ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH) * advantages
        sampled = (old - rows["behaviour_logprobs"][mask]).exp().clamp(max=TRUNCATED)
        tally.tokens += len(new)
        tally.clipped += int((held < free).sum())
        tally.entropy += float(entropies.sum())
        return -(torch.minimum(free, held) * sampled * rows["weights"][mask]).sum()

    def _logprobs(self, rows: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Of the loss tokens, in order of rows, and the entropy of what each was drawn from: float32, [N]."""
        mask = rows["loss_mask"]
        before = torch.cat((mask[:, 1:], torch.zeros_like(mask[:, :1])), 1)  # a token is told by the place in front of it
        logits = self.model(rows["token_ids"], before) / rows["temperatures"][mask][:, None]
        log_probabilities = logits.log_softmax(-1)
        logprobs = log_probabilities.gather(-1, rows["token_ids"][mask][:, None])[:, 0]
        return logprobs, -(log_probabilities.exp() * log_probabilities).sum(-1).detach()

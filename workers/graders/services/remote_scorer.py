"""A scorer over HTTP.

    POST /compute_score   {"solution_str": ..., "ground_truth": ..., "data_source": ..., "extra_info": {"question": ..., "id": ...}}
    200                   {"score": 0.5}, with more components or without: {"score": 0.5, "components": {"style": 1.0}}

The names are those of verl's `compute_score` and of ProRL's reward server. A score is a finite number from `lowest` to `highest`; whatever
else comes is a failure of the server, and never a 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from workers.graders.services.asked import Asked, Scored
from workers.graders.services.client import ServiceClient, Unusable

MAX_COMPONENTS = 32
_RESERVED = frozenset(("score", "answered"))


class RemoteScorer:
    """Scores by a service of the kind `remote`."""

    def __init__(self, client: ServiceClient) -> None:
        self._client = client

    async def score(self, asked: Asked) -> Scored:
        """The score of an answer.

        Raises:
            GraderError: the service gave none.
        """
        body: dict[str, object] = {
            "solution_str": asked.response,
            "ground_truth": asked.reference,
            "data_source": asked.task,
        }
        if self._client.settings.extra_info:
            body["extra_info"] = {"question": asked.question, "id": asked.prompt_id}
        return await self._client.ask(body, self._read)

    def _read(self, reply: object) -> Scored:
        if not isinstance(reply, Mapping) or "score" not in reply:
            raise Unusable(f"no score in the reply: {str(reply)[:100]!r}")
        lowest, highest = self._client.settings.lowest, self._client.settings.highest
        score = number(reply["score"], "score")
        if not lowest <= score <= highest:
            raise Unusable(f"a score of {score:g}, expected {lowest:g} to {highest:g}")
        more = reply.get("components") or {}
        if not isinstance(more, Mapping) or len(more) > MAX_COMPONENTS:
            raise Unusable(f"expected at most {MAX_COMPONENTS} components by name, got {str(more)[:100]!r}")
        components = {str(name): number(value, f"component {name}") for name, value in more.items() if name not in _RESERVED}
        return Scored(score=(score - lowest) / (highest - lowest), reason="scored", components=components)


def number(value: object, what: str) -> float:
    """A finite number.

    Raises:
        Unusable
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Unusable(f"expected a finite number as {what}, got {str(value)[:60]!r}")
    return float(value)

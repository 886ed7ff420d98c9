"""A trajectory as the original's list of messages, which its trainers make token arrays of.

They join the `token_ids` of all messages, take what stands before the first assistant message as the prompt, and mask all tokens of
assistant messages as sampled. So here:

Invariants, where messages have token ids
    1. Joined in order they are the ids of the last segment, from its beginning to its last sampled token: each once, none made up.
    2. The ids of an assistant message are exactly those that were sampled in its turn; its logprobs are finite, one a token. All other
       messages have none (null).
    3. An assistant message whose tokens were sampled in an earlier segment, or in none, is none here: its tokens are part of the prompt.
    4. The last message is an assistant's. What followed it (an answer of a tool that nothing was sampled after) is left out, as there.

A turn that was aborted and went on is several calls, next to one another in the segment: one message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.messages import ChatMessage, Segment, Trajectory, Turn

ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Tokens that were sampled one after the other: those of one turn of the model."""

    start: int
    end: int


def original_messages(trajectory: Trajectory, *, with_tokens: bool) -> list[dict[str, object]]:
    """The messages. Without tokens they have text alone."""
    spoken = list(trajectory.messages)
    while spoken and spoken[-1].role != ASSISTANT:
        spoken.pop()
    if not with_tokens:
        return [{"role": message.role, "content": message.content} for message in spoken]
    if not trajectory.segments:
        return []
    segment, place = trajectory.segments[-1], len(trajectory.segments) - 1
    stretches = _stretches(trajectory.turns, place)
    if not stretches:
        return []
    before, turns = _split(spoken, len(stretches))
    return _with_tokens(segment, stretches, before, turns, is_whole=place == 0)


def _stretches(turns: Sequence[Turn], place: int) -> list[Stretch]:
    found: list[Stretch] = []
    for turn in turns:
        if turn.segment != place or turn.end <= turn.start or (found and turn.start < found[-1].end):
            continue
        if found and found[-1].end == turn.start:
            found[-1] = Stretch(found[-1].start, turn.end)
        else:
            found.append(Stretch(turn.start, turn.end))
    return found


def _split(spoken: Sequence[ChatMessage], count: int) -> tuple[list[ChatMessage], list[tuple[list[ChatMessage], ChatMessage]]]:
    """The messages before the first of the last `count` assistant ones; and for each of these what stands between it and the one before."""
    places = [at for at, message in enumerate(spoken) if message.role == ASSISTANT][-count:]
    # a record of an agent that keeps no messages, or fewer than it has turns: their texts are not known
    missing = count - len(places)
    turns: list[tuple[list[ChatMessage], ChatMessage]] = [([], ChatMessage(role=ASSISTANT, content="")) for _ in range(missing)]
    first = places[0] if places else len(spoken)
    previous = first
    for at in places:
        turns.append((list(spoken[previous:at]), spoken[at]))
        previous = at + 1
    return list(spoken[:first]), turns


def _with_tokens(
    segment: Segment,
    stretches: Sequence[Stretch],
    before: Sequence[ChatMessage],
    turns: Sequence[tuple[list[ChatMessage], ChatMessage]],
    *,
    is_whole: bool,
) -> list[dict[str, object]]:
    ids, logprobs = segment.token_ids.tolist(), segment.logprobs.tolist()
    if is_whole and not any(message.role == ASSISTANT for message in before):
        told = _not_sampled(before, ids[: stretches[0].start])
    else:
        # what an earlier segment holds was sampled there; here it is the prompt
        text = "\n\n".join(message.content for message in before)
        told = _not_sampled([ChatMessage(role="user", content=text)], ids[: stretches[0].start])
    end = stretches[0].start
    for stretch, (between, spoken) in zip(stretches, turns, strict=True):
        told += _not_sampled(between, ids[end : stretch.start])
        told.append(
            {
                "role": ASSISTANT,
                "content": spoken.content,
                "token_ids": ids[stretch.start : stretch.end],
                "input_ids": None,
                "logprobs": logprobs[stretch.start : stretch.end],
            }
        )
        end = stretch.end
    return told


def _not_sampled(messages: Sequence[ChatMessage], ids: list[int]) -> list[dict[str, object]]:
    """Messages that the model did not write. Their tokens are told as one: all of them are the last one's."""
    if not messages:
        messages = [ChatMessage(role="user", content="")] if ids else []
    told: list[dict[str, object]] = []
    for at, message in enumerate(messages):
        is_last = at == len(messages) - 1
        told.append(
            {"role": message.role, "content": message.content, "token_ids": ids if is_last else [], "input_ids": None, "logprobs": None}
        )
    return told


__all__ = ["original_messages"]

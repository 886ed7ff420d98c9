"""Messages of the original carry the record: joined they are its ids, and what a trainer masks by role is what was sampled."""

from __future__ import annotations

from random import Random

import numpy as np

from ops.gateway.original_messages import original_messages
from pipeline.messages import ChatMessage, Segment, Trajectory, Turn
from pipeline.testing.builders import a_segment, a_trajectory, a_turn

DIALOGUES = 200


def dialogue(seed: int) -> Trajectory:
    """A dialogue as an agent records it: segments whose sampled stretches are its turns, one assistant message a turn. Some turns are
    several calls, next to one another, since they were aborted and went on."""
    random = Random(seed)
    segments, turns = list[Segment](), list[Turn]()
    messages = [ChatMessage(role=role, content=role) for role in random.choice((("user",), ("system", "user")))]
    for place in range(random.randint(1, 3)):
        mask = list[int]()
        for number in range(random.randint(1, 4)):
            mask += [0] * random.randint(1, 6)  # a template writes at least one token before each turn
            for _ in range(random.randint(1, 3)):
                call = random.randint(1, 4)
                turns.append(a_turn(len(turns), segment=place, start=len(mask), end=len(mask) + call))
                mask += [1] * call
            if (place, number) != (0, 0):
                messages += [ChatMessage(role="tool", content="seen")] * random.randint(1, 2)
            messages.append(ChatMessage(role="assistant", content=f"turn {len(messages)}"))
        mask += [0] * random.randint(0, 5)
        segments.append(segment_of(mask, seed=place))
    messages += [ChatMessage(role="tool", content="nobody reads it")] * random.randint(0, 2)
    return a_trajectory(segments=tuple(segments), turns=tuple(turns), messages=tuple(messages))


def segment_of(mask: list[int], *, seed: int) -> Segment:
    sampled = np.array(mask, np.uint8)
    logprobs = np.where(sampled == 1, np.float32(-0.5) - np.arange(len(mask), dtype=np.float32), np.float32(np.nan)).astype(np.float32)
    return a_segment(len(mask), 0, seed=seed, sampled_mask=sampled, loss_mask=sampled.copy(), logprobs=logprobs)


def test_what_a_trainer_joins_and_masks_is_the_last_segment_as_it_was_sampled() -> None:
    """Invariants 1 to 4."""
    for seed in range(DIALOGUES):
        check_row(dialogue(seed), seed)


def check_row(trajectory: Trajectory, seed: int) -> None:
    told = original_messages(trajectory, with_tokens=True)
    segment = trajectory.segments[-1]
    end = int(np.flatnonzero(segment.sampled_mask)[-1]) + 1

    ids, mask, logprobs = list[int](), list[int](), list[float]()
    for message in told:
        found = message["token_ids"]
        assert isinstance(found, list)
        ids += found
        mask += [int(message["role"] == "assistant")] * len(found)
        if message["role"] == "assistant":
            assert isinstance(message["logprobs"], list)
            assert len(found) == len(message["logprobs"]) > 0
            logprobs += message["logprobs"]
        else:
            assert message["logprobs"] is None
    assert ids == segment.token_ids[:end].tolist(), seed
    assert mask == segment.sampled_mask[:end].tolist(), seed
    assert logprobs == segment.logprobs[segment.sampled_mask == 1].tolist()
    assert told[-1]["role"] == "assistant"
    assert told[0]["role"] != "assistant"


def test_without_tokens_the_messages_are_the_dialogue_up_to_its_last_turn() -> None:
    for seed in range(DIALOGUES):
        trajectory = dialogue(seed)
        last = max(at for at, message in enumerate(trajectory.messages) if message.role == "assistant")

        told = original_messages(trajectory, with_tokens=False)

        assert told == [{"role": message.role, "content": message.content} for message in trajectory.messages[: last + 1]], seed


def test_texts_of_turns_stay_with_their_tokens() -> None:
    """Two turns with a tool's answer between them."""
    messages = [
        ChatMessage(role=role, content=text) for role, text in (("user", "q"), ("assistant", "a"), ("tool", "t"), ("assistant", "b"))
    ]
    turns = (a_turn(0, start=2, end=4), a_turn(1, start=5, end=6))
    told = original_messages(
        a_trajectory(segments=(segment_of([0, 0, 1, 1, 0, 1], seed=1),), turns=turns, messages=tuple(messages)), with_tokens=True
    )

    assert [(one["role"], one["content"], len(str(one["token_ids"]).split(","))) for one in told] == [
        ("user", "q", 2),
        ("assistant", "a", 2),
        ("tool", "t", 1),
        ("assistant", "b", 1),
    ]


def test_a_trajectory_of_which_nothing_was_sampled_has_no_messages_with_tokens() -> None:
    assert original_messages(a_trajectory(segments=(), turns=()), with_tokens=True) == []
    assert original_messages(a_trajectory(turns=()), with_tokens=True) == []
    assert original_messages(a_trajectory(messages=()), with_tokens=False) == []

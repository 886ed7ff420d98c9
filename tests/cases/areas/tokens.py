"""Cases of token fidelity: ids go through server, wire, checks, loop, record and codec, text through renderer and tokenizer.

Each kind of case is a function here; it takes the case and the desk whose servers say what they are told.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import groupby
from typing import Any

import numpy as np

from pipeline.engines import InvalidResponse
from pipeline.messages import ChatMessage, Segment, StopReason
from tests.cases.areas.dictating import ASKED, Desk, GivenPrompt, act, desk, recorded, say
from tests.cases.areas.tokens_grouping import member_counts
from tests.cases.areas.vocabularies import vocabulary
from tests.cases.case import BadCase, Case, Check, Difference, text_of
from workers.agent import ChatMLRenderer, TrajectoryRecorder
from workers.llm import chatml
from workers.llm.scripted import Dictation

Found = Mapping[str, object]
"""What the product made of a case, under the names that its expectations have."""
Kind = Callable[[Case, Desk], Awaitable[Found]]
ANY_OF = "_any_of"


@asynccontextmanager
async def area() -> AsyncIterator[Check]:
    """Servers start with the first case that needs them."""
    async with desk() as shared:

        async def check(case: Case) -> list[Difference]:
            kind = KINDS.get(str(case.input.get("kind")))
            if kind is None:
                raise BadCase(f"no kind {case.input.get('kind')!r}; there are: {', '.join(KINDS)}")
            return differences(case.expect, await kind(case, shared))

        yield check


def differences(expect: Mapping[str, Any], found: Found) -> list[Difference]:
    """Each expectation against what was found under its name; `x_any_of` lists what `x` may be."""
    different = []
    for name, wanted in expect.items():
        if name == "never":  # says in words what the others say in values
            continue
        is_choice = name.endswith(ANY_OF)
        got = found.get(name.removesuffix(ANY_OF), "nothing of that name")
        if is_choice and isinstance(got, frozenset):
            fits = not got.isdisjoint(wanted)
        elif isinstance(got, frozenset):
            fits = wanted in got
        else:
            fits = got in wanted if is_choice else _same(got, wanted)
        if not fits:
            different.append(Difference(name, wanted, sorted(got) if isinstance(got, frozenset) else got))
    return different


def _same(got: object, wanted: object) -> bool:
    if isinstance(got, list) and got and isinstance(got[0], float):
        return isinstance(wanted, list) and got == [float(np.float32(value)) for value in wanted]
    return type(got) is type(wanted) and got == wanted


def _sampled(segment: Segment) -> list[int]:
    return [int(id_) for id_ in segment.token_ids[segment.sampled_mask == 1]]


def _ids(case: Case, name: str) -> list[int]:
    ids = case.input.get(name)
    if not isinstance(ids, list) or not all(type(id_) is int for id_ in ids):
        raise BadCase(f"`{name}` must be a list of ids")
    return ids


async def _roundtrip(case: Case, at: Desk) -> Found:
    """What was sampled is recorded, whatever its text would be encoded as; the next prompt goes on from it."""
    name, ids = case.input["tokenizer"], _ids(case, "sampled_ids")
    model, renderer = await at.model(name), ChatMLRenderer(vocabulary(name))
    model.dictate(ids)
    _, recorder = await act(model, renderer, max_tokens=len(ids))
    (segment,) = recorded(recorder).segments
    follows = renderer.next_prompt(recorder.ids, recorder.turn_places, [ChatMessage(role="user", content="Go on.")]).ids
    text = renderer.tokenizer.decode(ids)
    again = renderer.tokenizer.encode(text)
    return {
        "text": text,
        "reencoded_ids": again,
        "roundtrip_equal": again == ids,
        "ids_in_training_record": _sampled(segment) if follows[: len(segment.token_ids)] == segment.token_ids.tolist() else "broken off",
        "loss_mask": segment.loss_mask[segment.sampled_mask == 1].tolist(),
    }


async def _decode(case: Case, _: Desk) -> Found:
    tokenizer, ids = vocabulary(case.input["tokenizer"]), _ids(case, "ids")
    stream = tokenizer.stream()
    streamed = "".join(stream.push(id_) for chunk in case.input.get("stream_chunks", [[id_] for id_ in ids]) for id_ in chunk)
    streamed += stream.finish()
    text = tokenizer.decode(ids)
    return {"text": text, "streamed_text": streamed, "no_replacement_char": "\ufffd" not in text + streamed}


async def _encode_observation(case: Case, _: Desk) -> Found:
    """As a tool's answer and as a user's word: the only control tokens are the template's own, and the text is whole."""
    tokenizer, text = vocabulary(case.input["tokenizer"]), text_of(case.input, "observation")
    renderer, forbidden = ChatMLRenderer(tokenizer), set(_ids(case, "forbidden_ids"))
    contains, decoded = not forbidden.isdisjoint(tokenizer.encode(text)), tokenizer.decode(tokenizer.encode(text))
    for role in ("tool", "user"):
        old = [tokenizer.special(chatml.CLOSE)]
        with_it, with_none = (renderer.next_prompt(old, [(0, 1)], [ChatMessage(role=role, content=content)]).ids for content in (text, ""))
        contains |= [id_ for id_ in with_it if id_ in forbidden] != [id_ for id_ in with_none if id_ in forbidden]
        if decoded not in tokenizer.decode(with_it):
            decoded = tokenizer.decode(with_it)
    return {"contains_forbidden": contains, "decodes_to": decoded, "ids": tokenizer.encode(text)}


async def _stop_string(case: Case, at: Desk) -> Found:
    name, ids = case.input["tokenizer"], _ids(case, "sampled_ids")
    model, renderer = await at.model(name), ChatMLRenderer(vocabulary(name))
    model.dictate(Dictation(ids, case.input["logprobs"]) if "logprobs" in case.input else ids)
    _, recorder = await act(model, renderer, max_tokens=len(ids) + 1, max_turns=1, stop=case.input["stop"])
    trajectory = recorded(recorder)
    (segment,) = trajectory.segments
    sampled = segment.sampled_mask == 1
    follows = renderer.next_prompt(recorder.ids, recorder.turn_places, [ChatMessage(role="user", content="Go on.")]).ids
    return {
        "text": trajectory.messages[len(ASKED)].content,
        "finish": trajectory.turns[0].finish,
        "record_ids": _sampled(segment) if follows[: len(segment.token_ids)] == segment.token_ids.tolist() else "broken off",
        "loss_mask": segment.loss_mask[sampled].tolist(),
        "logprobs": [float(value) for value in segment.logprobs[sampled]],
    }


async def _flatten(case: Case, at: Desk) -> Found:
    """Turns and what was answered to them, as one list of ids with its mask."""
    name = case.input["tokenizer"]
    renderer = ChatMLRenderer(vocabulary(name), thinking=_thinking(case))
    model, recorder = await at.model(name), TrajectoryRecorder()
    recorder.add_prompt(_ids(case, "prompt_ids"))
    text = ""
    for is_turn, steps in groupby(case.input["turns"], key=lambda step: "sampled_ids" in step):
        if is_turn:
            for step in steps:
                await say(model, renderer, recorder, step["sampled_ids"], step["finish"])
                text = renderer.turn_text(step["sampled_ids"], model.results[-1].stop_reason)
        else:
            answers = [ChatMessage(role=step["observation_role"], content=text_of(step, "observation_text")) for step in steps]
            prompt = renderer.next_prompt(recorder.ids, recorder.turn_places, answers)
            recorder.add_prompt(prompt.ids, prompt.began)
    (segment,) = recorded(recorder).segments
    added = segment.sampled_mask == 0
    return {
        "ids": segment.token_ids.tolist(),
        "loss_mask": segment.loss_mask.tolist(),
        "mask_sum": int(segment.loss_mask.sum()),
        "text": text,
        "added_have_no_logprob": bool(np.isnan(segment.logprobs[added]).all()),
    }


async def _logprobs(case: Case, at: Desk) -> Found:
    """A server that sends such logprobs: its answer is kept whole, or nothing of it is."""
    name, ids = case.input["tokenizer"], _ids(case, "sampled_ids")
    model, renderer = await at.model(name), ChatMLRenderer(vocabulary(name))
    model.dictate(Dictation(ids, case.input["logprobs"]))
    try:
        _, recorder = await act(model, renderer, max_tokens=len(ids))
    except InvalidResponse as refused:
        # What stood before stays; nothing of the answer was taken. That the rollout is dropped follows from the error.
        fault = {"action": frozenset({"raise", "drop_rollout"}), "masked_positions": _odd_places(case), "json_valid": True}
        return {**fault, "refused_as": refused.check}
    (segment,) = recorded(recorder).segments
    sampled = segment.sampled_mask == 1
    logprobs = [float(value) for value in segment.logprobs[sampled]]
    masked = [place for place, loss in enumerate(segment.loss_mask[sampled]) if not loss]
    json.dumps(logprobs, allow_nan=False)
    return {
        "action": "mask_token" if masked else "keep",
        "masked_positions": masked,
        "loss_mask": segment.loss_mask[sampled].tolist(),
        "logprobs": logprobs,
        "json_valid": True,
    }


def _odd_places(case: Case) -> list[int]:
    """Where an answer that was refused has what no logprob is: masked with all the rest."""
    return [place for place, value in enumerate(case.input["logprobs"] or ()) if not isinstance(value, int | float)]


async def _context_limit(case: Case, at: Desk) -> Found:
    max_model_len, prompt_len = int(case.input["max_model_len"]), int(case.input["prompt_len"])
    model, renderer = await at.model("toy", max_model_len=max_model_len), GivenPrompt(vocabulary("toy"))
    renderer.prompt_ids = (259,) * prompt_len
    end, recorder = await act(model, renderer, max_tokens=int(case.input["max_new_tokens"]))
    trajectory = recorded(recorder, end.stop)
    if not model.requests:
        kept = len(trajectory.segments[0].token_ids) == prompt_len
        return {
            "action": "end_rollout" if kept else "lost its ids",
            "reason": "context_overflow" if end.stop is StopReason.CONTEXT else end.stop.value,
            "is_error": False,
            "retry": False,
            "graded": True,  # it ended as trajectories end, and so goes on to EVAL; a failure would have been raised
        }
    return {"action": "generate", "max_new_tokens": model.requests[0].max_tokens, "is_error": False, "reason": end.stop.value}


async def _template_prefix(case: Case, at: Desk) -> Found:
    """A prompt and its answer as the template spells them, then a user's word: the next prompt begins with both."""
    name = case.input["tokenizer"]
    tokenizer = vocabulary(name)
    renderer = ChatMLRenderer(tokenizer, thinking=_thinking(case))
    model, recorder = await at.model(name), TrajectoryRecorder()
    first = tokenizer.encode_template(text_of(case.input, "turn1_prompt_text"))
    said = tokenizer.encode_template(text_of(case.input, "turn1_completion_text"))
    recorder.add_prompt(first)
    await say(model, renderer, recorder, said, "stop")
    answer = ChatMessage(role="tool", content=case.input["next_tool"]) if "next_tool" in case.input else None
    follows = answer or ChatMessage(role="user", content=text_of(case.input, "next_user"))
    prompt = renderer.next_prompt(recorder.ids, recorder.turn_places, [follows])
    recorder.add_prompt(prompt.ids, prompt.began)
    segments = recorded(recorder).segments
    return {
        "turn2_prompt_text": tokenizer.decode(prompt.ids),
        "turn2_prompt_ids": prompt.ids,
        "is_prefix_of_previous_plus_completion": prompt.ids[: len(first) + len(said)] == [*first, *said] and len(segments) == 1,
        "mask_of_think_block": int(segments[0].loss_mask[: len(first)].max()),
        "began": prompt.began,
    }


def _thinking(case: Case) -> Any:  # a literal of the renderer's
    return {False: "off", True: "free"}[bool(case.input.get("enable_thinking", True))]


async def _prefix_check(case: Case, _: Desk) -> Found:
    """A prompt that does not begin with what was recorded begins a segment of its own, which says why and where it forked."""
    old, new = _ids(case, "recorded_ids"), _ids(case, "next_prompt_ids")
    recorder = TrajectoryRecorder()
    recorder.add_prompt(old)
    recorder.add_prompt(new)
    segments = recorded(recorder).segments
    if len(segments) == 1:
        return {"prefix_ok": segments[0].token_ids.tolist() == new, "first_mismatch": None, "action": "keep"}
    first, second = segments
    stands = first.token_ids.tolist() == old and second.token_ids.tolist() == new
    return {"prefix_ok": False, "first_mismatch": second.fork, "action": "split_row" if stands else "changed what was recorded"}


async def _grouping(case: Case, _: Desk) -> Found:
    return {"groups": await member_counts(case.input["rollouts"])}


KINDS: Mapping[str, Kind] = {
    "roundtrip": _roundtrip,
    "decode": _decode,
    "encode_observation": _encode_observation,
    "stop_string": _stop_string,
    "flatten": _flatten,
    "logprobs": _logprobs,
    "context_limit": _context_limit,
    "template_prefix": _template_prefix,
    "prefix_check": _prefix_check,
    "grouping": _grouping,
}

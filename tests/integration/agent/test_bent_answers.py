"""An answer that was changed in one place is refused, or the change is in nothing that is believed.

What only the server can know (which number a logprob is, which word a version) cannot be told from the outside, and is not bent here.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.engines import Exchange, ModelError
from pipeline.messages import Sampling
from workers.llm import GenRequest
from workers.llm.scripted import ScriptedServer, ServerOptions
from workers.llm.sglang import find_sglang
from workers.llm.vllm import find_vllm
from workers.llm.wire import Answer, EngineFailed, Wire

PROMPT = [40, 41, 42, 43]
SAID = [50, 61, 72, 83, 94, 105]
REQUEST = GenRequest(
    request_id="job-7.1.0.0", prompt_ids=PROMPT, sampling=Sampling(), max_tokens=16, seed=3, stop=("never",), extra_args={"script": SAID}
)
NOT_THERE: Any = object()
OTHER: list[Any] = [None, True, False, "", "x", -1, 1.5, 10**12, [], {}]
KNOWN_TO_THE_SERVER_ALONE = frozenset({"logprob", "token_logprobs", "version"})
WIRES: dict[str, tuple[ServerOptions, Literal["generate", "completions"]]] = {
    "generate-0.31": (ServerOptions(wire="0.31"), "generate"),
    "generate-0.32": (ServerOptions(wire="0.32"), "generate"),
    "completions-0.32": (ServerOptions(wire="0.32"), "completions"),
    "completions-0.33": (ServerOptions(wire="0.33"), "completions"),
    "sglang-0.5.10": (ServerOptions(wire="sglang-0.5.10"), "generate"),
    "sglang": (ServerOptions(wire="sglang-0.5"), "generate"),
}


@dataclass(frozen=True)
class Heard:
    """A good answer, and the wire that it came over."""

    wire: Wire
    payload: Any  # JSON
    answer: Answer


@pytest.fixture(scope="module", params=list(WIRES))
def heard(request: pytest.FixtureRequest) -> Heard:
    options, endpoint = WIRES[request.param]

    async def listen() -> Heard:
        async with ScriptedServer(options) as server, Exchange(server.url) as http:
            wire: Wire = await (find_sglang(http, "") if options.is_sglang else find_vllm(http, "", endpoint))
            payload = await http.post(wire.path, wire.write(REQUEST, REQUEST.request_id))
        return Heard(wire, payload, wire.read(payload, REQUEST, REQUEST.request_id))

    return asyncio.run(listen())


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a JSON value, as the keys that lead there."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield (*path, key)
        yield from places(inner, (*path, key))


def bend(payload: Any, path: tuple[Any, ...], how: Any) -> Any:
    """A copy of the answer with one place changed."""
    bent = copy.deepcopy(payload)
    holder = bent
    for key in path[:-1]:
        holder = holder[key]
    match how:
        case "gone":
            del holder[path[-1]]
        case "twice" if isinstance(holder, list):
            holder.insert(path[-1], copy.deepcopy(holder[path[-1]]))
        case "swapped" if isinstance(holder, list) and len(holder) > 1:
            other = (path[-1] + 1) % len(holder)
            holder[path[-1]], holder[other] = holder[other], holder[path[-1]]
        case "next" if type(holder[path[-1]]) is int:
            holder[path[-1]] += 1
        case ("other", value):
            holder[path[-1]] = value
    return bent


def is_beyond_us(path: tuple[Any, ...], how: Any) -> bool:
    """Whether the change is another word of the server's that only it can know."""
    names = KNOWN_TO_THE_SERVER_ALONE.intersection(map(str, path))
    if path[-1] == 0 and path[-3:-2] == ("output_token_logprobs",):
        names |= {"logprob"}  # SGLang's is the first of three
    if how == "swapped":
        return "token_logprobs" in names
    return bool(names) and isinstance(how, tuple) and (how[1] == -1 if "version" not in names else how[1] == "x")


@settings(max_examples=400)
@given(st.data())
def test_what_was_changed_is_refused_or_not_believed(heard: Heard, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from([*places(heard.payload)]))
    how = data.draw(st.sampled_from(["gone", "twice", "swapped", "next", *(("other", value) for value in OTHER)]))
    if is_beyond_us(path, how):
        return
    bent = bend(heard.payload, path, how)

    try:
        read = heard.wire.read(bent, REQUEST, REQUEST.request_id)
    except (ModelError, EngineFailed):
        return

    believed, true = read, heard.answer
    assert (believed.output_ids, believed.logprobs, believed.finish) == (true.output_ids, true.logprobs, true.finish), (path, how)
    assert believed.spans == true.spans, (path, how)
    assert believed.stop_reason == true.stop_reason, (path, how)
    assert all(type(id_) is int for id_ in believed.output_ids), (path, how)


def test_the_answer_of_another_call_is_refused(heard: Heard) -> None:
    """A name that only begins like ours was taken for it."""
    for other in ("job-7.1.0.01", "job-7.1.0.0.again1", "xjob-7.1.0.0"):
        bent = copy.deepcopy(heard.payload)
        holder = bent.get("meta_info", bent)
        name = "request_id" if "request_id" in holder else "id"
        holder[name] = holder[name].replace(REQUEST.request_id, other)
        with pytest.raises(ModelError, match="request_id"):
            heard.wire.read(bent, REQUEST, REQUEST.request_id)

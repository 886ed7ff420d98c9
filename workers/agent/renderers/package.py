"""All families that the package `renderers` knows (GLM, Kimi, DeepSeek, Qwen3.5 and later, Nemotron, MiniMax, ...), as one renderer.

The package writes templates by hand, without torch or transformers. What it makes of a dialogue is not believed but checked: a next
prompt must begin with the old ids, and have a place for each message. Its own bridge is asked first, since it knows how its family closes
a turn; where it declines, changes the ids or leaves something out, the delta is taken from synthetic dialogues, much as in `written.py`.

Some families have no place for a tool's answer after a turn in which they see no call (a malformed one, say): the package leaves it out,
and here it is told as a user's words.

Closers: a thought that a turn was cut off in is closed with `</think>` where that is a token of the vocabulary; the family's end token is
the package's doing. Both are context.

Installed with `pip install "rollstream[renderers]"`; loaded when a job first asks for it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from pipeline.errors import InvalidRequest
from pipeline.messages import ChatMessage, Json
from workers.agent.call_formats import CallError, Item, Reader, ToolCall
from workers.agent.renderers.base import THINKING_DROPPED, Prompt, Thinking, first_difference, tool_schema
from workers.agent.renderers.errors import RendererUnavailable
from workers.agent.renderers.package_tokenizer import PackageTokenizer
from workers.agent.renderers.thoughts import ThoughtCutter, ends_in_thought
from workers.agent.tool_calls import Format, ParsedTurn, parse_turn
from workers.llm import chatml
from workers.llm.images import PlacedImage
from workers.llm.tokenizer import Tokenizer

NOT_FAMILIES = frozenset({"auto", "default", "custom"})
FETCH_FILES = frozenset({"gpt-oss"})
TAIL = 16
"""Ids at the end of a prompt that are looked at for an opened thought."""
DOES_NOT_RENDER = (ValueError, KeyError, TypeError, AssertionError, IndexError, AttributeError)
"""What the package raises at a dialogue that its templates do not take."""
DOES_NOT_READ = (*DOES_NOT_RENDER, RecursionError)
"""What it raises at a turn that its readers do not take, such as numbers and nesting that Python's JSON refuses."""
PROBE = "zqx{}jv"
"""A word that no template has, and nobody says."""
PROBED = 512
"""Ids a message at the end of a prompt that a probe is looked for in: more than any template writes around one."""
_CALL = {"id": "call_1", "type": "function", "function": {"name": "tool", "arguments": {}}}
_FAULTS = {
    "invalid_json": "the arguments are no JSON",
    "missing_name": "the call names no tool",
    "malformed_structure": "the call is not in the form of the instructions",
}


def load_package() -> ModuleType:
    """The package.

    Raises:
        RendererUnavailable: it is not installed here.
    """
    try:
        import renderers
    except ImportError as error:
        raise RendererUnavailable("the package 'renderers'", f"{error}; install rollstream[renderers] on this worker") from error
    package: ModuleType = renderers
    return package


class PackageRenderer:
    """One family of the package.

    Args:
        tokenizer: must have the family's tokens.
        name: the package's word for the family, such as `glm-4.5`.
        thinking: `off` sets the family's switch, where it has one; `free` leaves it to the family.
        keep_thinking: as for ChatML.
        tool_format: how the model writes calls; None = as the package reads them.
        options: further settings of the family, by the package's names.

    Raises:
        RendererUnavailable: the package is not installed.
        InvalidRequest: no such family, no such option, or another vocabulary.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        name: str,
        *,
        thinking: Thinking = "free",
        keep_thinking: bool = True,
        tool_format: Format | None = None,
        options: Json | None = None,
    ) -> None:
        package = load_package()
        self.tokenizer = tokenizer
        self.tool_format = tool_format
        self.keeps_thinking = keep_thinking
        self._package_tokenizer = PackageTokenizer(tokenizer)
        try:
            default = package.config_from_name(name)
            if default is None or name in NOT_FAMILIES:
                raise ValueError(f"expected the name of one family, got {name!r}")
            if name in FETCH_FILES:
                raise ValueError("the package would fetch its vocabulary, and nothing is fetched here")
            fields = {"name": name, "thinking_retention": "all", **(options or {})}
            if thinking == "open":
                raise ValueError("whether the template opens a thought is the family's to say: leave thinking 'free'")
            if thinking == "off":
                fields.update(_no_thinking(type(default).model_fields, name))
            config = type(default).model_validate(fields)
            # Any: the package's classes share no base, only a protocol of its own.
            self._renderer: Any = package.create_renderer(self._package_tokenizer, config)
            self.stop_token_ids = tuple(int(id_) for id_ in self._renderer.get_stop_token_ids())
        except (ValueError, AssertionError, TypeError, KeyError) as error:
            raise InvalidRequest(f"no renderer {name!r} for this model: {_in_a_line(error)}", field="chat.renderer") from error
        switches = {field: getattr(config, field) for field in type(config).template_field_names()}
        self.template_kwargs: Json = {field: value for field, value in switches.items() if value is not None}
        self._markup = {text: id_ for text, id_ in tokenizer.specials.items() if text in (chatml.THINK_OPEN, chatml.THINK_CLOSE)}
        self._thoughts: ThoughtCutter | None = None
        if not keep_thinking:
            try:
                self._thoughts = ThoughtCutter(tokenizer, self._opening(), self.stop_token_ids)
            except ValueError as error:
                raise InvalidRequest(str(error), field="chat.keep_thinking") from error
        spelt = json.dumps([package.__version__, name, config.model_dump(mode="json"), keep_thinking, tool_format], sort_keys=True)
        self.fingerprint = f"{name}-" + hashlib.sha256(spelt.encode()).hexdigest()[:16]

    # ---- prompts

    def first_prompt(self, messages: Sequence[ChatMessage], tools: Sequence[Json]) -> Prompt:
        """The prompt of the first turn."""
        if not messages:
            raise ValueError("expected at least one message")
        shown = [self._guarded(dict(tool)) for tool in tools] or None
        return self._prompt(self._render([self._message(message) for message in messages], shown, generate=True))

    def next_prompt(
        self, ids: Sequence[int], turns: Sequence[tuple[int, int]], messages: Sequence[ChatMessage], images: Sequence[PlacedImage] = ()
    ) -> Prompt:
        """The old ids, closed if need be, and the new messages. Images have no place in the families of the package here, and none come."""
        old, began = list(ids), ""
        spoken = len(old) - turns[-1][0] if turns and turns[-1][1] == len(old) else 0
        if self._thoughts is not None and any(message.role == "user" for message in messages):
            without, left, _ = self._thoughts.cut(old, turns)
            if len(without) < len(old):
                spoken = min(spoken, left)
                old, began = without, THINKING_DROPPED
        if not began:
            closers = self._thought_closers(old, spoken)
            old += closers
            spoken += len(closers)
        if any(message.role == "tool" for message in messages):
            as_user = [ChatMessage(role="user", content=message.content) for message in messages]
            extended = self._extended(old, spoken, messages) or self._extended(old, spoken, as_user)
        else:
            extended = self._extended(old, spoken, messages)
        if extended is None:
            family = type(self._renderer).__name__
            raise InvalidRequest(f"{family} cannot extend what was sampled by a message of role {messages[0].role!r}", field="chat")
        return self._prompt(extended, began)

    def _extended(self, old: list[int], spoken: int, messages: Sequence[ChatMessage]) -> list[int] | None:
        """The old ids and the messages; None where the family has no place for these."""
        shown = [self._message(message) for message in messages]
        probes = [{**message, "content": PROBE.format(number)} for number, message in enumerate(shown)]
        found = self._bridged(old, spoken, shown)
        if found is not None and first_difference(old, found) is None and self._carries(self._bridged(old, spoken, probes), probes):
            return found
        delta = self._delta(old, shown)
        return old + delta if delta is not None and self._carries(self._delta(old, probes), probes) else None

    def _bridged(self, old: list[int], spoken: int, new: list[dict[str, Any]]) -> list[int] | None:
        """What the package itself would go on with; None where it declines."""
        try:
            bridged = self._renderer.bridge_to_next_turn(old[: len(old) - spoken], old[len(old) - spoken :], new)
        except DOES_NOT_RENDER:
            return None
        return None if bridged is None else [int(id_) for id_ in bridged.token_ids]

    def _carries(self, ids: Sequence[int] | None, probes: Sequence[Mapping[str, Any]]) -> bool:
        """Whether there is a place for messages, from what becomes of probes in their place: words of a message may be the template's."""
        text = self.tokenizer.decode(ids[-(PROBED * len(probes)) :]) if ids is not None else ""
        return all(probe["content"] in text for probe in probes)

    def _prompt(self, ids: list[int], began: str = "") -> Prompt:
        tail = self.tokenizer.decode(ids[-TAIL:]).rstrip()
        in_thought = True if tail.endswith(chatml.THINK_OPEN) else False if tail.endswith(chatml.THINK_CLOSE) else None
        return Prompt(ids, in_thought, began)

    def _render(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, *, generate: bool) -> list[int]:
        try:
            return [int(id_) for id_ in self._renderer.render_ids(messages, tools=tools, add_generation_prompt=generate)]
        except DOES_NOT_RENDER as error:
            raise ValueError(f"{type(self._renderer).__name__} does not render this dialogue: {error!r}") from error

    def _delta(self, old: Sequence[int], new: list[dict[str, Any]]) -> list[int] | None:
        """What follows an answer when `new` comes next, from two synthetic dialogues that differ in the answer alone: they end alike from
        where it ends. With a call in it before answers of tools, as some templates demand one. None where no token ends an answer, or the
        template does not take such a dialogue."""
        calls = [_CALL] * sum(1 for message in new if message["role"] == "tool")
        rendered = []
        for text in (".", "?"):
            answer: dict[str, Any] = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
            try:
                rendered.append(self._render([{"role": "user", "content": "."}, answer, *new], None, generate=True))
            except ValueError:
                return None
        one, other = rendered
        alike = next((i for i, (a, b) in enumerate(zip(one[::-1], other[::-1], strict=False)) if a != b), 0)
        rest = one[len(one) - alike :]
        end = next((place for place, id_ in enumerate(rest) if id_ in self.stop_token_ids), None)
        if end is None:
            return None
        # Some families end a turn with the first token of the next message: it is there already when the model wrote that one.
        return rest[end + 1 :] if old and old[-1] == rest[end] else rest[end:]

    def _thought_closers(self, old: Sequence[int], spoken: int) -> list[int]:
        if chatml.THINK_CLOSE not in self._markup or (old and old[-1] in self.stop_token_ids):
            return []
        prompt = self._prompt(list(old[: len(old) - spoken]))
        text = self.tokenizer.decode(old[len(old) - spoken :])
        opened = prompt.in_thought is True
        return self.tokenizer.encode_template(f"\n{chatml.THINK_CLOSE}\n\n") if ends_in_thought(text, opened=opened) else []

    def _opening(self) -> list[int]:
        """What the family's prompts end with when they open a thought."""
        ids = self._render([{"role": "user", "content": "."}], None, generate=True)
        place = len(ids) - 1 - ids[::-1].index(self._markup[chatml.THINK_OPEN]) if self._markup.get(chatml.THINK_OPEN) in ids else len(ids)
        return ids[place:] if self._prompt(ids).in_thought is True else []

    def _message(self, message: ChatMessage) -> dict[str, Any]:
        allowed = self._markup if message.role == "assistant" else None
        shown: dict[str, Any] = {"role": message.role, "content": self._package_tokenizer.guarded(message.content, allowed=allowed)}
        if message.role == "tool":
            shown["tool_call_id"] = _CALL["id"]
        return shown

    def _guarded(self, value: Any) -> Any:
        """A tool's schema, in which no text means a token: descriptions may be of whoever wrote the task."""
        if isinstance(value, str):
            return self._package_tokenizer.guarded(value)
        if isinstance(value, Mapping):
            return {self._guarded(key): self._guarded(entry) for key, entry in value.items()}
        return [self._guarded(entry) for entry in value] if isinstance(value, list | tuple) else value

    # ---- turns

    def turn_text(self, ids: Sequence[int], stop: int | str | None = None) -> str:
        """Text of a sampled turn."""
        text = self.tokenizer.decode(ids[:-1] if ids and ids[-1] in self.stop_token_ids else ids)
        return text[: text.index(stop)] if isinstance(stop, str) and stop in text else text

    def parse(self, ids: Sequence[int], text: str, *, finish: str, tools: Mapping[str, Json] | None, in_thought: bool | None) -> ParsedTurn:
        """The turn as the package reads it, or as its text reads where the job names a format."""
        if self.tool_format is not None:
            return parse_turn(text, finish=finish, tools=tools, format=self.tool_format, in_thought=in_thought)
        shown = [tool_schema(name, parameters) for name, parameters in (tools or {}).items()]
        prompt = self.tokenizer.encode_template(chatml.THINK_OPEN) if in_thought else None
        try:
            found = self._renderer.parse_response(list(ids), tools=shown or None, prompt_ids=prompt)
        except DOES_NOT_READ as error:
            why = f"nothing of this turn was run, a call in it cannot be read: {str(error) or type(error).__name__:.200}"
            return ParsedTurn(text.strip(), "", [CallError("malformed", why)], in_thought=False)
        items = [_item(call, finish, tools) for call in found.tool_calls if not self._is_thought(call.token_span, ids)]
        return ParsedTurn(found.content.strip(), (found.reasoning_content or "").strip(), items, in_thought=not found.reasoning_complete)

    def _is_thought(self, span: tuple[int, int] | None, ids: Sequence[int]) -> bool:
        """Whether a call stands before the tag that ends the thoughts. One in a thought that is not closed is the family's to judge: in
        some of them a call ends the thought."""
        return span is not None and self._markup.get(chatml.THINK_CLOSE) in ids[span[1] :]


class _Checked(Reader):
    """Names and arguments that another reader found, held to the rules of ours."""

    marks = ()

    def read(self, start: int) -> tuple[list[Item], int]:
        """Nothing: the package has read it."""
        return [], start


def _item(call: Any, finish: str, tools: Mapping[str, Json] | None) -> ToolCall | CallError:
    reader = _Checked(str(call.raw), tools, truncated=finish != "stop")
    status = str(call.status)
    if status == "unclosed_block":
        return reader.unended("the call is not closed")
    if status in _FAULTS:
        return CallError("malformed", f"{_FAULTS[status]}: {str(call.raw)[:80]!r}")
    return reader.call(call.name, call.arguments)


def _in_a_line(error: Exception) -> str:
    """What the package complains of; its settings are pydantic models, whose errors fill a page."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return " ".join(str(error).split())


def _no_thinking(fields: Mapping[str, object], name: str) -> dict[str, object]:
    for switch in ("enable_thinking", "thinking"):
        if switch in fields:
            return {switch: False}
    raise ValueError(f"the family {name!r} has no switch for thinking: leave it 'free'")

"""Acts: what the scripted model says and calls on a problem, turn by turn, written down beforehand.

    {"question": "...", "answer": "...", "right": [ACT, ...], "wrong": [[ACT, ...], ...]}
    ACT: {"say": "...", "calls": [{"name": "bash", "arguments": {...}}, ...]}

A script is a list of acts, one a turn; the last one ends the trajectory, by an answer without a call or by a call that does (`finish`).
The policy remembers nothing: which script it plays, and how far it is, it reads in the dialogue (`place_in`). So scripts of one problem
should part early, and two acts in a row should not be the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call."""

    name: str
    arguments: Mapping[str, object]

    @property
    def body(self) -> str:
        """As the model writes it."""
        return json.dumps({"name": self.name, "arguments": self.arguments})


@dataclass(frozen=True, slots=True)
class Act:
    """One turn, without its thought."""

    say: str = ""
    calls: Sequence[ScriptedCall] = field(default=())

    def was_said_in(self, turn: str) -> bool:
        """Whether a turn of the dialogue is this one: its calls, or without any its words."""
        if self.calls:
            return all(call.body in turn for call in self.calls)
        return self.say.strip() in turn


Script = Sequence[Act]


def place_in(script: Script, said: Sequence[str]) -> int:
    """How many acts of a script the turns of a dialogue are. Turns that are none of it (a call that was miswritten) count nothing."""
    place = 0
    for turn in said:
        if place < len(script) and script[place].was_said_in(turn):
            place += 1
    return place


def playable(script: Script, tools: Mapping[str, object]) -> Script:
    """The acts that call no tool which is not on offer."""
    return [act for act in script if all(call.name in tools for call in act.calls)]


def read_script(value: object) -> Script:
    """A script from its JSON.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, list) or not value:
        raise ValueError(f"expected a list of acts, got {value!r:.80}")
    return tuple(_act(each) for each in value)


def script_as_json(script: Script) -> list[dict[str, object]]:
    """What `read_script` reads."""
    return [{"say": act.say, "calls": [{"name": call.name, "arguments": dict(call.arguments)} for call in act.calls]} for act in script]


def _act(value: object) -> Act:
    match value:
        case {"say": str(say), **rest} if not rest:
            return Act(say)
        case {"say": str(say), "calls": list(calls), **rest} if not rest:
            return Act(say, tuple(_call(each) for each in calls))
        case _:
            raise ValueError(f"expected an act with `say` and `calls`, got {value!r:.80}")


def _call(value: object) -> ScriptedCall:
    match value:
        case {"name": str(name), "arguments": dict(arguments)}:
            return ScriptedCall(name, arguments)
        case _:
            raise ValueError(f"expected a call with `name` and `arguments`, got {value!r:.80}")

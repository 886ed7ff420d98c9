"""The agent: turns against a model, tools between them, every token on record.

run_agent, AgentEnd, AgentSettings, RetryPolicy   the loop (`loop.py`)
World, WorldReply, WorldOverran                   what answers turns in place of tools (`world.py`)
TrajectoryRecorder, TurnDelta, SegmentDelta       the record and its journal (`trajectory.py`)
Renderer, renderer_for, ChatMLRenderer, Prompt    dialogues as ids (package `renderers`)
TemplateChecks, ServersSeen, TemplateMismatch     ours against the server's template (`template_check.py`, `canonical_dialogues.py`)
parse_turn, ToolCall, CallError                   calls in what the model wrote (`tool_calls.py`, `call_formats/`)
plan_call, ActiveTime, StuckDetector              what ends a trajectory (`limits.py`)
cut_observation, call_seed
"""

from workers.agent.call_formats import CallError, ToolCall
from workers.agent.invariants import broken_promises
from workers.agent.limits import ActiveTime, Budget, StuckDetector, plan_call
from workers.agent.loop import AgentEnd, AgentSettings, RetryPolicy, run_agent
from workers.agent.observations import cut_observation
from workers.agent.renderers import (
    ChatMLRenderer,
    Llama3Renderer,
    PackageRenderer,
    Prompt,
    Renderer,
    RendererUnavailable,
    first_difference,
    renderer_for,
)
from workers.agent.seeds import call_seed
from workers.agent.template_check import Difference, ServersSeen, TemplateChecks, TemplateMismatch, Verdict, compare
from workers.agent.tool_calls import ParsedTurn, parse_turn
from workers.agent.trajectory import SegmentDelta, TrajectoryRecorder, TurnDelta
from workers.agent.world import World, WorldOverran, WorldReply

__all__ = [
    "ActiveTime",
    "AgentEnd",
    "AgentSettings",
    "Budget",
    "CallError",
    "ChatMLRenderer",
    "Difference",
    "Llama3Renderer",
    "PackageRenderer",
    "ParsedTurn",
    "Prompt",
    "Renderer",
    "RendererUnavailable",
    "RetryPolicy",
    "SegmentDelta",
    "ServersSeen",
    "StuckDetector",
    "TemplateChecks",
    "TemplateMismatch",
    "ToolCall",
    "TrajectoryRecorder",
    "TurnDelta",
    "Verdict",
    "World",
    "WorldOverran",
    "WorldReply",
    "broken_promises",
    "call_seed",
    "compare",
    "cut_observation",
    "first_difference",
    "parse_turn",
    "plan_call",
    "renderer_for",
    "run_agent",
]

"""A whole rollout of `stem`: the model searches, reads what was found, hands its answer in, and is judged."""

from __future__ import annotations

import json
from pathlib import Path

from ops.tasks import Foreground
from ops.tasks.attempt import attempt
from tests.judged import spec_of
from tests.secret_words import a_secret
from workers.agent.trajectory import TurnDelta
from workers.handlers.registry import Handlers
from workers.handlers.stem.handler import StemHandler
from workers.llm.scripted import InProcessBackend
from workers.tools.offline_search import Document, Index, OfflineSearch
from workers.tools.search import SearchSettings

KEY = a_secret("search")
ROW = {"id": "q1", "question": "Which enzyme unwinds DNA?", "answer": "helicase", "also": ["DNA helicase"]}


def calling(name: str, **arguments: object) -> str:
    """A turn that calls a tool."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


async def noted(delta: TurnDelta) -> None:
    """Keeps no journal."""


async def test_a_model_searches_and_hands_in_what_it_found(tmp_path: Path) -> None:
    """The key stands in no message, and where the search goes is not the job's."""
    (tmp_path / "key").write_text(KEY)
    lines = [calling("web_search", query="enzyme that unwinds DNA"), calling("finish", answer="DNA helicase")]
    spec = spec_of("stem", ROW, {"tools": ["web_search", "finish"]})

    async with OfflineSearch(Index([Document(title="Helicases", url="h.md", text="A helicase unwinds DNA.")]), key=KEY) as server:
        search = SearchSettings(url=server.url, key_file=tmp_path / "key")
        async with Handlers({"stem": lambda: StemHandler(search)}) as handlers:
            found = await attempt(Foreground(handlers), spec, InProcessBackend(lines), journal=noted)

    told = [message.content for message in found.trajectory.messages if message.role == "tool"]
    assert told[0] == "1. Helicases\nh.md\nA helicase unwinds DNA."
    assert (found.trajectory.answer, found.judged.grade.reward) == ("DNA helicase", 1.0)
    assert not any(KEY in message.content or server_named(message.content) for message in found.trajectory.messages)


def server_named(text: str) -> bool:
    """Whether a message tells where the worker's search service is."""
    return "127.0.0.1" in text


async def test_a_service_that_is_gone_costs_no_job() -> None:
    lines = [calling("web_search", query="enzyme that unwinds DNA"), r"I know it: \boxed{helicase}"]
    spec = spec_of("stem", ROW, {"tools": ["web_search"]})
    search = SearchSettings(url="http://127.0.0.1:1", tries=1)

    async with Handlers({"stem": lambda: StemHandler(search)}) as handlers:
        found = await attempt(Foreground(handlers), spec, InProcessBackend(lines), journal=noted)

    assert any("[The search failed: the search service cannot be reached.]" in message.content for message in found.trajectory.messages)
    assert found.judged.grade.reward == 1.0

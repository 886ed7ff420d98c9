"""The tool `web_search`: the model asks, this process searches.

The search runs in the worker and not in the sandbox, which may have no network and must not have the key. Where it goes is the worker's
setting. A search that failed is told to the model, which goes on without: a service that is down for an hour costs no job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from pipeline.messages import Json
from workers.tools.base import ToolResult
from workers.tools.search.client import MAX_QUERY_CHARS, Found, SearchClient
from workers.tools.search.errors import SearchError

NOTHING = "No results."


class WebSearchTool:
    """Searches the web. What is found is other people's text, for the model to judge."""

    name = "web_search"
    description = "Search the web. Returns titles, addresses and passages of the best results. Ask for one thing at a time, in a few words."
    parameters: ClassVar[Json] = {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": f"What to look for, at most {MAX_QUERY_CHARS} characters."},
            "max_results": {"type": "integer", "description": "How many results at most; default: as many as there may be."},
        },
        "required": ["query"],
    }

    def __init__(self, client: SearchClient) -> None:
        self._client = client

    async def __call__(self, arguments: Mapping[str, object], *, timeout_s: float) -> ToolResult:
        """Searches; a failed search is an answer too."""
        query = " ".join(str(arguments["query"]).split())
        most = arguments.get("max_results")
        if not query:
            return ToolResult(text="[The query is empty.]", is_error=True, details={"search": "no_query"})
        if len(query) > MAX_QUERY_CHARS:
            text = f"[The query has {len(query)} characters; at most {MAX_QUERY_CHARS} are taken.]"
            return ToolResult(text=text, is_error=True, details={"search": "long_query"})
        if isinstance(most, int) and most < 1:
            return ToolResult(text="[max_results must be at least 1.]", is_error=True, details={"search": "bad_max_results"})
        try:
            found = await self._client.search(query, max_results=most if isinstance(most, int) else None, timeout_s=timeout_s)
        except SearchError as error:
            return ToolResult(text=f"[The search failed: {error}.]", is_error=True, details={"search": type(error).__name__})
        return ToolResult(text=shown(found), details={"search": "ok", "hits": len(found)})


def shown(found: Sequence[Found]) -> str:
    """The hits as the model reads them."""
    return "\n\n".join(f"{place}. {hit.title}\n{hit.url}\n{hit.content}" for place, hit in enumerate(found, start=1)) or NOTHING

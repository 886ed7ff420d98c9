"""The web search as a model meets it, over real HTTP on loopback: hits, bounds, and each way in which a service can fail."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import orjson
import pytest
from aiohttp import web

from tests.secret_words import a_secret
from workers.tools import ToolSet
from workers.tools.base import ToolResult
from workers.tools.offline_search import Document, Index, OfflineSearch, read_folder
from workers.tools.offline_search.index import PASSAGE_CHARS
from workers.tools.search import SearchClient, SearchSettings
from workers.tools.web_search import WebSearchTool

KEY = a_secret("search")
Reply = Callable[[], web.StreamResponse]


def documents() -> list[Document]:
    return [
        Document(title="Mitochondria", url="cell/mito.md", text="Mitochondria make most of the cell's ATP. " + "The cell is small. " * 200),
        Document(title="Chloroplasts", url="cell/chloro.md", text="Chloroplasts capture light. Mitochondria are elsewhere."),
        Document(title="Long", url="long.md", text="word " * 2_000 + "the needle lies here " + "word " * 2_000),
    ]


@pytest.fixture
async def offline() -> AsyncIterator[OfflineSearch]:
    async with OfflineSearch(Index(documents()), key=KEY) as server:
        yield server


class Service:
    """A search service that says what a test wants, one reply after the other, and the last again and again."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.requests: list[dict[str, object]] = []
        self.keys: list[str] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(orjson.loads(await request.read()))
        self.keys.append(request.headers.get("Authorization", ""))
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return reply()


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    service = Service()
    app = web.Application()
    app.router.add_post("/search", service.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield service
    await runner.cleanup()


def says(body: object, status: int = 200, **headers: str) -> Reply:
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    return lambda: web.Response(body=content, status=status, headers=headers, content_type="application/json")


def hits(count: int, content: str = "text") -> Reply:
    return says({"results": [{"title": f"t{place}", "url": f"u{place}", "content": content} for place in range(count)]})


async def searched(
    tmp_path: Path, url: str, query: str = "mitochondria", *, timeout_s: float = 20.0, key: str = KEY, **settings: object
) -> ToolResult:
    (tmp_path / "key").write_text(f"{key}\n")
    chosen = SearchSettings.model_validate({"url": url, "key_file": tmp_path / "key", **settings})
    async with SearchClient(chosen, first_pause_s=0.01) as client:
        return await WebSearchTool(client)({"query": query}, timeout_s=timeout_s)


# ---- what is found


async def test_the_model_reads_titles_addresses_and_passages(offline: OfflineSearch, tmp_path: Path) -> None:
    result = await searched(tmp_path, offline.url, "which organelle makes ATP: mitochondria?")

    first, second = result.text.split("\n\n")
    assert first.startswith("1. Mitochondria\ncell/mito.md\nMitochondria make most of the cell's ATP.")
    assert second.startswith("2. Chloroplasts\ncell/chloro.md\n")
    assert (result.is_error, result.details) == (False, {"search": "ok", "hits": 2})


async def test_nothing_found_is_an_answer_too(offline: OfflineSearch, tmp_path: Path) -> None:
    result = await searched(tmp_path, offline.url, "zebra")

    assert (result.text, result.is_error) == ("No results.", False)


async def test_the_passage_is_where_the_words_stand(offline: OfflineSearch, tmp_path: Path) -> None:
    result = await searched(tmp_path, offline.url, "needle")

    assert "the needle lies here" in result.text
    assert len(result.text) < PASSAGE_CHARS + 100


async def test_hits_are_bounded_in_number_and_length(service: Service, tmp_path: Path) -> None:
    service.replies = [hits(50, "x" * 20_000)]

    result = await searched(tmp_path, service.url, max_results=3, max_hit_chars=100)

    assert result.text.count("u") == 3
    assert len(result.text) < 400
    assert service.requests == [{"query": "mitochondria", "max_results": 3, "search_depth": "basic"}]
    assert service.keys == [f"Bearer {KEY}"]


async def test_a_node_behind_a_proxy_searches_through_it(service: Service, tmp_path: Path) -> None:
    """The stand-in plays the proxy: what is asked for is at no address that could be reached."""
    service.replies = [hits(1)]

    result = await searched(tmp_path, "http://search.invalid", proxy=service.url)

    assert (result.text, len(service.requests)) == ("1. t0\nu0\ntext", 1)


async def test_what_a_page_says_can_be_told_to_a_model(service: Service, tmp_path: Path) -> None:
    service.replies = [says(b'{"results": [{"title": "a\\u0000b\\nc", "url": null, "content": "x\\u001b[31my"}, 7]}')]

    result = await searched(tmp_path, service.url)

    assert result.text == "1. a b c\n\nx [31my"


# ---- what fails


@pytest.mark.parametrize(
    ("reply", "said", "kind", "tries"),
    [
        (says({"detail": {"error": f"bad key {KEY}"}}, 401), "refused it (status 401)", "SearchRefused", 1),
        (says({"detail": "query too long"}, 400), 'refused it (status 400: {"detail":"query too long"})', "SearchRefused", 1),
        (says({}, 302, Location="http://127.0.0.1:1/"), "refused it (status 302", "SearchRefused", 1),
        (says({}, 429), "is busy (status 429)", "SearchBusy", 3),
        (says({}, 432), "is busy (status 432)", "SearchBusy", 3),
        (says({}, 500), "broke (status 500)", "SearchUnavailable", 3),
        (says(b"<html>"), "no JSON", "SearchUnreadable", 1),
        (says([1]), "without results", "SearchUnreadable", 1),
        (says(b" " * (3 << 20)), "too long", "SearchUnreadable", 1),
    ],
)
async def test_a_failed_search_is_told_to_the_model(
    service: Service, tmp_path: Path, reply: Reply, said: str, kind: str, tries: int
) -> None:
    service.replies = [reply]

    result = await searched(tmp_path, service.url)

    assert said in result.text
    assert (result.is_error, result.details) == (True, {"search": kind})
    assert len(service.requests) == tries
    assert KEY not in result.text


async def test_a_busy_service_is_asked_again(service: Service, tmp_path: Path) -> None:
    service.replies = [says({}, 429), says({}, 503, **{"Retry-After": "0"}), hits(1)]

    result = await searched(tmp_path, service.url)

    assert result.text == "1. t0\nu0\ntext"


async def test_a_pause_longer_than_the_call_is_not_waited_for(service: Service, tmp_path: Path) -> None:
    service.replies = [says({}, 429, **{"Retry-After": "3600"})]

    async with asyncio.timeout(10):
        result = await searched(tmp_path, service.url, timeout_s=30)

    assert (result.details, len(service.requests)) == ({"search": "SearchBusy"}, 1)


async def test_a_service_that_never_answers_costs_the_time_of_the_call(tmp_path: Path) -> None:
    over = asyncio.Event()

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        result = await searched(tmp_path, f"http://127.0.0.1:{port}", timeout_s=0.2)
        over.set()

    assert result.text == "[The search failed: the search service gave no answer within 0.2 s.]"


async def test_nobody_there_is_said_without_the_address(tmp_path: Path) -> None:
    result = await searched(tmp_path, "http://127.0.0.1:1", tries=1)

    assert result.text == "[The search failed: the search service cannot be reached.]"


async def test_a_wrong_key_is_refused(offline: OfflineSearch, tmp_path: Path) -> None:
    result = await searched(tmp_path, offline.url, key="guessed")

    assert "refused it (status 401)" in result.text


@pytest.mark.parametrize(("query", "kind"), [(" \n ", "no_query"), ("x" * 401, "long_query")])
async def test_a_query_that_is_none_asks_nobody(service: Service, tmp_path: Path, query: str, kind: str) -> None:
    result = await searched(tmp_path, service.url, query)

    assert (result.is_error, result.details, service.requests) == (True, {"search": kind}, [])


def test_the_tool_says_what_it_takes() -> None:
    tools = ToolSet([WebSearchTool(SearchClient(SearchSettings(url="https://search.example")))])

    assert tools.complaint("web_search", {}) == "argument 'query' is missing"
    assert "must be of type integer" in tools.complaint("web_search", {"query": "q", "max_results": "3"})


@pytest.mark.parametrize(
    "url", ["search.example", "ftp://search.example", "https://user:word@search.example", "https://search.example/?q=1"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="expected http://HOST or https://HOST"):
        SearchSettings(url=url)


# ---- the folder, and the process that serves it


def test_a_folder_is_read_by_its_text_files(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.md").write_text("\n# On Ions\nIons have charge.")
    (tmp_path / "b.txt").write_text("")
    (tmp_path / "c.pdf").write_text("not read")

    found = read_folder(tmp_path)

    assert [(document.title, document.url) for document in found] == [("b", "b.txt"), ("On Ions", "deep/a.md")]
    with pytest.raises(ValueError, match="found 0"):
        read_folder(tmp_path / "none")


def test_rare_words_count_more_and_ties_go_by_name() -> None:
    texts = {"a": "ion common", "b": "common common", "c": "common", "d": "common"}
    index = Index(Document(title=name, url=name, text=text) for name, text in texts.items())

    assert [document.url for document, _, _ in index.search("ion common", 9)] == ["a", "b", "c", "d"]


@pytest.mark.slow
async def test_a_process_serves_a_folder_until_it_is_told_to_end(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# Osmosis\nWater moves through a membrane.")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "workers.tools.offline_search", str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().strip()

    result = await searched(tmp_path, url, "membrane")
    process.send_signal(signal.SIGTERM)

    assert result.text == "1. Osmosis\na.md\n# Osmosis\nWater moves through a membrane."
    assert await process.wait() == 0

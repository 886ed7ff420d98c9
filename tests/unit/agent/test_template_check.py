"""The check at start: what is compared, what a difference does, and that many jobs at once compare once."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from pipeline.engines.errors import Refused, Retryable
from pipeline.errors import InvalidRequest
from pipeline.messages import ChatSettings
from tests.unit.agent.families import LLAMA3, definition, tokenizer_with
from workers.agent.canonical_dialogues import DIALOGUES, NAMES
from workers.agent.renderers import ChatMLRenderer, Llama3Renderer, PackageRenderer, Renderer, renderer_for
from workers.agent.template_check import GOOD_FOR_S, ServersSeen, TemplateChecks, TemplateMismatch, Verdict, compare
from workers.llm import HttpBackend, connect_backend
from workers.llm.scripted import ScriptedServer, ServerOptions
from workers.llm.scripted.chat_template import QWEN_SYSTEM, TemplateName
from workers.llm.scripted.in_process import InProcessBackend
from workers.llm.tokenizer import Tokenizer, load

WITH_THOUGHT = "two user turns after a thought"


async def verdict_of(renderer: Renderer, template: TemplateName | None, tokenizer: Tokenizer | None = None) -> Verdict:
    """What the comparison with a scripted server says."""
    options = ServerOptions(chat_template=template)
    async with ScriptedServer(options, tokenizer=tokenizer or renderer.tokenizer) as server, connect_backend(server.url) as client:
        return await compare(renderer, client)


def differing(verdict: Verdict) -> list[str]:
    return [difference.dialogue for difference in verdict.differences]


@pytest.mark.parametrize(
    ("renderer", "template"),
    [
        (ChatMLRenderer(load()), "chatml"),
        (ChatMLRenderer(load(), thinking="off"), "chatml"),
        (ChatMLRenderer(load(), keep_thinking=False), "qwen3"),
        (ChatMLRenderer(load(), default_system=QWEN_SYSTEM), "qwen2.5"),
        (Llama3Renderer(tokenizer_with(*LLAMA3), date_string="01 Jan 2030"), "llama3"),
        (Llama3Renderer(tokenizer_with(*LLAMA3), tools_in_user_message=False), "llama3"),
    ],
)
async def test_a_renderer_of_the_server_s_family_writes_the_same(renderer: Renderer, template: TemplateName) -> None:
    assert await verdict_of(renderer, template) == Verdict()


async def test_thoughts_that_the_job_keeps_and_the_template_drops_are_no_difference_and_are_told() -> None:
    kept = await verdict_of(ChatMLRenderer(load()), "qwen3")
    dropped_here_alone = await verdict_of(ChatMLRenderer(load(), keep_thinking=False), "chatml")

    assert kept == Verdict(drops_thoughts=True)
    assert kept.in_a_word == "same; thoughts kept that the server's template drops"
    assert differing(dropped_here_alone) == [WITH_THOUGHT]


async def test_a_template_of_another_family_differs_everywhere() -> None:
    tokenizer = tokenizer_with(*LLAMA3)

    assert differing(await verdict_of(ChatMLRenderer(tokenizer), "llama3")) == list(NAMES)


async def test_only_what_depends_on_a_setting_differs_when_it_is_wrong() -> None:
    no_system = await verdict_of(ChatMLRenderer(load()), "qwen2.5")
    thinking = await verdict_of(ChatMLRenderer(load(), thinking="open"), "chatml")

    assert differing(no_system) == [name for name in NAMES if name in ("user", "tools") or "thought" in name]
    assert differing(thinking) == list(NAMES)


async def test_another_vocabulary_is_found_though_it_writes_the_same_text() -> None:
    """Ids are compared, not texts: a tokenizer that cuts words otherwise would train on tokens that the server never saw."""
    parsed = json.loads(definition())
    parsed["model"]["merges"] = [merge for merge in parsed["model"]["merges"] if "".join(merge) != "us"]

    found = await verdict_of(ChatMLRenderer(load()), "chatml", Tokenizer(json.dumps(parsed).encode()))

    assert differing(found) == list(NAMES)
    assert found.differences[0].ours[:8] == found.differences[0].theirs[:8] == "user\nWha"


class OfALargerVocabulary(InProcessBackend):
    """A server whose model has more tokens than the job's tokenizer."""

    async def render_chat(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], **kwargs: Any) -> list[int]:
        """Some ids."""
        return [151_644, 872, 198]


async def test_a_job_without_its_model_s_tokenizer_is_told_so() -> None:
    """The default tokenizer is that of the scripted server: with a real model it is what people forget first."""
    found = await compare(ChatMLRenderer(load()), OfALargerVocabulary())

    assert found.differences[0].theirs == "(id 151,644, which the tokenizer of 1,740 ids does not have: it is another model's)"


async def test_a_difference_names_the_dialogue_the_place_and_both_texts() -> None:
    verdict = await verdict_of(ChatMLRenderer(load()), "qwen2.5")

    first = verdict.differences[0]

    assert (first.dialogue, first.place) == ("user", 1)
    assert (first.ours[:10], first.theirs[:10]) == ("user\nWhat ", "system\nYou"[:10])
    assert str(first).startswith("the dialogue 'user' at token 1: ours goes on 'user\\nWhat ")


async def test_a_server_that_cannot_render_is_used_and_says_so() -> None:
    no_template = await verdict_of(ChatMLRenderer(load()), None)
    in_process = await compare(ChatMLRenderer(load()), InProcessBackend())

    assert no_template.not_compared.startswith("the server renders no dialogue")
    assert in_process.in_a_word == "not compared: this server renders no dialogues"
    assert (no_template.differences, in_process.differences) == ((), ())


class NoSystemMessages(InProcessBackend):
    """A server whose template takes no system message without tools, as some do."""

    def __init__(self, server: HttpBackend) -> None:
        super().__init__()
        self._server = server

    async def render_chat(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], **kwargs: Any) -> list[int]:
        """The other server's rendering, or a refusal."""
        if messages[0]["role"] == "system" and not tools and len(messages) == 2:
            raise Refused("here", 400, "no system messages here")
        return await self._server.render_chat(messages, tools, **kwargs)


async def test_a_dialogue_that_the_template_refuses_is_a_difference() -> None:
    async with ScriptedServer() as server, connect_backend(server.url) as client:
        found = await compare(ChatMLRenderer(load()), NoSystemMessages(client))

    assert [str(difference) for difference in found.differences] == [
        "the server's template refuses the dialogue 'system': no system messages here"
    ]


class Renders(InProcessBackend):
    """A server that gives the same ids for every dialogue."""

    def __init__(self, ids: list[int]) -> None:
        super().__init__()
        self._ids = ids

    async def render_chat(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], **kwargs: Any) -> list[int]:
        """Those."""
        return self._ids


async def test_a_rendering_without_end_is_compared_in_no_time() -> None:
    """Each place of it was compared with a copy of all that followed: a server that answered megabytes held up the worker for hours."""
    ids = load().encode_template("<|im_start|>user\n") * 300_000

    verdict = await compare(ChatMLRenderer(load()), Renders(ids))

    assert differing(verdict) == list(NAMES)


# ---- verdicts of a process


async def test_a_difference_refuses_the_job_unless_its_settings_name_it() -> None:
    renderer = ChatMLRenderer(load(), keep_thinking=False)
    checks = TemplateChecks()
    async with ScriptedServer() as server, connect_backend(server.url) as client:
        with pytest.raises(
            TemplateMismatch, match=f"^chat: the renderer and the chat template of {server.url} differ on the dialogue '{WITH_THOUGHT}'"
        ):
            await checks.require(server.url, client, renderer)
        with pytest.raises(TemplateMismatch):
            await checks.require(server.url, client, renderer, ["tools"])
        verdict = await checks.require(server.url, client, renderer, [WITH_THOUGHT])

    assert verdict.in_a_word == f"differs: {WITH_THOUGHT}"
    assert checks.compared == 1


async def test_a_name_that_is_no_dialogue_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"chat\.template_differences: there is no dialogue 'three user turns'"):
        await TemplateChecks().require("here", InProcessBackend(), ChatMLRenderer(load()), ["three user turns"])


async def test_jobs_that_come_at_once_wait_for_one_comparison_and_another_renderer_has_its_own() -> None:
    checks = TemplateChecks()
    async with ScriptedServer() as server, connect_backend(server.url) as client:
        await asyncio.gather(*(checks.require(server.url, client, ChatMLRenderer(load())) for _ in range(20)))
        once = checks.compared
        await checks.require(server.url, client, ChatMLRenderer(load(), thinking="off"))

    assert (once, checks.compared) == (1, 2)


async def test_a_comparison_that_is_cancelled_leaves_the_next_job_to_it() -> None:
    checks = TemplateChecks()
    async with ScriptedServer() as server, connect_backend(server.url) as client:
        first = asyncio.create_task(checks.require(server.url, client, ChatMLRenderer(load())))
        second = asyncio.create_task(checks.require(server.url, client, ChatMLRenderer(load())))
        await asyncio.sleep(0)
        first.cancel()

        assert (await second).in_a_word == "same"
        assert checks.compared == 1


async def test_a_server_that_was_started_again_is_compared_again() -> None:
    """Under the same address another model may be served; the client asks anew what it can do when its connection broke."""
    checks, renderer = TemplateChecks(), ChatMLRenderer(load())
    async with ScriptedServer() as server, connect_backend(server.url) as client:
        await checks.require(server.url, client, renderer)
        await server.die()
        with pytest.raises(Retryable):
            await client.render_chat([{"role": "user", "content": "x"}], [])
        async with ScriptedServer(ServerOptions(chat_template="qwen2.5"), port=int(server.url.rpartition(":")[2])):
            with pytest.raises(TemplateMismatch, match="'user'"):
                await checks.require(server.url, client, renderer)


async def test_a_verdict_is_good_for_some_minutes() -> None:
    now = [0.0]
    checks = TemplateChecks(lambda: now[0])
    async with ScriptedServer() as server, connect_backend(server.url) as client:
        compared = []
        for now[0] in (0.0, GOOD_FOR_S - 1, GOOD_FOR_S + 1):
            await checks.require(server.url, client, ChatMLRenderer(load()))
            compared.append(checks.compared)

    assert compared == [1, 1, 2]


async def test_what_was_found_is_for_the_record() -> None:
    async with ScriptedServer() as server, connect_backend(server.url) as client:
        seen = ServersSeen(TemplateChecks(), renderer_for(ChatSettings()), ["tools"])
        await seen.watch(client)

    assert seen.record() == {"chat_templates": {server.url: "same"}, "template_differences": ["tools"]}


def test_the_package_s_own_qwen_writes_the_same_as_ours() -> None:
    pytest.importorskip("renderers", reason="the extra rollstream[renderers] is not installed")
    ours, theirs = ChatMLRenderer(load()), PackageRenderer(load(), "qwen3")
    for dialogue in DIALOGUES:
        assert ours.first_prompt(dialogue.first, dialogue.tools).ids == theirs.first_prompt(dialogue.first, dialogue.tools).ids

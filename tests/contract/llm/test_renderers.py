"""The renderer against the server's own template, over each wire and on a real vLLM, whose template is Jinja."""

from __future__ import annotations

import pytest

from tests.contract.llm.conftest import Pair
from workers.agent.canonical_dialogues import NAMES
from workers.agent.renderers import ChatMLRenderer, Thinking
from workers.agent.template_check import TemplateChecks, TemplateMismatch, compare


@pytest.mark.parametrize("thinking", ["free", "off"])
async def test_our_renderer_writes_what_the_server_s_template_writes(pair: Pair, thinking: Thinking) -> None:
    verdict = await compare(ChatMLRenderer(pair.tokenizer, thinking=thinking), pair.client)

    assert (verdict.in_a_word, verdict.differences) == ("same", ())


async def test_a_setting_that_the_template_does_not_share_is_refused_by_name(pair: Pair) -> None:
    opening = ChatMLRenderer(pair.tokenizer, thinking="open")

    with pytest.raises(
        TemplateMismatch, match=r"differ on the dialogue 'user' at token \d+: ours goes on '<think>\\n', the server's ''"
    ) as raised:
        await TemplateChecks().require(pair.client.url, pair.client, opening)

    assert [difference.dialogue for difference in raised.value.differences] == list(NAMES)


async def test_dropping_thoughts_that_the_template_keeps_is_a_difference_of_its_own(pair: Pair) -> None:
    dropping = ChatMLRenderer(pair.tokenizer, keep_thinking=False)

    verdict = await compare(dropping, pair.client)

    assert [difference.dialogue for difference in verdict.differences] == ["two user turns after a thought"]
    assert "<think>" in verdict.differences[0].theirs

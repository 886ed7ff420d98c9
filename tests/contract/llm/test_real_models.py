"""What only a real server can show: that our templates are read as we write them, and which logprobs it gives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.contract.llm.conftest import a_request, scripted
from tests.vllm_server import REAL, VllmServer, serving
from workers.agent.renderers import ChatMLRenderer, Llama3Renderer
from workers.agent.template_check import Verdict, compare
from workers.llm import connect_backend
from workers.llm.tokenizer import load

pytestmark = [*REAL]


@pytest.fixture(scope="module")
def raw_llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """A server of another family, with logprobs of the model's own distribution."""
    with serving(tmp_path_factory.mktemp("llama"), "--raw-logprobs", template="llama3") as server:
        yield server


async def test_our_renderer_writes_what_the_template_of_a_tiny_model_writes(vllm_server: VllmServer) -> None:
    async with connect_backend(vllm_server.url) as client:
        verdict = await compare(ChatMLRenderer(load()), client)

    assert verdict == Verdict()


@pytest.mark.parametrize("in_user", [True, False])
async def test_our_renderer_of_llama_writes_what_its_template_writes(raw_llama: VllmServer, in_user: bool) -> None:
    async with connect_backend(raw_llama.url) as client:
        verdict = await compare(Llama3Renderer(load(raw_llama.folder), tools_in_user_message=in_user), client)

    assert verdict == Verdict()


async def test_raw_logprobs_are_found_out_and_are_those_before_what_was_allowed(raw_llama: VllmServer) -> None:
    async with connect_backend(raw_llama.url) as client:
        assert (await client.probe()).logprobs_mode == "raw"
        result = await client.generate(scripted([300, 301]), timeout_s=30)

    assert result.output_ids[:2] == [300, 301]
    assert all(value < -1 for value in result.logprobs)


async def test_a_server_runs_its_prompts_whole_however_many_come_at_once(vllm_server: VllmServer) -> None:
    """vLLM 0.32 on the CPU computed what did not fit into a batch in pieces, and a request with a seed then ended the engine."""
    async with connect_backend(vllm_server.url) as client:
        length = (await client.probe()).max_model_len
        calls = [a_request(f"long.{n}", prompt_ids=[n + 5] * (length - 4), max_tokens=3) for n in range(3)]
        answers = await asyncio.gather(*(client.generate(call, timeout_s=60) for call in calls))

        assert [len(answer.output_ids) for answer in answers] == [3, 3, 3]
        assert (await client.control.health()).alive

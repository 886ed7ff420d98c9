"""Routed experts over every wire: asked for once a row, the same whoever says them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.engines.errors import Unsupported
from pipeline.messages import RoutedExperts
from tests.contract.llm.conftest import WIRES, scripted
from workers.llm import connect_backend
from workers.llm.scripted import ScriptedServer
from workers.llm.scripted.experts import made_up_experts

MODEL = RoutedExperts(layers=4, top_k=2, experts=300)


@pytest.mark.parametrize("wire", [name for name in WIRES if name != "unix-socket"])
async def test_each_call_says_the_experts_of_the_tokens_that_are_new(wire: str, tmp_path: Path) -> None:
    options = replace(WIRES[wire], routed_experts=MODEL)
    async with (
        ScriptedServer(options, socket_path=tmp_path / "s.sock") as server,
        connect_backend(server.url) as client,
    ):
        first_request = replace(scripted([5, 6, 7]), experts=MODEL)
        first = await client.generate(first_request, timeout_s=10)
        so_far = [*first_request.prompt_ids, *first.output_ids]
        second_request = replace(scripted([8, 9], "job.1.1.0"), prompt_ids=[*so_far, 3, 4], experts=MODEL, experts_from=len(so_far) - 1)
        second = await client.generate(second_request, timeout_s=10)
        unasked = await client.generate(scripted([5, 6], "job.1.2.0"), timeout_s=10)

    ids = [*second_request.prompt_ids, *second.output_ids]
    assert first.experts is not None
    assert second.experts is not None
    assert len(second.experts) == 2 + len(second.output_ids)
    assert np.array_equal(np.concatenate([first.experts, second.experts]), made_up_experts(ids, MODEL))
    assert first.experts.max() > 255
    assert unasked.experts is None


@pytest.mark.parametrize("wire", ["generate-0.32", "completions-0.33", "sglang"])
async def test_a_server_without_the_flag_is_named_with_it(wire: str, tmp_path: Path) -> None:
    async with ScriptedServer(WIRES[wire], socket_path=tmp_path / "s.sock") as server, connect_backend(server.url) as client:
        with pytest.raises(Unsupported, match="--enable-return-routed-experts") as caught:
            await client.generate(replace(scripted([5, 6]), experts=MODEL), timeout_s=10)

        assert caught.value.server == server.url

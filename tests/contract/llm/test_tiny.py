"""What the tiny model's engine owes a trainer beyond the wire: logprobs of its own network, weights that change, batches that mix."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pipeline.engines import Exchange, ModelError
from pipeline.messages import Sampling
from pipeline.testing.wait import wait_until
from tests.contract.llm.conftest import PROMPT, a_request
from workers.llm import GenRequest, HttpBackend, connect_backend
from workers.llm.scripted import ModelServer, ServerOptions
from workers.llm.tokenizer import load

torch = pytest.importorskip("torch", reason="needs torch: the extra train-tiny")
pytest.importorskip("safetensors")

if TYPE_CHECKING:
    from workers.llm.tiny.engine import TinyEngine
    from workers.llm.tiny.model import TinyLM

OUT = 40
"""Tokens of a call."""


@dataclass
class Served:
    """A server, its client, and the network that it began with."""

    client: HttpBackend
    server: ModelServer[TinyEngine]
    model: TinyLM

    async def reload(self, folder: Path) -> None:
        """As a trainer does it."""
        async with Exchange(self.client.url) as http:
            await http.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})


def a_model(seed: int) -> TinyLM:
    """Random weights, spread enough that no token is certain and none even."""
    from workers.llm.tiny.config import TinyConfig
    from workers.llm.tiny.model import TinyLM

    torch.manual_seed(seed)
    model = TinyLM(TinyConfig(vocab_size=load().vocab_size, width=32, layers=2, heads=2, hidden=48, max_len=192))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter *= 4
    return model


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """A running one."""
    from workers.llm.tiny.engine import TinyEngine

    model, tokenizer = a_model(1), load()
    options = ServerOptions(max_model_len=192, max_running=4)
    async with (
        ModelServer(options, tokenizer, lambda: TinyEngine(options, tokenizer, model)) as server,
        connect_backend(server.url) as client,
    ):
        await client.probe()
        yield Served(client, server, model)


def logprobs_of(model: TinyLM, prompt: list[int], output: list[int], temperature: float = 1.0) -> np.ndarray:
    """What a trainer computes for the same tokens, in one pass over the whole."""
    with torch.no_grad():
        rows = (model(torch.tensor([[*prompt, *output]]))[0] / temperature).log_softmax(-1)
    places = np.arange(len(output)) + len(prompt) - 1
    found: np.ndarray = rows[places, output].numpy()
    return found


async def test_a_batch_of_different_calls_samples_from_the_network_of_each(served: Served) -> None:
    """Rows move when others end: here calls of other lengths and temperatures come and go, more of them than there is room for."""
    requests = [
        a_request(f"job.{n}", prompt_ids=PROMPT[: 3 + n], seed=n, max_tokens=5 + 7 * (n % 5), sampling=Sampling(temperature=0.5 + n / 10))
        for n in range(12)
    ]

    results = await asyncio.gather(*(served.client.generate(request, timeout_s=30) for request in requests))

    for request, result in zip(requests, results, strict=True):
        trained = logprobs_of(served.model, list(request.prompt_ids), result.output_ids, request.sampling.temperature)
        assert result.logprobs == pytest.approx(trained, abs=2e-4)
    assert served.server.engine.kv_used == 0


async def test_tokens_after_a_reload_are_of_the_new_weights_and_bear_the_new_label(served: Served, tmp_path: Path) -> None:
    from workers.llm.tiny.checkpoint import save_checkpoint

    other = a_model(2)
    save_checkpoint(other, tmp_path, tokenizer="{}", end_id=0)
    call = asyncio.create_task(served.client.generate(slow("crosses"), timeout_s=30))
    await wait_until(lambda: served.server.engine.generation_tokens > 3, "tokens come out")

    await served.client.control.pause("keep")
    await served.reload(tmp_path)
    await served.client.control.set_version("1.1")
    out = served.server.engine.generation_tokens
    await served.client.control.resume()

    result = await call
    assert [span.version for span in result.spans] == ["default", "1.1"]
    change = result.spans[1].start
    assert change == out - 1 or change == out  # the probe's one token is counted, too
    before = logprobs_of(served.model, PROMPT, result.output_ids)
    after = logprobs_of(other, PROMPT, result.output_ids)
    assert result.logprobs[:change] == pytest.approx(before[:change], abs=2e-4)
    assert result.logprobs[change:] == pytest.approx(after[change:], abs=2e-4)


async def test_weights_of_another_shape_are_refused_and_those_that_stand_go_on(served: Served, tmp_path: Path) -> None:
    from workers.llm.tiny.checkpoint import save_checkpoint
    from workers.llm.tiny.config import TinyConfig
    from workers.llm.tiny.model import TinyLM

    save_checkpoint(TinyLM(TinyConfig(vocab_size=50, width=16, layers=1, heads=1, hidden=16)), tmp_path, tokenizer="{}", end_id=0)

    with pytest.raises(ModelError, match="cannot load"):
        await served.reload(tmp_path)
    with pytest.raises(ModelError, match="cannot load"):
        await served.reload(tmp_path / "nowhere")

    result = await served.client.generate(a_request(max_tokens=8), timeout_s=10)
    assert result.logprobs == pytest.approx(logprobs_of(served.model, PROMPT, result.output_ids), abs=2e-4)


async def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    from workers.llm.tiny.checkpoint import load_model, save_checkpoint

    model = a_model(3)

    save_checkpoint(model, tmp_path, tokenizer="{}", end_id=7)

    again = load_model(tmp_path)
    assert again.config == model.config
    assert all(torch.equal(one, other) for one, other in zip(model.state_dict().values(), again.state_dict().values(), strict=True))


def slow(request_id: str) -> GenRequest:
    """A call of `OUT` tokens that is still under way when somebody looks."""
    return a_request(request_id, max_tokens=OUT, extra_args={"delay_ms": 20}, stop_token_ids=())

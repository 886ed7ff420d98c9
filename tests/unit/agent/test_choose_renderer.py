"""Which renderer a job gets, and who is to blame when it gets none."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from pipeline import chat_request
from pipeline.errors import InvalidRequest
from pipeline.messages import ChatSettings, Stage
from pipeline.requests import JobRequest
from tests.unit.agent.families import LLAMA3, definition
from workers.agent.call_formats import FORMATS
from workers.agent.canonical_dialogues import NAMES
from workers.agent.renderers import ChatMLRenderer, Llama3Renderer, RendererUnavailable, Thinking, renderer_for
from workers.agent.tool_calls import Format
from workers.stages.failures import failure_of


def test_settings_choose_the_family_and_its_switches(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(definition(*LLAMA3))

    chatml = renderer_for(ChatSettings(thinking="off"))
    llama = renderer_for(ChatSettings(family="llama3", tokenizer=str(tmp_path), options={"tools_in_user_message": False}))

    assert (type(chatml), chatml.tool_format, chatml.template_kwargs) == (ChatMLRenderer, "hermes", {"enable_thinking": False})
    assert (type(llama), llama.tool_format) == (Llama3Renderer, "llama3_json")
    assert llama.template_kwargs == {"date_string": "26 Jul 2024", "tools_in_user_message": False}


def test_one_renderer_serves_all_jobs_of_a_setting_and_jobs_that_begin_together_make_it_once(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(definition("<|a|>"))
    chat = ChatSettings(tokenizer=str(tmp_path))
    made = []
    threads = [threading.Thread(target=lambda: made.append(renderer_for(chat))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({id(renderer) for renderer in made}) == 1
    assert renderer_for(replace(chat, template_differences=("tools",))) is made[0]


@pytest.mark.parametrize("spoil", ["missing", "no JSON"])
def test_a_tokenizer_that_this_worker_lacks_is_a_failure_of_the_worker(tmp_path: Path, spoil: str) -> None:
    """Another node may have it: an infrastructure failure that names the path, retried, and never a reward of 0."""
    if spoil == "no JSON":
        (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")

    with pytest.raises(RendererUnavailable, match=str(tmp_path)) as raised:
        renderer_for(ChatSettings(tokenizer=str(tmp_path)))

    failure = failure_of(Stage.RUN, raised.value)
    assert (failure.boundary, failure.kind, failure.retryable) == ("model", "RendererUnavailable", True)
    assert str(tmp_path) in failure.message


@pytest.mark.parametrize(
    ("chat", "says"),
    [
        (ChatSettings(family="llama3"), "chat.tokenizer: not a tokenizer of the family 'llama3'"),
        (ChatSettings(family="alpaca"), "chat.family: expected chatml, llama3 or renderers, got 'alpaca'"),
        (ChatSettings(thinking="maybe"), "chat.thinking: expected one of free, open, off, got 'maybe'"),
        (ChatSettings(tool_format="yaml"), "chat.tool_format: expected one of hermes, qwen3_coder, llama3_json, got 'yaml'"),
        (ChatSettings(options={"date_string": "x"}), "chat.options: the family 'chatml' has no option 'date_string'"),
        (ChatSettings(options={"default_system": 3}), "chat.options: expected str for 'default_system', got 3"),
        (ChatSettings(family="llama3", keep_thinking=False), "chat.thinking: the family 'llama3' has no thoughts"),
    ],
)
def test_settings_that_can_never_work_are_the_request_s_fault(chat: ChatSettings, says: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        renderer_for(chat)

    assert str(raised.value).startswith(says)
    assert failure_of(Stage.RUN, raised.value).retryable is False


def test_requests_know_the_names_that_workers_know() -> None:
    assert get_args(chat_request.Dialogue) == NAMES
    assert get_args(chat_request.Thinking) == get_args(Thinking)
    assert get_args(chat_request.ToolFormat) == ("", *get_args(Format))
    assert set(get_args(Format)) == set(FORMATS)


def test_a_request_becomes_the_settings_of_its_jobs() -> None:
    chat = {"family": "llama3", "tokenizer": "/models/l", "options": {"date_string": "1 May 2025"}, "template_differences": ["tools"]}

    template = JobRequest(task="math", prompt={"q": "1"}, chat=chat).template()  # type: ignore[arg-type]  # as a program sends it

    assert template.chat == ChatSettings(
        family="llama3", tokenizer="/models/l", options={"date_string": "1 May 2025"}, template_differences=("tools",)
    )

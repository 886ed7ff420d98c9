"""The renderer that a job's chat settings ask for.

Settings that can never work are an `InvalidRequest` (`pipeline/requests.py` refuses most of them before a job exists). What only this
worker lacks, a tokenizer's files or the package of a family, is a `RendererUnavailable`: another worker may have it. Neither is ever a
reward of 0.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import lru_cache
from typing import cast, get_args

from pipeline import codec
from pipeline.chat_request import OPTIONS
from pipeline.errors import InvalidRequest
from pipeline.messages import ChatSettings, Json
from workers.agent.renderers.base import Renderer, Thinking
from workers.agent.renderers.chatml import ChatMLRenderer
from workers.agent.renderers.errors import RendererUnavailable
from workers.agent.renderers.llama3 import Llama3Renderer
from workers.agent.renderers.package import PackageRenderer
from workers.agent.tool_calls import Format
from workers.llm import llama3
from workers.llm.tokenizer import Tokenizer, load

_LOADING = threading.Lock()
KEPT = 16
"""Renderers of one process: one for each model and setting that its jobs have."""


def renderer_for(chat: ChatSettings) -> Renderer:
    """The renderer, made when first asked for.

    Raises:
        InvalidRequest: these settings do not work, or not with this tokenizer.
        RendererUnavailable: they do not work on this worker.
    """
    # Permitted differences change nothing of what is written. Jobs that begin together load a vocabulary once.
    with _LOADING:
        return _renderer(codec.encode(replace(chat, template_differences=())))


@lru_cache(maxsize=KEPT)
def _renderer(settings: bytes) -> Renderer:
    chat = codec.decode(ChatSettings, settings)
    tokenizer = _tokenizer(chat.tokenizer)
    if chat.thinking not in get_args(Thinking):
        raise InvalidRequest(f"expected one of {', '.join(get_args(Thinking))}, got {chat.thinking!r}", field="chat.thinking")
    if chat.tool_format and chat.tool_format not in get_args(Format):
        raise InvalidRequest(f"expected one of {', '.join(get_args(Format))}, got {chat.tool_format!r}", field="chat.tool_format")
    thinking = cast(Thinking, chat.thinking)
    tool_format = cast(Format, chat.tool_format) if chat.tool_format else None
    try:
        if chat.family == "chatml":
            options = _options(chat)
            return ChatMLRenderer(
                tokenizer,
                thinking=thinking,
                keep_thinking=chat.keep_thinking,
                tool_format=tool_format or "hermes",
                default_system=str(options.get("default_system", "")),
                images=chat.images,
            )
        if chat.images:
            raise InvalidRequest(
                f"expected family 'chatml' with images, which no other writes here, got {chat.family!r}", field="chat.images"
            )
        if chat.family == "llama3":
            if thinking != "free" or not chat.keep_thinking:
                why = "the family 'llama3' has no thoughts: leave thinking 'free' and keep_thinking on"
                raise InvalidRequest(why, field="chat.thinking")
            options = _options(chat)
            return Llama3Renderer(
                tokenizer,
                tool_format=tool_format or "llama3_json",
                date_string=str(options.get("date_string", llama3.DATE)),
                tools_in_user_message=bool(options.get("tools_in_user_message", True)),
            )
        if chat.family == "renderers":
            return PackageRenderer(
                tokenizer,
                chat.renderer,
                thinking=thinking,
                keep_thinking=chat.keep_thinking,
                tool_format=tool_format,
                options=chat.options,
            )
    except KeyError as error:
        raise InvalidRequest(f"not a tokenizer of the family {chat.family!r}: {error.args[0]}", field="chat.tokenizer") from error
    except ValueError as error:
        raise InvalidRequest(str(error), field="chat.keep_thinking") from error
    raise InvalidRequest(f"expected chatml, llama3 or renderers, got {chat.family!r}", field="chat.family")


def _tokenizer(path: str) -> Tokenizer:
    try:
        return load(path)
    except FileNotFoundError as error:
        raise RendererUnavailable(f"the tokenizer {path}", str(error)) from error
    except (OSError, ValueError) as error:
        raise RendererUnavailable(f"the tokenizer {path}", f"{error}; the file on this worker may be damaged") from error


def _options(chat: ChatSettings) -> Json:
    known = OPTIONS[chat.family]
    for name, value in chat.options.items():
        if name not in known:
            raise InvalidRequest(f"the family {chat.family!r} has no option {name!r}; it has {', '.join(known)}", field="chat.options")
        if not isinstance(value, known[name]):
            raise InvalidRequest(f"expected {known[name].__name__} for {name!r}, got {value!r}", field="chat.options")
    return chat.options

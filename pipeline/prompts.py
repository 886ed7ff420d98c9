"""What a prompt, or the options of a task, may hold: maps of plain values that survive the wire as they are. Images of a prompt become
base64 (`prompt_images.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from pydantic import AfterValidator

from pipeline.codec import encode
from pipeline.errors import InvalidRequest
from pipeline.messages import Json, Prompt
from pipeline.request_errors import shown

MAX_DEPTH = 32
"""Deepest nesting of a prompt or of options; msgpack readers bound it too."""
TOO_DEEP = f"expected at most {MAX_DEPTH} levels of nesting, but some field goes far deeper"
MAX_INT, MIN_INT = 2**64 - 1, -(2**63)
"""What msgpack can carry."""


def plain_map(value: Mapping[str, object]) -> dict[str, object]:
    """The same map with nothing but plain values in it; numbers of numpy become Python's, tuples lists.

    Raises:
        ValueError: a value that cannot travel, with its place.
    """
    return {_text(key, ""): _plain(item, key, 1) for key, item in value.items()}


def _plain(value: object, place: str, depth: int) -> object:
    if depth > MAX_DEPTH:
        raise ValueError(f"expected at most {MAX_DEPTH} levels of nesting, but {place[:80]!r} goes deeper")
    match value:
        case None | bool() | float():
            return value
        case str():
            return _text(value, place)
        case int():
            if not MIN_INT <= value <= MAX_INT:
                raise ValueError(f"expected integers of 64 bits, got {value.bit_length()} bits at {place!r}: send it as text")
            return value
        case np.generic():
            return _plain(value.item(), place, depth)
        case Mapping():
            return {_text(key, place): _plain(item, f"{place}.{key}", depth + 1) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item, f"{place}[{i}]", depth + 1) for i, item in enumerate(value)]
        case np.ndarray():
            raise ValueError(f"expected plain values, got an array at {place!r}: use .tolist()")
        case _:
            raise ValueError(f"expected plain values (text, numbers, booleans, None, lists, maps), got {type(value).__name__} at {place!r}")


def _text(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text as the names of a map, got {shown(value)} at {place!r}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"expected valid Unicode, got half a surrogate pair at {place!r}: UTF-8 cannot hold it") from error
    return value


def _not_empty(data: dict[str, object]) -> dict[str, object]:
    if all(value is None or (isinstance(value, str) and not value.strip()) for value in data.values()):
        raise ValueError(f"expected at least one value that is not empty, got {data!r}: there is nothing to work on")
    return data


def _with_images(row: Mapping[str, object]) -> Mapping[str, object]:
    from pipeline.prompt_images import with_inline_images  # and with it the stores of blobs, which a client opens when it connects

    return with_inline_images(row)


PlainMap = Annotated[Mapping[str, object], AfterValidator(plain_map)]
PromptMap = Annotated[Mapping[str, object], AfterValidator(_with_images), AfterValidator(plain_map), AfterValidator(_not_empty)]


def encode_prompt(
    prompt_id: str, data: Json, *, max_body_bytes: int, field: str = "prompt", first_member: int = 0, traceparent: str = ""
) -> bytes:
    """Body of one prompt.

    Args:
        prompt_id: id within the run.
        data: a map that `plain_map` made.
        max_body_bytes: bound of one body (`QueueSettings.max_body_bytes`).
        field: what the caller calls this prompt, for the error.
        first_member, traceparent: see `messages.Prompt`.

    Raises:
        InvalidRequest: above the bound.
    """
    body = encode(Prompt(id=prompt_id, data=data, first_member=first_member, traceparent=traceparent))
    if len(body) > max_body_bytes:
        longest = max(data, key=lambda name: len(encode(Prompt(id="", data={name: data[name]}))))
        raise InvalidRequest(
            f"expected at most {max_body_bytes:,} bytes, got {len(body):,} (most of it in {longest!r}): "
            "send a path or a name instead of the content, or raise max_body_bytes",
            field=field,
        )
    return body


def prompt_data(row: object, *, field: str) -> dict[str, object]:
    """A row of a data set as the data of a prompt.

    Raises:
        InvalidRequest: not a map, empty, or with values that cannot travel.
    """
    if not isinstance(row, Mapping):
        raise InvalidRequest(f"expected a map of names to values, got {shown(row)}: map each row to a dict first", field=field)
    try:
        return _not_empty(plain_map(_with_images(row)))
    except ValueError as error:
        raise InvalidRequest(str(error), field=field) from None


__all__ = ["MAX_DEPTH", "TOO_DEEP", "PlainMap", "PromptMap", "encode_prompt", "plain_map", "prompt_data"]

"""Images at the scripted server: a processor that only measures, and a check of what a call shows.

Tokens are counted as Qwen2-VL does, a square of 28 pixels each. The "tensors" name the file and their number, so that a call which pairs
an image with another one's place is refused, as it would go wrong, unseen, at an engine.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence

from pipeline.blobs import BadImage, image_kind
from workers.llm import chatml
from workers.llm.scripted.http import BadRequestError, Body
from workers.llm.scripted.options import ServerOptions
from workers.llm.tokenizer import Tokenizer
from workers.llm.tokenizer.tokenizer import OWN_FILE

SQUARE = 28
"""Pixels a side of what becomes one token."""
VISION = (chatml.VISION_OPEN, chatml.IMAGE_PAD, chatml.VISION_CLOSE)


def vocabulary_with_images() -> bytes:
    """Our own small vocabulary with Qwen's tokens for images, as a `tokenizer.json`."""
    definition = json.loads(OWN_FILE.read_bytes())
    first = max(token["id"] for token in definition["added_tokens"]) + 1
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    definition["added_tokens"] += [{"id": first + number, "content": name, **flags} for number, name in enumerate(VISION)]
    return json.dumps(definition).encode()


def image_tokens(width: int, height: int) -> int:
    """How many placeholders an image has."""
    return -(-width // SQUARE) * -(-height // SQUARE)


def rendered(body: Body, options: ServerOptions, tokenizer: Tokenizer) -> Body:
    """The answer of `/v1/chat/completions/render` to one image."""
    match body.get("messages"):
        case [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": str(url)}}]}] if url.startswith("data:"):
            pass
        case _:
            raise BadRequestError("only one message of one image, as a data URL, is rendered here", param="messages")
    if not options.images:
        raise BadRequestError(f"{options.model} is not a multimodal model")
    try:
        content = base64.b64decode(url.partition(",")[2], validate=True)
        kind = image_kind(content)
    except (BadImage, ValueError) as error:
        raise BadRequestError(f"cannot identify image file: {error}") from error
    n_tokens = image_tokens(kind.width, kind.height)
    before = tokenizer.encode_template(f"{chatml.OPEN}user\n{chatml.VISION_OPEN}")
    ids = [*before, *[tokenizer.special(chatml.IMAGE_PAD)] * n_tokens, *tokenizer.encode_template(f"{chatml.VISION_CLOSE}{chatml.CLOSE}\n")]
    name = hashlib.sha256(content).hexdigest()
    tensors = base64.b64encode(json.dumps({"of": name, "tokens": n_tokens}).encode()).decode("ascii")
    return {
        "token_ids": ids,
        "features": {
            "mm_hashes": {"image": [name]},
            "mm_placeholders": {"image": [{"offset": len(before), "length": n_tokens}]},
            "kwargs_data": {"image": [tensors]},
        },
    }


def check_features(body: Body, options: ServerOptions, tokenizer: Tokenizer) -> None:
    """Refuses a call whose images and placeholders do not belong together: each placeholder is one image's, each image has as many as its
    tensors say, in order."""
    shown, ids = body.get("features"), body.get("token_ids")
    if not isinstance(ids, list) or (shown is None and not options.images):
        return
    if shown is not None and not options.images:
        raise BadRequestError(f"{options.model} is not a multimodal model", param="features")
    pad = tokenizer.special(chatml.IMAGE_PAD)
    covered, last = 0, 0
    for name, place, tensors in _items(shown) if shown is not None else ():
        start, length = place.get("offset"), place.get("length")
        if type(start) is not int or type(length) is not int or not last <= start < start + length <= len(ids):
            raise BadRequestError(f"mm_placeholders must be sorted and remain within the token_ids sequence: {place}", param="features")
        if ids[start : start + length] != [pad] * length:
            raise BadRequestError(f"tokens {start} to {start + length} are no placeholders of an image", param="features")
        if tensors != {"of": name, "tokens": length}:
            raise BadRequestError(f"the tensors at {start} are {tensors}, expected {length} tokens of {name}", param="features")
        last = start + length
        covered += length
    if covered != ids.count(pad):
        raise BadRequestError(f"{ids.count(pad)} placeholders in the prompt, {covered} of them of an image", param="features")


def _items(shown: object) -> Sequence[tuple[object, Body, object]]:
    match shown:
        case {"mm_hashes": {"image": list(names)}, "mm_placeholders": {"image": list(places)}, "kwargs_data": {"image": list(tensors)}}:
            pass
        case _:
            raise BadRequestError("expected mm_hashes, mm_placeholders and kwargs_data of images", param="features")
    if not len(names) == len(places) == len(tensors) or not all(isinstance(place, dict) for place in places):
        raise BadRequestError("mm_hashes, mm_placeholders and kwargs_data must have the same length", param="features")
    try:
        return [(n, p, json.loads(base64.b64decode(t, validate=True))) for n, p, t in zip(names, places, tensors, strict=True)]
    except (ValueError, TypeError) as error:
        raise BadRequestError(f"kwargs_data cannot be read: {error}", param="features") from error


__all__ = ["check_features", "image_tokens", "rendered", "vocabulary_with_images"]

"""Images as vLLM takes them beside ids.

A server is asked once an image (`POST /v1/chat/completions/render`): how many placeholder tokens its processor wants, by what hash it knows
it, and for the tensors, which each call (`/inference/v1/generate`, `features`) carries back with the place of the placeholders in its own
ids. So no worker needs a processor, and the tokens of a prompt stay ours. The tensors are text here, never decoded; all else is checked.

Read in vLLM's source, 0.32 to 0.34; no vision model was run.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

from pipeline.engines.errors import InvalidResponse
from workers.llm.images import PlacedImage, PromptImage, ReadImage
from workers.llm.validate import check_ids
from workers.llm.wire import Body

RENDER = "/v1/chat/completions/render"
CHECK = "images"
MAX_NAME = 256


def render_body(image: PromptImage, model: str) -> Body:
    """Asks what a server makes of one image."""
    url = f"data:{image.kind.media_type};base64,{base64.b64encode(image.content).decode('ascii')}"
    content = [{"type": "image_url", "image_url": {"url": url}}]
    return {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 1}


def parse_render(payload: object) -> ReadImage:
    """The checked answer.

    Raises:
        InvalidResponse: it does not tell of one image, or of one whose placeholders are several tokens, which have no place in a call.
    """
    match payload:
        case {
            "token_ids": list(raw_ids),
            "features": {
                "mm_hashes": {"image": [str(name)]},
                "mm_placeholders": {"image": [{"offset": int(start), "length": int(length)}]},
                "kwargs_data": {"image": [str(tensors)]},
            },
        } if 0 < len(name) <= MAX_NAME and tensors:
            pass
        case _:
            raise InvalidResponse(CHECK, f"expected the features of one image, got {str(payload)[:120]}")
    ids = check_ids(raw_ids, "tokens of an image")
    if not (start >= 0 and 0 < length <= len(ids) - start):
        raise InvalidResponse(CHECK, f"{length} placeholders from {start} on, in {len(ids)} tokens")
    kinds = set(ids[start : start + length])
    if len(kinds) > 1:
        raise InvalidResponse(CHECK, f"placeholders of several tokens ({', '.join(map(str, sorted(kinds)[:4]))}), which no call can place")
    around = (ids[start - 1] if start else -1, ids[start + length] if start + length < len(ids) else -1)
    return ReadImage(token=ids[start], n_tokens=length, around=around, name=name, tensors=tensors)


def features(images: Sequence[PlacedImage]) -> Body:
    """The images of a call."""
    return {
        "mm_hashes": {"image": [placed.image.read.name for placed in images]},
        "mm_placeholders": {"image": [{"offset": placed.start, "length": placed.image.read.n_tokens} for placed in images]},
        "kwargs_data": {"image": [placed.image.read.tensors for placed in images]},
    }


__all__ = ["RENDER", "features", "parse_render", "render_body"]

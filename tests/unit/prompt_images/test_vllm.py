"""vLLM's wire for images: what is asked, what is believed, and that the scripted server refuses calls that an engine would run wrongly."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipeline.blobs import IMAGE
from pipeline.engines.errors import InvalidResponse
from pipeline.messages import Blob, Sampling
from tests.prompt_image_files import a_png
from workers.llm import GenRequest
from workers.llm.images import PlacedImage, PromptImage, ReadImage, SeenImage
from workers.llm.scripted import ServerOptions
from workers.llm.scripted.http import BadRequestError, Body
from workers.llm.scripted.images import check_features, rendered, vocabulary_with_images
from workers.llm.tokenizer import Tokenizer
from workers.llm.vllm_images import parse_render, render_body
from workers.llm.vllm_wire import generate_body

TOKENIZER = Tokenizer(vocabulary_with_images())
SEES = ServerOptions(images=True)
IMAGE_FILE = PromptImage.of(a_png(56, 56))
BLOB = Blob(name=IMAGE, digest=IMAGE_FILE.digest, dtype="uint8", shape=(1,), n_bytes=1, uri="")


def answered() -> Body:
    return rendered(render_body(IMAGE_FILE, SEES.model), SEES, TOKENIZER)


def read() -> ReadImage:
    return parse_render(answered())


def a_call(*starts: int, images: int | None = None) -> Body:
    """A body whose prompt has the placeholders of one image behind each start."""
    one = read()
    ids = [1] * 64
    for start in starts:
        ids[start : start + one.n_tokens] = [one.token] * one.n_tokens
    placed = [PlacedImage(start, SeenImage(IMAGE_FILE.kind, BLOB, one)) for start in starts][:images]
    request = GenRequest(request_id="r", prompt_ids=ids, sampling=Sampling(), max_tokens=1, seed=0, images=placed)
    return generate_body(request, "r", SEES.model)


def test_a_call_has_each_image_at_its_placeholders() -> None:
    body = a_call(4, 20)

    assert body["features"]["mm_placeholders"] == {"image": [{"offset": 4, "length": 4}, {"offset": 20, "length": 4}]}
    assert body["features"]["mm_hashes"] == {"image": [IMAGE_FILE.digest] * 2}
    check_features(body, SEES, TOKENIZER)


def test_a_call_without_images_is_as_it_was() -> None:
    assert "features" not in a_call()


BENT: dict[str, tuple[Callable[[Body], object], str]] = {
    "an image that is not shown": (lambda body: body["features"]["mm_hashes"]["image"].pop(), "same length"),
    "a place beside its placeholders": (lambda body: body["features"]["mm_placeholders"]["image"][1].update(offset=21), "no placeholders"),
    "a place behind the prompt": (lambda body: body["features"]["mm_placeholders"]["image"][1].update(offset=63), "remain within"),
    "places out of order": (lambda body: body["features"]["mm_placeholders"]["image"].reverse(), "sorted"),
    "another number of tokens": (lambda body: body["features"]["mm_placeholders"]["image"][1].update(length=3), "expected 3 tokens"),
    "another image's tensors": (lambda body: body["features"]["mm_hashes"]["image"].__setitem__(0, "other"), "of other"),
    "a placeholder of no image": (lambda body: body["token_ids"].__setitem__(40, read().token), "9 placeholders in the prompt, 8"),
    "tensors that are none": (lambda body: body["features"]["kwargs_data"].update(image=["?", "?"]), "cannot be read"),
    "no features": (lambda body: body.pop("features"), "8 placeholders in the prompt, 0"),
}


@pytest.mark.parametrize("how", BENT)
def test_the_scripted_server_refuses_images_that_are_not_where_they_should_be(how: str) -> None:
    bend, told = BENT[how]
    body = a_call(4, 20)
    bend(body)

    with pytest.raises(BadRequestError, match=told):
        check_features(body, SEES, TOKENIZER)


def test_a_server_of_a_model_that_sees_none_refuses_them() -> None:
    for refused in (
        lambda: check_features(a_call(4), ServerOptions(), TOKENIZER),
        lambda: rendered(render_body(IMAGE_FILE, ""), ServerOptions(), TOKENIZER),
    ):
        with pytest.raises(BadRequestError, match="not a multimodal model"):
            refused()


UNBELIEVED: dict[str, Callable[[Body], object]] = {
    "no features": lambda answer: answer.pop("features"),
    "two images": lambda answer: answer["features"]["mm_hashes"]["image"].append("x"),
    "no tensors": lambda answer: answer["features"].update(kwargs_data=None),
    "tensors to be found in a cache": lambda answer: answer["features"]["kwargs_data"].update(image=[None]),
    "placeholders that are not there": lambda answer: answer["features"]["mm_placeholders"]["image"][0].update(length=999),
    "none at all": lambda answer: answer["features"]["mm_placeholders"]["image"][0].update(length=0),
    "before the beginning": lambda answer: answer["features"]["mm_placeholders"]["image"][0].update(offset=-1),
    "placeholders of several tokens": lambda answer: answer["features"]["mm_placeholders"]["image"][0].update(offset=0),
    "ids that are none": lambda answer: answer.update(token_ids=["a"] * 40),
    "a name without end": lambda answer: answer["features"]["mm_hashes"].update(image=["x" * 1000]),
    "a list": lambda answer: answer.update(features=[]),
}


@pytest.mark.parametrize("how", UNBELIEVED)
def test_what_a_server_says_of_an_image_is_checked(how: str) -> None:
    answer = answered()
    UNBELIEVED[how](answer)

    with pytest.raises(InvalidResponse):
        parse_render(answer)


def test_the_frame_around_placeholders_is_what_the_server_writes() -> None:
    assert read().around == (TOKENIZER.special("<|vision_start|>"), TOKENIZER.special("<|vision_end|>"))

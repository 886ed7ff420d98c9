"""What a task's handler does with images: a row's are shown, tools are told to show theirs, and a model that sees none gets neither."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.blobs import IMAGE
from pipeline.errors import InvalidRequest
from pipeline.messages import Blob, ChatMessage, ChatSettings, Grade, JobSpec, Json, Trajectory
from pipeline.testing.builders import a_job, a_prompt, a_template
from tests.prompt_image_files import a_jpeg, a_png, as_base64
from workers.agent import ActiveTime, ChatMLRenderer, Renderer
from workers.handlers.agent_handler import AgentHandler
from workers.handlers.base import Environment, EvalContext, RunContext
from workers.llm.scripted import InProcessBackend, ServerOptions
from workers.llm.scripted.images import vocabulary_with_images
from workers.llm.tokenizer import Tokenizer
from workers.sandbox.base import Sandbox
from workers.sandbox.spec import SandboxOwner
from workers.tools.base import Tool, ToolResult

TOKENIZER = Tokenizer(vocabulary_with_images())
PNG, JPEG = a_png(), a_jpeg()
CALL = '<tool_call>\n{"name": "draw", "arguments": {}}\n</tool_call>'


class Draw:
    """Shows an image where it was told to."""

    name = "draw"
    description = "Draws."
    parameters: ClassVar[Json] = {"type": "object", "properties": {}}

    def __init__(self) -> None:
        self.shows_images = False

    async def __call__(self, arguments: Mapping[str, object], *, timeout_s: float) -> ToolResult:
        return ToolResult(text="Drawn.", images=(JPEG,) if self.shows_images else ())


class Draws(AgentHandler):
    """A task with one tool that draws."""

    name = "draws"

    def messages(self, spec: JobSpec) -> Sequence[ChatMessage]:
        return (ChatMessage(role="user", content="Like <image>?" if "images" in spec.prompt.data else "Draw."),)

    def tools(self, spec: JobSpec, sandbox: Sandbox | None) -> Sequence[Tool]:
        return (Draw(),)

    def renderer(self, spec: JobSpec) -> Renderer:
        return ChatMLRenderer(TOKENIZER, images=spec.template.chat.images)

    async def evaluate(self, context: EvalContext) -> Grade:
        raise AssertionError


async def ran(*, sees: bool, images: Sequence[str] = (), kept: list[tuple[str, int | None, bytes]] | None = None) -> Trajectory:
    """The trajectory of one job; `kept` gets what it put into the store."""
    data = {"question": "?", **({"images": list(images)} if images else {})}
    spec = replace(a_job(prompt="p"), template=a_template(chat=ChatSettings(images=sees)), prompt=a_prompt("p", data=data))

    async def keep(name: str, array: NDArray[Any], *, part: int | None = None) -> Blob:
        if kept is not None:
            kept.append((name, part, array.tobytes()))
        return Blob(name=name, digest="0" * 64, dtype=array.dtype.name, shape=array.shape, n_bytes=array.nbytes, uri=f"blob:{part}")

    async def journal(_: object) -> None: ...

    def nothing(*_: object) -> None: ...

    context = RunContext(
        spec=spec,
        owner=SandboxOwner(job_id=spec.job, attempt=1, boot_id="b"),
        gate=nothing,
        progress=nothing,
        retries=0,
        sandboxes=None,
        environment=Environment(),
        backend=InProcessBackend([CALL, "Done."], options=ServerOptions(images=sees), tokenizer=TOKENIZER),
        journal=journal,
        active=ActiveTime(60.0),
        keep_blob=keep,
    )
    return await Draws().run(context)


async def test_a_model_that_sees_is_shown_the_row_and_what_its_tools_draw() -> None:
    kept: list[tuple[str, int | None, bytes]] = []

    trajectory = await ran(sees=True, images=[as_base64(PNG)], kept=kept)

    assert kept == [(IMAGE, 0, PNG), (IMAGE, 1, JPEG)]
    assert [image.media_type for image in trajectory.segments[0].images] == ["image/png", "image/jpeg"]
    assert np.array_equal(trajectory.segments[0].sampled_mask == 1, np.isfinite(trajectory.segments[0].logprobs))


async def test_tools_of_a_model_that_sees_none_show_nothing_and_nothing_is_kept() -> None:
    kept: list[tuple[str, int | None, bytes]] = []

    trajectory = await ran(sees=False, kept=kept)

    assert (kept, trajectory.segments[0].images) == ([], ())
    assert [message.content for message in trajectory.messages if message.role == "tool"] == ["Drawn."]


REFUSED: dict[str, tuple[bool, str, str]] = {
    "a model that sees none": (False, as_base64(PNG), "chat.images is off"),
    "a row that was not judged when it was fed": (True, as_base64(b"<svg/>"), "SVG"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_images_that_cannot_be_shown_end_the_job_and_no_attempt_is_made_again(case: str) -> None:
    sees, image, told = REFUSED[case]

    with pytest.raises(InvalidRequest, match=told):
        await ran(sees=sees, images=[image])

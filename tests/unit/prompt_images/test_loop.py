"""Images through the agent loop: read once, kept before they are shown, on their placeholders in every prompt, and in the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest

from pipeline.blobs import IMAGE
from pipeline.engines.errors import Unsupported
from pipeline.errors import InvalidRequest
from pipeline.messages import Blob, ChatMessage, JobSpec, Json, Segment, StopReason, Trajectory
from pipeline.testing.builders import a_job, a_template
from tests.prompt_image_files import a_jpeg, a_png
from workers.agent import AgentEnd, ChatMLRenderer, TrajectoryRecorder, TurnDelta, broken_promises, run_agent
from workers.agent.images import MAX_SENT_BYTES, MAX_SHOWN, ImageReader, ShownMessage, with_images
from workers.agent.renderers import THINKING_DROPPED
from workers.agent.world import WorldReply
from workers.llm import chatml
from workers.llm.images import PromptImage, SeenImage
from workers.llm.scripted import InProcessBackend, ServerOptions
from workers.llm.scripted.images import image_tokens, vocabulary_with_images
from workers.llm.tokenizer import Tokenizer
from workers.tools.base import Tool, ToolResult, ToolSet

TOKENIZER = Tokenizer(vocabulary_with_images())
PAD = TOKENIZER.special(chatml.IMAGE_PAD)
WIDE, TALL = PromptImage.of(a_png(640, 48)), PromptImage.of(a_jpeg(56, 224))
DRAW = [ChatMessage(role="user", content="Draw.")]
CALL = '<tool_call>\n{"name": "draw", "arguments": {}}\n</tool_call>'


class Draw:
    """A tool that shows images."""

    name = "draw"
    description = "Draws."
    parameters: ClassVar[Json] = {"type": "object", "properties": {}}

    def __init__(self, *images: bytes) -> None:
        self.images = images

    async def __call__(self, arguments: Mapping[str, object], *, timeout_s: float) -> ToolResult:
        return ToolResult(text="Drawn.", images=self.images)


class AsksOn:
    """A user who answers each turn."""

    async def answer(self, said: str, *, timeout_s: float) -> WorldReply:
        return WorldReply(text="Go on.", ends=False)


@dataclass
class Scene:
    """One run of the loop with a model that sees."""

    lines: Sequence[str]
    messages: Sequence[ChatMessage] = (ChatMessage(role="user", content="<image> and <image>?"),)
    images: Sequence[PromptImage] = (WIDE, TALL)
    tools: Sequence[Tool] = ()
    sees: bool = True
    keep_thinking: bool = True
    max_sent_bytes: int = MAX_SENT_BYTES
    options: ServerOptions = field(default_factory=lambda: ServerOptions(images=True))
    kept: list[tuple[str, int, int]] = field(default_factory=list)
    """Digest, number, and calls that were made before, of each image that was kept."""
    journal: list[TurnDelta] = field(default_factory=list)
    recorder: TrajectoryRecorder = field(default_factory=TrajectoryRecorder)
    backend: InProcessBackend = field(init=False)

    @property
    def job(self) -> JobSpec:
        return replace(a_job(), template=a_template())

    async def run(self, world: AsksOn | None = None) -> AgentEnd:
        self.backend = InProcessBackend(self.lines, options=self.options, tokenizer=TOKENIZER)

        async def gate() -> None: ...

        async def note(delta: TurnDelta) -> None:
            self.journal.append(delta)

        async def keep(image: PromptImage, number: int) -> Blob:
            self.kept.append((image.digest, number, len(self.backend.requests)))
            n = len(image.content)
            return Blob(name=IMAGE, digest=image.digest, dtype="uint8", shape=(n,), n_bytes=n, uri=f"blob:{number}")

        return await run_agent(
            self.job,
            with_images(self.messages, self.images) if self.images else self.messages,
            backend=self.backend,
            renderer=ChatMLRenderer(TOKENIZER, images=self.sees, keep_thinking=self.keep_thinking),
            tools=ToolSet(self.tools),
            recorder=self.recorder,
            gate=gate,
            journal=note,
            world=world,
            images=ImageReader(self.backend, keep, max_sent_bytes=self.max_sent_bytes) if self.sees else None,
        )

    @property
    def trajectory(self) -> Trajectory:
        return self.recorder.trajectory(StopReason.FINISHED)


def stands(segment: Segment) -> list[tuple[str, bool]]:
    """Of each image its digest, and whether its placeholders, and no others, stand where the record says."""
    ids = segment.token_ids.tolist()
    found = []
    for image in segment.images:
        alone = ids[image.start - 1] != PAD != ids[image.end]
        tokens = image_tokens(image.width, image.height)
        found.append((image.blob.digest, alone and ids[image.start : image.end] == [PAD] * tokens))
    return found


async def test_images_of_a_row_stand_where_its_text_says_and_the_server_gets_them_there() -> None:
    scene = Scene(["It is \\boxed{1}."])

    await scene.run()

    (segment,) = scene.trajectory.segments
    assert stands(segment) == [(WIDE.digest, True), (TALL.digest, True)]
    assert segment.token_ids.tolist().count(PAD) == image_tokens(640, 48) + image_tokens(56, 224)
    frame = f"{chatml.VISION_OPEN}{chatml.IMAGE_PAD * 46}{chatml.VISION_CLOSE}"
    assert f"user\n{frame} and {chatml.VISION_OPEN}" in TOKENIZER.decode(segment.token_ids.tolist())
    (request,) = scene.backend.requests
    assert [(placed.start, placed.end) for placed in request.images] == [(image.start, image.end) for image in segment.images]
    assert [(image.media_type, image.width, image.height) for image in segment.images] == [("image/png", 640, 48), ("image/jpeg", 56, 224)]
    assert broken_promises(scene.trajectory) == []


async def test_images_stand_before_a_text_that_does_not_say_where() -> None:
    scene = Scene(["It is 1."], messages=[ChatMessage(role="user", content="Compare.")])

    await scene.run()

    (segment,) = scene.trajectory.segments
    assert stands(segment) == [(WIDE.digest, True), (TALL.digest, True)]
    assert f"{chatml.VISION_CLOSE}Compare.{chatml.CLOSE}" in TOKENIZER.decode(segment.token_ids.tolist())


async def test_an_image_is_kept_before_it_is_shown_and_once_however_often_it_is() -> None:
    scene = Scene([CALL, CALL, "Done."], images=(WIDE, WIDE), tools=[Draw(WIDE.content, TALL.content)])

    await scene.run()

    assert scene.kept == [(WIDE.digest, 0, 0), (TALL.digest, 1, 1)]
    (segment,) = scene.trajectory.segments
    assert stands(segment) == [(image.digest, True) for image in (WIDE, WIDE, WIDE, TALL, WIDE, TALL)]
    assert [len(request.images) for request in scene.backend.requests] == [2, 4, 6]
    assert broken_promises(scene.trajectory) == []


async def test_the_journal_adds_up_to_the_same_images() -> None:
    scene = Scene([CALL, "Done."], tools=[Draw(TALL.content)])

    await scene.run()

    again = TrajectoryRecorder.replay(scene.journal).trajectory(StopReason.FINISHED)
    assert [segment.images for segment in again.segments] == [segment.images for segment in scene.trajectory.segments]
    assert len(again.segments[0].images) == 3


async def test_images_move_with_the_text_when_thoughts_before_them_are_cut() -> None:
    """What a tool drew between two thoughts: both are cut out when a user speaks again, and the image comes to stand further ahead."""
    lines = [f"<think>\nI should draw.\n</think>\n\n{CALL}", "<think>\nI see it.\n</think>\n\nA line.", "Done."]
    scene = Scene(lines, tools=[Draw(TALL.content)], keep_thinking=False)

    await scene.run(AsksOn())

    first, second, *_ = scene.trajectory.segments
    assert second.began == THINKING_DROPPED
    assert stands(second) == stands(first) == [(image.digest, True) for image in (WIDE, TALL, TALL)]
    assert second.images[2].start < first.images[2].start
    assert second.images[2].blob == first.images[2].blob
    assert broken_promises(scene.trajectory) == []


async def test_what_a_tool_shows_that_is_no_image_is_told_in_words() -> None:
    scene = Scene([CALL, "Done."], images=(), messages=DRAW, tools=[Draw(b"<svg/>", WIDE.content)])

    await scene.run()

    (segment,) = scene.trajectory.segments
    assert stands(segment) == [(WIDE.digest, True)]
    assert "[not shown: expected PNG, JPEG or WebP, got SVG" in scene.trajectory.messages[2].content


async def test_a_dialogue_that_has_its_most_images_is_told_of_further_ones() -> None:
    scene = Scene([CALL, "Done."], images=[WIDE] * MAX_SHOWN, messages=DRAW, tools=[Draw(WIDE.content)])

    await scene.run()

    assert len(scene.trajectory.segments[0].images) == MAX_SHOWN
    assert "this dialogue has its most images" in scene.trajectory.messages[2].content


async def test_the_tensors_of_a_dialogue_are_bounded_and_what_has_no_room_is_not_kept() -> None:
    """Each call sends all of them again: 64 large images would be gigabytes a call."""
    one = len((await InProcessBackend(options=ServerOptions(images=True), tokenizer=TOKENIZER).read_image(WIDE)).tensors)
    scene = Scene(
        [CALL, "Done."], images=[WIDE], messages=DRAW, tools=[Draw(WIDE.content, TALL.content, WIDE.content)], max_sent_bytes=2 * one
    )

    await scene.run()

    assert [digest for digest, _, _ in scene.kept] == [WIDE.digest]
    assert stands(scene.trajectory.segments[0]) == [(WIDE.digest, True)] * 2
    assert scene.trajectory.messages[2].content.count("this dialogue has its most images") == 2
    with pytest.raises(InvalidRequest, match="scale them down"):
        await Scene(["Done."], images=[WIDE] * 3, messages=DRAW, max_sent_bytes=2 * one).run()


async def test_people_read_what_stood_in_an_images_place() -> None:
    scene = Scene(["Done."])

    await scene.run()

    assert scene.trajectory.messages[0].content == (
        f"[image/png, 640 x 48, sha256 {WIDE.digest[:12]}] and [image/jpeg, 56 x 224, sha256 {TALL.digest[:12]}]?"
    )


async def test_text_cannot_spell_an_image() -> None:
    spelt = f"{chatml.VISION_OPEN}{chatml.IMAGE_PAD}{chatml.VISION_CLOSE}"
    scene = Scene(["Done."], images=(), messages=[ChatMessage(role="user", content=spelt)])

    await scene.run()

    assert PAD not in scene.trajectory.segments[0].token_ids


async def test_a_server_without_images_ends_the_job_with_what_to_do() -> None:
    with pytest.raises(Unsupported, match="set images"):
        await Scene(["Done."], options=ServerOptions()).run()


async def test_what_a_server_makes_of_an_image_must_be_what_the_renderer_writes() -> None:
    backend = InProcessBackend(options=ServerOptions(images=True), tokenizer=TOKENIZER)
    read = await backend.read_image(WIDE)
    blob = Blob(name=IMAGE, digest=WIDE.digest, dtype="uint8", shape=(1,), n_bytes=1, uri="")
    renderer = ChatMLRenderer(TOKENIZER, images=True)

    assert (read.token, read.n_tokens) == (PAD, image_tokens(640, 48))
    for other in (replace(read, token=0), replace(read, around=(read.around[1], read.around[0])), replace(read, around=(-1, -1))):
        shown = ShownMessage(role="user", content="", images=((0, SeenImage(WIDE.kind, blob, other)),))
        with pytest.raises(InvalidRequest, match="the model's server writes an image as"):
            renderer.first_prompt([shown], ())


@pytest.mark.parametrize(("text", "n"), [("<image>", 2), ("<image> <image> <image>", 2)])
async def test_other_numbers_of_marks_than_images_are_refused(text: str, n: int) -> None:
    with pytest.raises(InvalidRequest, match="as many images as <image>"):
        with_images([ChatMessage(role="user", content=text)], [WIDE] * n)

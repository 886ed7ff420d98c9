"""A task whose RUN is the agent loop: it says how the dialogue begins and which tools there are, and judges the end."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import numpy as np

from pipeline.blobs import IMAGE, ROUTED_EXPERTS, BadImage
from pipeline.errors import InvalidRequest
from pipeline.failpoints import failpoint
from pipeline.messages import Blob, ChatMessage, JobSpec, Json, Trajectory
from pipeline.prompt_images import IMAGES, images_in
from workers.agent import AgentEnd, AgentSettings, Renderer, RetryPolicy, ServersSeen, TrajectoryRecorder, World, renderer_for, run_agent
from workers.agent.images import ImageReader, with_images
from workers.handlers.base import RunContext, TaskHandler
from workers.llm.images import PromptImage
from workers.sandbox.base import Sandbox
from workers.tools import ShowsImages, Tool, ToolSet, tools_called


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a dialogue begins with, and what answers the turns that call no tool."""

    messages: Sequence[ChatMessage]
    world: World | None = None
    """None = a turn without a call ends the trajectory."""
    record: Callable[[], Json] = dict
    """Asked when the loop has ended, for `trajectory.extra`: what EVAL needs of the world."""


class AgentHandler(TaskHandler):
    """Lets the agent loop act with the task's tools in the task's sandbox; the sandbox is gone when it ends."""

    settings = AgentSettings(retry=RetryPolicy(tries=1))
    """The pool behind the backend tries other servers; the loop only waits for a busy or paused one."""
    tool_names: Sequence[str] = ()
    """The built-in tools of the task, in the order the model sees them; `tools` says otherwise."""

    @abstractmethod
    def messages(self, spec: JobSpec) -> Sequence[ChatMessage]:
        """How the dialogue begins."""

    def tools(self, spec: JobSpec, sandbox: Sandbox | None) -> Sequence[Tool]:
        """What the model may call, made anew for each trajectory. Default: the built-in tools of `tool_names`."""
        return tools_called(self.tool_names, sandbox)

    @asynccontextmanager
    async def scene(self, context: RunContext, sandbox: Sandbox | None) -> AsyncIterator[Scene]:
        """How the dialogue begins and what answers it, for a task whose first message is made when RUN begins; left when RUN ends,
        however it does. Default: `messages`, and no world."""
        yield Scene(messages=self.messages(context.spec))

    async def collect(self, context: RunContext, sandbox: Sandbox, end: AgentEnd) -> Json:
        """What EVAL will need of the sandbox, for `trajectory.extra`: asked when the loop has ended, also at a limit, while the sandbox
        still lives. What the agent did to it is data; a sandbox that broke is raised. Default: nothing."""
        return {}

    def renderer(self, spec: JobSpec) -> Renderer:
        """How dialogues of this job's model become ids. Called in a thread: it may read a large vocabulary."""
        return renderer_for(spec.template.chat)

    async def run(self, context: RunContext) -> Trajectory:
        recorder = TrajectoryRecorder()
        renderer = await asyncio.to_thread(self.renderer, context.spec)
        seen = ServersSeen(context.templates, renderer, context.spec.template.chat.template_differences)
        await seen.watch(context.backend)

        sees = context.spec.template.chat.images
        row_images = _images_of(context.spec)

        async def gate() -> None:
            context.gate()

        async def keep(image: PromptImage, number: int) -> Blob:
            return await context.keep_blob(IMAGE, np.frombuffer(image.content, np.uint8), part=number)

        async with AsyncExitStack() as stack:
            sandbox: Sandbox | None = None
            if context.environment.is_local:
                sandbox = await stack.enter_async_context(await context.sandbox())
            scene = await stack.enter_async_context(self.scene(context, sandbox))
            tools = ToolSet(self.tools(context.spec, sandbox))
            for tool in tools if sees else ():
                if isinstance(tool, ShowsImages):
                    tool.shows_images = True
            end = await run_agent(
                context.spec,
                with_images(scene.messages, row_images) if row_images else scene.messages,
                backend=context.backend,
                renderer=renderer,
                tools=tools,
                world=scene.world,
                recorder=recorder,
                gate=gate,
                journal=context.journal,
                active=context.active,
                settings=self.settings,
                images=ImageReader(context.backend, keep) if sees else None,
                used_tool=context.used_tool,
            )
            collected = await self.collect(context, sandbox, end) if sandbox is not None else {}
        failpoint("sandbox_stop")
        blobs = {
            index: [await context.keep_blob(ROUTED_EXPERTS, rows, part=index)]
            for index, rows in (recorder.experts() if context.spec.template.routed_experts is not None else ())
        }
        return recorder.trajectory(end.stop, answer=end.answer, extra={**seen.record(), **scene.record(), **collected}, blobs=blobs)


def _images_of(spec: JobSpec) -> list[PromptImage]:
    """The images of a job's row.

    Raises:
        InvalidRequest: one is none, or the model sees none: the question without its image would be another one.
    """
    try:
        found = [PromptImage.of(content) for content in images_in(spec.prompt.data)]
    except BadImage as error:
        raise InvalidRequest(str(error), field=IMAGES) from error
    if found and not spec.template.chat.images:
        raise InvalidRequest(f"the row has {len(found)} images, and chat.images is off: set it, or feed the row without them", field=IMAGES)
    return found

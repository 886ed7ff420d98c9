"""One row of a task as the model meets it: the prompt, the tools, the limits, and what the row must hold."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

from rich.console import Console
from rich.text import Text

from ops.tasks.listing import SandboxesHere
from ops.tasks.words import sandbox_words
from ops.visible_text import visible, visible_line
from pipeline.messages import JobSpec
from workers.handlers.agent_handler import AgentHandler
from workers.handlers.base import TaskHandler
from workers.sandbox.base import Sandbox
from workers.sandbox.spec import SandboxSpec
from workers.tools import Tool, ToolSet


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPage:
    """What is shown of a row."""

    handler: TaskHandler
    spec: JobSpec
    has_dialogue: bool
    """False: a handler with a RUN of its own, which shows no dialogue before it runs."""
    tools: tuple[Tool, ...]
    prompt: str
    """As the model sees it, from the ids; empty without a dialogue."""
    n_tokens: int
    gold: str | None
    """The reference answer; None = the row holds none."""
    sandbox: SandboxSpec | None


class _NeverUsed:
    """Stands where tools want a sandbox to be described: they are made, and not called."""

    workdir = "/workspace"

    def shell(self, name: str = "main") -> _NeverUsed:
        return self

    def kernel(self, name: str = "main") -> _NeverUsed:
        return self


def task_page(handler: TaskHandler, spec: JobSpec) -> TaskPage:
    """The page of a row. Nothing is started.

    Raises:
        InvalidRequest: the row is no problem.
        RendererUnavailable: the model's tokenizer is not here.
    """
    gold, wanted = handler.gold(spec), handler.sandbox_spec(spec)
    has_dialogue, tools, prompt, n_tokens = isinstance(handler, AgentHandler), tuple[Tool, ...](), "", 0
    if isinstance(handler, AgentHandler):
        sandbox = cast(Sandbox, _NeverUsed()) if wanted is not None else None  # no more of it is asked for than it has
        tools = tuple(handler.tools(spec, sandbox))
        renderer = handler.renderer(spec)
        ids = renderer.first_prompt(handler.messages(spec), ToolSet(tools).schemas()).ids
        prompt, n_tokens = renderer.tokenizer.decode(ids), len(ids)
    return TaskPage(
        handler=handler,
        spec=spec,
        has_dialogue=has_dialogue,
        tools=tools,
        prompt=prompt,
        n_tokens=n_tokens,
        gold=gold.answer if gold is not None else None,
        sandbox=wanted,
    )


def render_page(console: Console, page: TaskPage, here: SandboxesHere | None) -> None:
    """Prints it."""
    handler, template = page.handler, page.spec.template
    console.print(Text.assemble(("task ", "bold"), (handler.name, "bold"), f"  {visible_line(handler.about)}"))
    _section(console, "layouts", "" if handler.layouts else "the task reads rows itself")
    for layout in handler.layouts:
        console.print(Text(f"  {layout.name}: {', '.join(sorted(layout.columns))}"))
    documented = _options_of(handler)
    if template.options or not documented:
        _section(console, "options", _pairs(template.options) or "none")
    if documented:
        console.print(Text(documented))
    _section(console, "sandbox", sandbox_words(page.sandbox, here))
    _section(console, "limits", _pairs(asdict(template.limits)))
    _section(console, "tools", ", ".join(tool.name for tool in page.tools) or "none")
    for tool in page.tools:
        arguments = tool.parameters.get("properties")
        console.print(
            Text(f"  {tool.name}({', '.join(arguments) if isinstance(arguments, dict) else ''}): {visible_line(tool.description)}")
        )
    _section(console, "row", visible_line(page.spec.prompt.id))
    if page.has_dialogue:
        console.print(Text(f"prompt, {page.n_tokens:,} tokens", "bold"))
        console.print(Text(visible(page.prompt)), soft_wrap=True)
    else:
        console.print("the task has a RUN of its own: its prompt is made there")
    _section(console, "reference", "the row holds none" if page.gold is None else visible(page.gold))


def page_as_map(page: TaskPage, here: SandboxesHere | None) -> dict[str, Any]:
    """The same for a program."""
    template = page.spec.template
    sandbox: dict[str, Any] | None = None
    if page.sandbox is not None:
        sandbox = {**asdict(page.sandbox), "isolation": page.sandbox.isolation.value}
        if here is not None:
            sandbox |= {"here": here.serves(page.sandbox), "backend": here.backend}
    return {
        "task": page.handler.name,
        "about": page.handler.about,
        "layouts": {layout.name: sorted(layout.columns) for layout in page.handler.layouts},
        "options": dict(template.options),
        "limits": asdict(template.limits),
        "sandbox": sandbox,
        "tools": list(ToolSet(page.tools).schemas()),
        "row": page.spec.prompt.id,
        "data": dict(page.spec.prompt.data),
        "prompt": page.prompt if page.has_dialogue else None,
        "tokens": page.n_tokens,
        "reference": page.gold,
    }


def _options_of(handler: TaskHandler) -> str:
    """What the handler's module says of its options: the paragraph that begins with `Options`."""
    module = sys.modules.get(type(handler).__module__)
    paragraphs = re.split(r"\n(?=\S)", inspect.cleandoc(module.__doc__ or "")) if module is not None else []
    return next((each.rstrip() for each in paragraphs if each.startswith("Options")), "")


def _section(console: Console, name: str, rest: str) -> None:
    console.print(Text.assemble((f"{name}  ", "bold"), rest))


def _pairs(values: Mapping[str, object]) -> str:
    return " · ".join(f"{name} {visible_line(str(value))}" for name, value in values.items())

"""A task, and one row of it as the model meets it: the prompt, the tools, the limits, and what a row must hold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

from rich.console import Console
from rich.text import Text

from ops.tasks.listing import SandboxesHere
from ops.tasks.rows import spec_of
from ops.tasks.words import sandbox_words
from ops.visible_text import visible, visible_line
from pipeline.messages import JobSpec, JobTemplate
from workers.handlers.agent_handler import AgentHandler
from workers.handlers.base import TaskHandler
from workers.handlers.task_data import Row
from workers.handlers.task_options import Option
from workers.sandbox.base import Sandbox
from workers.sandbox.spec import SandboxSpec
from workers.tools import Tool, ToolSet


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPage:
    """What is shown."""

    handler: TaskHandler
    template: JobTemplate
    row: ShownRow | None
    """None = none was named, and the task ships none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRow:
    """What is shown of a row."""

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


def task_page(handler: TaskHandler, template: JobTemplate, row: Row | None) -> TaskPage:
    """The page of a task, with a row of it. Nothing is started.

    Raises:
        InvalidRequest: the row is no problem, or an option is none of the task's.
        RendererUnavailable: the model's tokenizer is not here.
    """
    handler.check_options(template.options)
    return TaskPage(handler=handler, template=template, row=_shown(handler, spec_of(template, row)) if row is not None else None)


def _shown(handler: TaskHandler, spec: JobSpec) -> ShownRow:
    gold, wanted = handler.gold(spec), handler.sandbox_spec(spec)
    has_dialogue, tools, prompt, n_tokens = isinstance(handler, AgentHandler), tuple[Tool, ...](), "", 0
    if isinstance(handler, AgentHandler):
        sandbox = cast(Sandbox, _NeverUsed()) if wanted is not None else None  # no more of it is asked for than it has
        tools = tuple(handler.tools(spec, sandbox))
        renderer = handler.renderer(spec)
        ids = renderer.first_prompt(handler.messages(spec), ToolSet(tools).schemas()).ids
        prompt, n_tokens = renderer.tokenizer.decode(ids), len(ids)
    return ShownRow(
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
    handler, row = page.handler, page.row
    console.print(Text.assemble(("task ", "bold"), (handler.name, "bold"), f"  {visible_line(handler.about)}"))
    _section(console, "layouts", "" if handler.layouts else "the task reads rows itself")
    for layout in handler.layouts:
        console.print(Text(f"  {layout.name}: {', '.join(sorted(layout.columns))}"))
    _options(console, handler, page.template)
    if row is not None:
        _section(console, "sandbox", sandbox_words(row.sandbox, here))
    _section(console, "limits", _pairs(asdict(page.template.limits)))
    if row is None:
        console.print("the task ships no problems: name a file with --data, and a row of it is shown as the model meets it")
        return
    _section(console, "tools", ", ".join(tool.name for tool in row.tools) or "none")
    for tool in row.tools:
        arguments = tool.parameters.get("properties")
        console.print(
            Text(f"  {tool.name}({', '.join(arguments) if isinstance(arguments, dict) else ''}): {visible_line(tool.description)}")
        )
    _section(console, "row", visible_line(row.spec.prompt.id))
    if row.has_dialogue:
        console.print(Text(f"prompt, {row.n_tokens:,} tokens", "bold"))
        console.print(Text(visible(row.prompt)), soft_wrap=True)
    else:
        console.print("the task has a RUN of its own: its prompt is made there")
    _section(console, "reference", "the row holds none" if row.gold is None else visible(row.gold))


def page_as_map(page: TaskPage, here: SandboxesHere | None) -> dict[str, Any]:
    """The same for a program."""
    handler, row = page.handler, page.row
    sandbox: dict[str, Any] | None = None
    if row is not None and row.sandbox is not None:
        sandbox = {**asdict(row.sandbox), "isolation": row.sandbox.isolation.value}
        if here is not None:
            sandbox |= {"here": here.serves(row.sandbox), "backend": here.backend}
    return {
        "task": handler.name,
        "about": handler.about,
        "layouts": {layout.name: sorted(layout.columns) for layout in handler.layouts},
        "takes": None if handler.options is None else [_option_as_map(option) for option in handler.options],
        "options": dict(page.template.options),
        "limits": asdict(page.template.limits),
        "sandbox": sandbox,
        "tools": None if row is None else list(ToolSet(row.tools).schemas()),
        "row": None if row is None else row.spec.prompt.id,
        "data": None if row is None else dict(row.spec.prompt.data),
        "prompt": row.prompt if row is not None and row.has_dialogue else None,
        "tokens": None if row is None else row.n_tokens,
        "reference": None if row is None else row.gold,
    }


def _options(console: Console, handler: TaskHandler, template: JobTemplate) -> None:
    """What the task takes, each with its kind and default; and what is set."""
    taken = "the task names none, and takes any" if handler.options is None else "" if handler.options else "the task takes none"
    _section(console, "options", " · ".join(each for each in (taken, _pairs(template.options)) if each))
    names = [option.name for option in handler.options or ()]
    for option in handler.options or ():
        kind = f"{option.takes.words}; default {_plain(option.default_words)}"
        console.print(Text(f"  {option.name:{max(map(len, names))}}  {_plain(option.about)} ({kind})"))


def _option_as_map(option: Option[Any]) -> dict[str, Any]:
    default = option.default
    return {
        "name": option.name,
        "takes": option.takes.words,
        "default": list(default) if isinstance(default, tuple) else default,
        "without": _plain(option.default_words),
        "about": option.about,
    }


def _plain(markdown: str) -> str:
    return re.sub(r"(?<!`)\*([^*`]+)\*", r"\1", markdown).replace("`", "")


def _section(console: Console, name: str, rest: str) -> None:
    console.print(Text.assemble((f"{name}  ", "bold"), rest))


def _pairs(values: Mapping[str, object]) -> str:
    return " · ".join(f"{name} {visible_line(str(value))}" for name, value in values.items())

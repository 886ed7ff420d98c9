"""The built-in tools by name, made for one trajectory and one sandbox: `bash` and `python` among them share their working directory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from workers.sandbox.base import Sandbox
from workers.tools.base import Tool
from workers.tools.bash_tool import BashTool
from workers.tools.editor_tool import EditorTool
from workers.tools.finish import FinishTool
from workers.tools.python_tool import PythonTool
from workers.tools.think import ThinkTool
from workers.tools.working_folder import WorkingFolder

WITHOUT_SANDBOX: Mapping[str, Callable[[], Tool]] = {"think": ThinkTool, "finish": FinishTool}
IN_SANDBOX: Mapping[str, Callable[[Sandbox, WorkingFolder], Tool]] = {
    "bash": lambda sandbox, folder: BashTool(sandbox.shell(), folder=folder),
    "python": lambda sandbox, folder: PythonTool(sandbox.kernel(), folder=folder),
    "str_replace_editor": lambda sandbox, folder: EditorTool(sandbox),
}
BUILT_IN = (*IN_SANDBOX, *WITHOUT_SANDBOX)


def tools_called(names: Iterable[str], sandbox: Sandbox | None) -> tuple[Tool, ...]:
    """New tools, in the order of their names.

    Raises:
        LookupError: there is no such tool, or it needs a sandbox and there is none; says which.
    """
    folder = WorkingFolder()
    tools: list[Tool] = []
    for name in names:
        if name in WITHOUT_SANDBOX:
            tools.append(WITHOUT_SANDBOX[name]())
        elif name not in IN_SANDBOX:
            raise LookupError(f"no tool {name!r}; the built-in ones are: {', '.join(BUILT_IN)}")
        elif sandbox is None:
            raise LookupError(f"the tool {name!r} needs a sandbox and this task has none")
        else:
            tools.append(IN_SANDBOX[name](sandbox, folder))
    return tuple(tools)

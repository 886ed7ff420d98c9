"""What a model can call. A handler names its tools (`tools_called`), or makes them itself.

bash                 BashTool      commands in the sandbox's shell
python               PythonTool    cells in the sandbox's IPython
str_replace_editor   EditorTool    look at files and change them
think                ThinkTool     a thought written down
finish               FinishTool    the end, with an answer

`web_search` (`web_search.WebSearchTool`) is made with a `search.SearchClient` by the handlers that have one.
"""

from workers.tools.base import ShowsImages, Tool, ToolOverran, ToolResult, ToolSet
from workers.tools.bash_tool import BashTool
from workers.tools.built_in import BUILT_IN, tools_called
from workers.tools.editor_tool import EditorTool
from workers.tools.finish import FinishTool
from workers.tools.python_tool import PythonTool
from workers.tools.think import ThinkTool
from workers.tools.working_folder import WorkingFolder

__all__ = [
    "BUILT_IN",
    "BashTool",
    "EditorTool",
    "FinishTool",
    "PythonTool",
    "ShowsImages",
    "ThinkTool",
    "Tool",
    "ToolOverran",
    "ToolResult",
    "ToolSet",
    "WorkingFolder",
    "tools_called",
]

"""The fixed texts of the Llama 3 family, from 3.1 on: part of a model's wire, as those in `chatml.py` are.

The renderer (`workers/agent/renderers/llama3.py`) and the scripted server read them from here.
"""

from __future__ import annotations

BEGIN, END_OF_TEXT = "<|begin_of_text|>", "<|end_of_text|>"
HEADER_OPEN, HEADER_CLOSE = "<|start_header_id|>", "<|end_header_id|>"
END_OF_TURN, END_OF_MESSAGE = "<|eot_id|>", "<|eom_id|>"
PYTHON = "<|python_tag|>"
"""Opens a call to a built-in tool."""

DATE = "26 Jul 2024"
"""What the template itself says where nobody tells it the date."""
ENVIRONMENT = "Environment: ipython\n"
DATES = "Cutting Knowledge Date: December 2023\nToday Date: {date}\n\n"

_FORM = 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.Do not use variables.\n\n'
TOOLS_IN_SYSTEM = "You have access to the following functions. To call a function, please respond with JSON for a function call." + _FORM
TOOLS_IN_USER = (
    "Given the following functions, please respond with a JSON for a function call with its proper arguments that best answers the "
    "given prompt.\n\n" + _FORM
)

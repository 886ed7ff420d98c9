"""Members of `code`: they write the program down, try it in the shell, and hand it in.

One kind that fails has a slip in it, as people make them: a bound that is one off, a comparison the wrong way round. The slip may be
harmless; whoever wants a program that certainly fails takes the other kind, which gave up halfway.
"""

from __future__ import annotations

import ast
import random
import shlex
from collections.abc import Sequence

from pipeline.messages import JobSpec, Trajectory
from workers.graders.code import StdioTest
from workers.handlers.code.fences import fenced
from workers.handlers.code.layouts import LAYOUTS
from workers.handlers.code.problem import Problem
from workers.handlers.task_data import problem_in
from workers.llm.scripted import Act, ScriptedCall
from workers.llm.scripted.acts import Script

MOST_INPUT_CHARS = 200
"""A longer input is not typed."""
SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}


def programmed(spec: JobSpec, gold: Trajectory) -> tuple[Script, Sequence[Script]]:
    """The reference program written, tried and handed in; one with a slip; one that is not finished."""
    problem = problem_in(spec.prompt.data, LAYOUTS)
    program = problem.solutions[0]
    slipped = with_a_slip(program, random.Random(spec.prompt.id))
    wrong = [_script(each, problem) for each in (slipped, unfinished(program)) if each != program]
    return _script(program, problem), wrong


def with_a_slip(program: str, rng: random.Random) -> str:
    """The program with one comparison or one number changed; unchanged where it has neither."""
    tree = ast.parse(program)
    places = [node for node in ast.walk(tree) if _can_slip(node)]
    if not places:
        return program
    node = rng.choice(places)
    if isinstance(node, ast.Compare):
        node.ops[0] = SWAPPED[type(node.ops[0])]()
    elif isinstance(node, ast.Constant):
        node.value = int(node.value) + 1  # type: ignore[arg-type]  # `_can_slip` looked
    return ast.unparse(tree) + "\n"


def unfinished(program: str) -> str:
    """The program whose functions do nothing yet, and which prints nothing."""
    kept: list[str] = []
    for node in ast.parse(program).body:
        for function in _functions(node):
            function.body = [ast.Return(value=ast.Constant(value=None))]
        if isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef):
            kept.append(ast.unparse(node))
    return "\n".join([*kept, "# the rest is not written yet"]) + "\n"


def _script(program: str, problem: Problem) -> Script:
    first = problem.tests.tests[0]
    given = first.stdin if isinstance(first, StdioTest) and len(first.stdin) <= MOST_INPUT_CHARS else ""
    run = f"printf %s {shlex.quote(given)} | python3 solution.py" if given else "python3 -m py_compile solution.py && echo it compiles"
    written = f"cat > solution.py <<'END_OF_PROGRAM'\n{program.rstrip()}\nEND_OF_PROGRAM\n{run}"
    return (
        Act("I write the program down and try it.", (ScriptedCall("bash", {"command": written}),)),
        Act(f"This is the program.\n\n{fenced(program)}"),
    )


def _functions(node: ast.stmt) -> list[ast.FunctionDef]:
    if isinstance(node, ast.FunctionDef):
        return [node]
    return [inner for inner in node.body if isinstance(inner, ast.FunctionDef)] if isinstance(node, ast.ClassDef) else []


def _can_slip(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        return type(node.ops[0]) in SWAPPED
    return isinstance(node, ast.Constant) and type(node.value) is int

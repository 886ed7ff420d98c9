"""Runs a program of tests without the program that is tested; comes after `calls.py`.

What the tests call is answered from what is known. A call that is not known yet is noted, and stands for a value that nobody has. Whoever
needs it is given up for this round: an assertion by itself, as a call that stands alone, a turn of a loop over things, or an element of a
list; anything else with its whole statement. All that was asked, in order, goes to the program under test in a process and a sandbox of its
own, and the tests run again with its answers. A round in which nothing new was asked is the judgement; no other one says anything.

So the expected values, which are in the text of the tests, are never where the tested program is or was.

Invariants
    - Answers are plain values, exceptions that Python brings, or objects, which are equal to nothing but themselves: no method of the
      tested program's runs here, and whether two values are equal is never asked of it.
    - The same answers lead to the same questions: random numbers and hashes have a fixed seed.
    - Tests that ask nothing judge nothing: that is said, and is no pass.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import os
import random

TYPE_CHECKING = False  # of `typing`, without loading it
if TYPE_CHECKING:
    from typing import Any

    from workers.graders.code.inside.arrays import stand_in_for_numpy
    from workers.graders.code.inside.calls import USUAL_MODULES
    from workers.graders.code.inside.plain import NotPlain, from_plain, to_plain
    from workers.graders.code.inside.runner import PROGRAMS, write_all

CANDIDATE = "candidate"
"""What tests may call the function under test."""
SEED = 20_261
NOT_RAISED = (UnicodeError, StopIteration, StopAsyncIteration)
"""The first needs more than a text; the others would end a loop of the tests as if it were done."""
MOST_ASKED, MOST_PASSED_OVER = 20_000, 5_000
TOLD_CHARS = 500


class GivenUp(BaseException):
    """A value was needed that nobody has yet."""


class TestedRaisedError(Exception):
    """The tested program raised an exception of its own making."""


class TooManyAskedError(BaseException):
    """The tests ask without end."""


class Asked:
    """What the tests asked in this round, and what is known of it."""

    def __init__(self, answers: list[Any]) -> None:
        self.known = {json.dumps(request, sort_keys=True): answer for request, answer in answers}
        self.all: list[Any] = []
        self.counts: dict[str, int] = {}
        self.has_new = False
        self.passed_over = 0

    def pass_over(self) -> None:
        """Notes that a part was given up; after too many what it is in is given up too: a loop may wait for an answer to end."""
        self.passed_over += 1
        if self.passed_over > MOST_PASSED_OVER:
            raise GivenUp

    def counted(self, request: Any) -> Any:
        """The request with its count."""
        key = json.dumps(request, sort_keys=True)
        self.counts[key] = self.counts.get(key, 0) + 1
        return dict(request, n=self.counts[key])

    def answer(self, request: Any) -> Any:
        """What the tests get for a request: a value, an exception, or what stands for an object or for a value that nobody has yet."""
        self.all.append(request)
        if len(self.all) > MOST_ASKED:
            raise TooManyAskedError
        answer = self.known.get(json.dumps(request, sort_keys=True))
        if answer is None:
            self.has_new = True
            return Stand(self, request, False)
        if "value" in answer:
            return from_plain(answer["value"])
        if "raised" in answer:
            name, text = answer["raised"]
            kind = getattr(builtins, name, None)
            if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, NOT_RAISED):
                raise kind(text)
            raise TestedRaisedError(f"{name}: {text}")
        return Stand(self, request, True)


class Stand:
    """Stands for a function, class or object of the tested program, or for a value that nobody has yet."""

    def __init__(self, asked: Asked, request: Any, is_object: bool) -> None:
        object.__setattr__(self, "_parts", (asked, request, is_object))

    def __call__(self, *arguments: object, **named: object) -> Any:
        asked, request, _ = object.__getattribute__(self, "_parts")
        written = {"call": [request, [_request(one) for one in arguments], {name: _request(one) for name, one in named.items()}]}
        return asked.answer(asked.counted(written))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        asked, request, _ = object.__getattribute__(self, "_parts")
        return Attribute(asked, {"attr": [request, name]}, True)

    def __setattr__(self, name: str, value: object) -> None:
        asked, request, _ = object.__getattribute__(self, "_parts")
        asked.answer(asked.counted({"set": [request, name, _request(value)]}))

    def __eq__(self, other: object) -> bool:
        self._needed()
        return self is other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        self._needed()
        return id(self)

    def __bool__(self) -> bool:
        self._needed()
        return True

    def __iter__(self) -> Any:
        return iter(self._of("items"))

    def __len__(self) -> int:
        return int(self._of("len"))

    def __str__(self) -> str:
        return str(self._of("str"))

    def __repr__(self) -> str:
        return "an object of the tested program"

    def __getitem__(self, key: object) -> Any:
        self._needed()
        return self._of("item", _request(key))

    def _of(self, operation: str, *more: Any) -> Any:
        self._needed()
        asked, request, _ = object.__getattribute__(self, "_parts")
        value = asked.answer(asked.counted({"of": [operation, request, *more]}))
        if isinstance(value, Stand):
            value._needed()
            if operation != "item":
                raise TypeError("objects of the tested program are in it")
        return value

    def _needed(self) -> None:
        if not object.__getattribute__(self, "_parts")[2]:
            raise GivenUp


class Attribute(Stand):
    """An attribute: a method until it is used as a value."""

    def _value(self) -> Any:
        asked, request, _ = object.__getattribute__(self, "_parts")
        return asked.answer(asked.counted({"of": ["value", request]}))

    def __eq__(self, other: object) -> bool:
        value = self._value()
        if isinstance(value, Stand):
            value._needed()
        return bool(value == other)

    def __hash__(self) -> int:
        return hash(self._value())

    def __bool__(self) -> bool:
        return bool(self._value())

    def __getitem__(self, key: Any) -> Any:
        return self._value()[key]

    def _of(self, operation: str, *more: Any) -> Any:
        value = self._value()
        if isinstance(value, Stand):
            return value._of(operation, *more)
        return len(value) if operation == "len" else value


def _give_up(self: Stand, *_: object) -> Any:
    value = self._value() if isinstance(self, Attribute) else self
    if isinstance(value, Stand):
        value._needed()
    raise TypeError("tests cannot calculate with objects of the tested program")


for _name in (
    *("lt", "le", "gt", "ge", "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod"),
    *("pow", "rpow", "and", "rand", "or", "ror", "xor", "rxor", "lshift", "rshift", "neg", "pos", "abs", "invert", "round", "int", "float"),
    *("index", "complex", "contains", "divmod", "rdivmod", "trunc", "floor", "ceil", "format", "bytes", "reversed", "enter", "exit"),
):
    setattr(Stand, f"__{_name}__", _give_up)


def _request(value: object) -> Any:
    """An argument as a request."""
    if isinstance(value, Stand):
        return object.__getattribute__(value, "_parts")[1]
    try:
        return {"plain": to_plain(value)}
    except NotPlain:
        if isinstance(value, list):
            return {"list": [_request(one) for one in value]}
        if isinstance(value, tuple):
            return {"tuple": [_request(one) for one in value]}
        if isinstance(value, dict):
            return {"dict": [[_request(name), _request(one)] for name, one in value.items()]}
        raise


class Apart(ast.NodeTransformer):
    """Lets parts of the tests be passed over by themselves when they are given up."""

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return self._passed_over(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return self._passed_over(node)

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        node.body = [self._caught(node, node.body)]
        return node

    def visit_ListComp(self, node: ast.ListComp) -> ast.AST:
        return self._one_by_one(node, "__list__")

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id == "all" and len(node.args) == 1 and isinstance(node.args[0], ast.GeneratorExp):
            return self._one_by_one(node.args[0], "__all__")
        self.generic_visit(node)
        return node

    def _passed_over(self, node: ast.stmt) -> ast.stmt:
        self.generic_visit(node)
        return self._caught(node, [node])

    def _caught(self, node: ast.stmt, body: list[ast.stmt]) -> ast.stmt:
        note = ast.Expr(value=ast.Call(func=ast.Name(id="__passed_over__", ctx=ast.Load()), args=[], keywords=[]))
        caught = ast.ExceptHandler(type=ast.Name(id="__given_up__", ctx=ast.Load()), name=None, body=[note])
        return ast.copy_location(ast.Try(body=body, handlers=[caught], orelse=[], finalbody=[]), node)

    def _one_by_one(self, node: ast.ListComp | ast.GeneratorExp, function: str) -> ast.AST:
        """Each element as a function without arguments: `function` calls them in turn."""
        self.generic_visit(node)
        if any(isinstance(inner, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)) for inner in ast.walk(node.elt)):
            return node if isinstance(node, ast.ListComp) else _call("all", node)
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        each = ast.GeneratorExp(elt=ast.Lambda(args=nothing, body=node.elt), generators=node.generators)
        return ast.copy_location(_call(function, each), node)


def _call(function: str, argument: ast.expr) -> ast.expr:
    return ast.Call(func=ast.Name(id=function, ctx=ast.Load()), args=[argument], keywords=[])


def list_of(elements: Any) -> list[Any]:
    """What the elements are; given up at the end when one of them was."""
    found, is_given_up = [], False
    for element in elements:
        try:
            found.append(element())
        except GivenUp:
            is_given_up = True
    if is_given_up:
        raise GivenUp
    return found


def all_of(elements: Any) -> bool:
    """Whether all are true; given up when that is not known."""
    is_given_up = False
    for element in elements:
        try:
            if not element():
                break
        except GivenUp:
            is_given_up = True
    else:
        if not is_given_up:
            return True
    if is_given_up:
        raise GivenUp
    return False


def run_judge(order: dict[str, str], program: bytes, given: bytes, files: dict[str, int]) -> None:
    """One round of the tests; ends there and then."""
    what = json.loads(given.decode())
    asked = Asked(what["answers"])
    said = judged(what["setup"] + "\n" + what["source"], asked)
    write_all(files["result"], json.dumps(said).encode())
    os._exit(0)


def judged(source: str, asked: Asked) -> dict[str, Any]:
    """What the tests come to: `asked` = these are the questions; `passed`, `failed`, `raised` = the judgement; `broken` = there is none."""
    random.seed(SEED)
    try:
        tree = Apart().visit(ast.parse(source, "tests.py"))
        names: dict[str, Any] = {"__name__": "tests", "__given_up__": GivenUp, "__passed_over__": asked.pass_over, "__builtins__": builtins}
        names.update(__list__=list_of, __all__=all_of)
        stand_in_for_numpy()
        for name in unknown_names(ast.parse(source, "tests.py")):
            names[name] = importlib.import_module(name) if name in USUAL_MODULES else Stand(asked, {"name": name}, True)
        names.setdefault(CANDIDATE, Stand(asked, {"name": CANDIDATE}, True))
        outcome = _run(tree, names)
    except (SyntaxError, ValueError, TooManyAskedError, NotPlain, RecursionError) as broken:
        return {"broken": f"{type(broken).__name__}: {broken}"[:TOLD_CHARS]}
    if asked.has_new:
        return {"asked": asked.all}
    if not asked.all:
        return {"broken": str(outcome.get("raised") or "the tests call nothing of the tested program")}
    return outcome


def _run(tree: Any, names: dict[str, Any]) -> dict[str, Any]:
    """Every statement at the top by itself, to the first exception."""
    outcome: dict[str, Any] = {"passed": True}
    for statement in tree.body:
        code = compile(ast.fix_missing_locations(ast.Module(body=[statement], type_ignores=[])), "tests.py", "exec")
        try:
            exec(code, names)
        except GivenUp:
            continue
        except NotPlain:
            raise
        except AssertionError as failed:
            return {"failed": f"line {statement.lineno}: {failed}"[:TOLD_CHARS]}
        except Exception as raised:  # noqa: BLE001  # whatever the tests let through is their outcome
            outcome = {"raised": f"line {statement.lineno}: {type(raised).__name__}: {raised}"[:TOLD_CHARS]}
            return outcome
    return outcome


def unknown_names(tree: ast.AST) -> set[str]:
    """What the tests name and neither make nor import: the tested program's."""
    used: set[str] = set()
    made: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else made).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            made.add(node.name)
        elif isinstance(node, ast.alias):
            made.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.arg):
            made.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            made.add(node.name)
    return {name for name in used - made if not hasattr(builtins, name)}


PROGRAMS["judge"] = run_judge

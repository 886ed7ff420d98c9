"""What keeps an answer from being run.

Some scorers of the package hand the answer to `eval`, others to sympy's `parse_expr`, which is the same with more steps. Here both are
replaced in the scoring process, before the package is imported:

    eval            takes literals and arithmetic, told by the syntax tree
    parse_expr      takes formulas: numbers, operators, and names out of a list; no attributes, no quotes, no brackets but round ones

What else were found to run code would still be refused by the process: after `forbid_effects` it can start nothing, connect nowhere, and
write or remove no file. All refusals are ordinary exceptions: the scorer takes them for an answer that it cannot read.
"""

from __future__ import annotations

import ast
import operator
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

MAX_CHARS = 20_000
_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
}
_FUNCTIONS = frozenset((
    "sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "acot", "asec", "acsc", "arcsin", "arccos", "arctan", "sinh", "cosh",
    "tanh", "coth", "asinh", "acosh", "atanh", "exp", "log", "ln", "sqrt", "cbrt", "Abs", "abs", "sign", "pi", "oo", "erf", "gamma",
    "factorial", "Rational", "Integer", "Float",
))  # fmt: skip
"""Without `Integral`: an integral that is left as one is no answer to `integrate this`, though the package takes it."""
_NUMBER = re.compile(r"(?<!\w)(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_NAME = re.compile(r"[^\W\d]\w*")
_VARIABLE = re.compile(r"[^\W\d_]_?\d{0,3}")
_SIGNS = re.compile(r"[\s\w+\-*/^%!(),=<>~&|]*")
_FORBIDDEN = (
    "ctypes.", "os.exec", "os.fork", "os.forkpty", "os.kill", "os.killpg", "os.posix_spawn", "os.spawn", "os.system", "pty.", "socket.",
    "subprocess.", "shutil.", "os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink",
    "os.truncate", "os.utime", "signal.pthread_kill", "code.__new__", "function.__new__",
)  # fmt: skip
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class NotTaken(Exception):
    """A text that would have to be run to be read, or an effect that scoring has not."""


def literal(text: str, *_: object) -> Any:  # whatever the text says
    """What `eval` gives of literals and of arithmetic with numbers.

    Raises:
        NotTaken: it is anything else.
        SyntaxError, ValueError, ArithmeticError: as from `eval`.
    """
    if len(text) > MAX_CHARS:
        raise NotTaken("expected a short text")
    return _value(ast.parse(text.strip(), mode="eval").body)


def _value(node: ast.expr) -> Any:  # as above
    match node:
        case ast.Constant():
            return node.value
        case ast.BinOp() if type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](_number(node.left), _number(node.right))
        case ast.UnaryOp() if type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](_number(node.operand))
        case ast.List():
            return [_value(item) for item in node.elts]
        case ast.Tuple():
            return tuple(_value(item) for item in node.elts)
        case ast.Set():
            return {_value(item) for item in node.elts}
        case ast.Dict() if None not in node.keys:
            return {_value(key): _value(item) for key, item in zip(node.keys, node.values, strict=True) if key is not None}
    raise NotTaken(f"{type(node).__name__} is not taken")


def _number(node: ast.expr) -> Any:  # an int, a float, a complex
    value = _value(node)
    if not isinstance(value, int | float | complex):
        raise NotTaken("arithmetic is for numbers")
    return value


def check_formula(text: str, known: Mapping[str, object] | None = None) -> None:
    """Passes for what can only be a formula.

    Args:
        known: names that the caller gives a meaning.

    Raises:
        NotTaken
    """
    if len(text) > MAX_CHARS:
        raise NotTaken("expected a short text")
    rest = unicodedata.normalize("NFKC", text)  # as Python reads names
    for name in _NAME.findall(_NUMBER.sub(" ", rest)):
        if name not in _FUNCTIONS and name not in (known or {}) and not _VARIABLE.fullmatch(name):
            raise NotTaken(f"the name {name[:40]!r} is not taken")
    if not _SIGNS.fullmatch(_NUMBER.sub(" ", rest)):
        raise NotTaken("only formulas are taken")


def guard_sympy() -> None:
    """Lets `parse_expr` take formulas alone; before anything imports it by name."""
    import sympy
    from sympy.parsing import sympy_parser

    parse = sympy_parser.parse_expr

    def parse_formula(s: str, local_dict: dict[str, Any] | None = None, *args: Any, **kwargs: Any) -> Any:  # as sympy's
        check_formula(s, local_dict)
        return parse(s, local_dict, *args, **kwargs)

    for module in (sympy, sympy_parser, sympy.parsing):
        module.parse_expr = parse_formula


def guard_eval(package: str) -> None:
    """Gives every module of a package that is imported by now an `eval` of its own."""
    for name, module in tuple(sys.modules.items()):
        if name == package or name.startswith(f"{package}."):
            vars(module)["eval"] = literal


def forbid_effects() -> None:
    """From here on this process only computes; there is no way back."""

    def refuse(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            flags = args[2] if len(args) > 2 else 0
            if isinstance(flags, int) and flags & _WRITES:
                raise NotTaken("scoring writes no file")
        elif event.startswith(_FORBIDDEN):
            raise NotTaken(f"scoring needs no {event}")

    sys.addaudithook(refuse)

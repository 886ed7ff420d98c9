"""Whether somebody replaced a part of the test runner: its functions as they were before the repository was imported, beside those of now.

What is replaced from outside the repository (a plugin of the image) or by a `conftest.py` (which is the base commit's) is theirs to do.
"""

import os
import sys
import types

DUNDERS = ("__init_subclass__", "__getattribute__", "__getattr__", "__setattr__", "__new__", "__call__", "__eq__")
MISSING = object()
MAX_TOLD = 5


def parts_of(name, namespaces):
    """(owner, name, value) of each function of a module and of its classes; of a namespace that others import from, all that is called."""
    module = sys.modules.get(name)
    if module is None:
        return
    for key, value in list(vars(module).items()):
        if isinstance(value, types.FunctionType) or (name in namespaces and callable(value)):
            yield module, key, value
        if isinstance(value, type) and value.__module__ == name:
            for inner, method in list(vars(value).items()):
                if isinstance(method, (types.FunctionType, staticmethod, classmethod, property)):
                    yield value, inner, method
            for inner in DUNDERS:
                if inner not in vars(value):
                    yield value, inner, MISSING


def code_of(value):
    value = getattr(value, "__func__", getattr(value, "fget", value))
    return getattr(value, "__code__", None)


class RunnerWatch:
    """The runner as it is now."""

    def __init__(self, modules, namespaces, root):
        self.root = os.path.join(os.path.realpath(root), "")
        self.told = set()
        self.parts = [(owner, key, value, code_of(value)) for name in modules for owner, key, value in parts_of(name, namespaces)]
        self.error = AssertionError

    code_of = staticmethod(code_of)

    def changed(self):
        """What was replaced since, each told once."""
        found = []
        for owner, key, value, code in self.parts:
            current = vars(owner).get(key, MISSING)
            if current is value and code_of(current) is code:
                continue
            name = "%s.%s" % (getattr(owner, "__name__", owner), key)
            if name in self.told or not self.from_inside(current):
                continue
            self.told.add(name)
            found.append(name)
        builtin = getattr(sys.modules.get("builtins"), "AssertionError", None)
        if builtin is not self.error and "builtins.AssertionError" not in self.told:
            self.told.add("builtins.AssertionError")
            found.append("builtins.AssertionError")
        return found[:MAX_TOLD]

    def was_replaced(self, value, code):
        """Whether a function of a test is another one than when the test was found, put there from inside."""
        return code is not None and code_of(value) is not code and self.from_inside(value)

    def from_inside(self, value):
        if value is MISSING:
            return True
        code = code_of(value)
        if code is None:
            code = code_of(vars(type(value)).get("__call__"))
        if code is None:
            kind = value if isinstance(value, type) else type(value)
            module = sys.modules.get(getattr(kind, "__module__", "") or "")
            path = getattr(module, "__file__", None)
            if path is None:
                return kind.__module__ not in ("builtins", "functools")
        else:
            path = code.co_filename
        if not os.path.isabs(path):  # of text that was compiled under a name of its own
            path = os.path.join(self.root, path)
        path = os.path.realpath(path)
        if os.path.basename(path) == "conftest.py":
            return False
        return path.startswith(self.root) and os.sep + "site-packages" + os.sep not in path

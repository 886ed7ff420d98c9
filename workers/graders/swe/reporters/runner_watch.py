"""Whether somebody replaced a part of the test runner: its functions as they were before the repository was imported, beside those of now.
And whether the tests that run are those that lay there when the runner began.

What is replaced from outside the repository (a plugin of the image) or by a `conftest.py` (which is the base commit's) is theirs to do.
"""

import contextlib
import os
import sys
import time
import types

DUNDERS = ("__init_subclass__", "__getattribute__", "__getattr__", "__setattr__", "__new__", "__call__", "__eq__")
MISSING = object()
MAX_TOLD = 5
LOADING = ("ast", "_frozen_importlib_external", "_frozen_importlib")
"""Through what a file of tests passes before it runs."""
LATE = ("unittest.mock", "numpy.testing", "numpy.testing._private.utils", "pandas.testing", "pandas._testing")
"""What tests are written with; watched from when it is there."""
BUILTINS = ("abs", "all", "any", "bool", "compile", "exec", "getattr", "hasattr", "isinstance", "len", "max", "min", "round", "sum")
EXPECTED_TO_FAIL = (b"xfail", b"expectedFailure", b"expected_failure")
OF_TESTS = ("run", "subTest", "fail", "failureException")
"""What a class of tests may not get while it runs, beside what begins with `assert`."""
NO_FOLDERS = (".git", "site-packages", "node_modules")


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
        self.began = time.time()
        self.root = os.path.join(os.path.realpath(root), "")
        self.told = set()
        modules = modules + LOADING
        self.late = set(LATE)
        self.namespaces = {name: sys.modules.get(name) for name in namespaces}
        self.builtins = {name: vars(sys.modules["builtins"]).get(name) for name in BUILTINS}
        self.classes = {}
        self.sources = {}
        self.folders = dict(self._folders())
        self.parts = [(owner, key, value, code_of(value)) for name in modules for owner, key, value in parts_of(name, namespaces)]
        self.error = AssertionError

    code_of = staticmethod(code_of)

    def changed(self):
        """What was replaced since, each told once."""
        found = []
        for name in sorted(self.late & set(sys.modules)):
            self.late.discard(name)
            if self._is_below(getattr(sys.modules[name], "__file__", None) or os.sep):
                continue
            for owner, key, value in parts_of(name, ()):
                # of what was replaced before we came nobody knows what it was
                was = MISSING if value is not MISSING and self.from_inside(value) else value
                self.parts.append((owner, key, was, code_of(was)))
        for name, module in self.namespaces.items():
            if sys.modules.get(name) not in (module, None) and name not in self.told:
                self.told.add(name)
                found.append(name)
        for name, value in self.builtins.items():
            current = vars(sys.modules["builtins"]).get(name)
            if current is not value and "builtins." + name not in self.told and self.from_inside(current):
                self.told.add("builtins." + name)
                found.append("builtins." + name)
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

    # -- tests ----------------------------------------------------------------------------------------------------------------------

    def trouble_with(self, path, module):
        """Why the tests of a file are not those that lay there when the runner began; empty when nothing says so."""
        path = os.path.abspath(path)
        if path not in self.sources:
            self.sources[path] = self._trouble_with(path, module)
        return self.sources[path]

    def _trouble_with(self, path, module):
        if not path.startswith(self.root):
            return ""
        if self._is_later(path):
            return "%s was written while the runner ran" % path
        folder = os.path.dirname(path)
        while folder in self.folders or len(folder) >= len(self.root):
            try:
                found = os.stat(folder)
            except OSError:
                return "%s is gone" % folder
            if self.folders.get(folder) != found.st_ino:
                return "%s is not the folder that it was" % folder
            folder = os.path.dirname(folder)
        loader = getattr(module, "__loader__", None)
        if loader is not None and self.from_inside(type(loader)):
            return "%s was loaded by what is in the repository" % path
        first = sys.meta_path[0] if sys.meta_path else None
        if first is not None and self.from_inside(first if isinstance(first, type) else type(first)):
            return "what is in the repository stands before what loads %s" % path
        return ""

    def cached_trouble(self, module):
        """The same of bytecode, in a process that writes none."""
        cached = getattr(module, "__cached__", None)
        return "%s was written while the runner ran" % cached if cached and self._is_below(cached) and self._is_later(cached) else ""

    def know_class(self, kind):
        """A class of tests as it is now."""
        for each in getattr(kind, "__mro__", ())[:-1]:
            self.classes.setdefault(each, self._of_tests(each))

    def class_changed(self, kind):
        """What a class of tests got since, from inside."""
        for each in getattr(kind, "__mro__", ())[:-1]:
            known = self.classes.get(each)
            for name, value in self._of_tests(each).items() if known is not None else ():
                if known.get(name) is not value and self.from_inside(value):
                    return "%s.%s" % (each.__name__, name)
        return ""

    def _of_tests(self, kind):
        return {name: value for name, value in list(vars(kind).items()) if name.startswith("assert") or name in OF_TESTS}

    def may_fail(self, files, kind, value):
        """Whether the tests themselves say that some of theirs are expected to fail: the file of one, of its function or of its class."""
        files = set(files)
        code = code_of(value)
        if code is not None:
            files.add(code.co_filename)
        for each in getattr(kind, "__mro__", ()):
            if each.__module__.split(".")[0] == "unittest":
                continue
            files.add(getattr(sys.modules.get(each.__module__), "__file__", None))
        return any(self._mentions(path) for path in files if path and os.path.isabs(path))

    def speaks_of_leaving(self, path):
        """Whether a file ends the process itself, by `os._exit`."""
        return self._mentions(path, (b"_exit",))

    def _mentions(self, path, words=EXPECTED_TO_FAIL):
        key = words, path
        if key not in self.sources:
            try:
                with open(path, "rb") as file:
                    content = file.read()
            except OSError:
                content = b""
            self.sources[key] = not self._is_later(path) and any(word in content for word in words)
        return self.sources[key]

    def _is_later(self, path):
        """A time that nobody but the kernel sets."""
        try:
            return os.stat(path).st_ctime > self.began
        except OSError:
            return False

    def _is_below(self, path):
        return os.path.realpath(path).startswith(self.root)

    def _folders(self):
        for folder, inner, _ in os.walk(self.root):
            inner[:] = [name for name in inner if name not in NO_FOLDERS]
            with contextlib.suppress(OSError):
                yield folder.rstrip(os.sep) or os.sep, os.stat(folder).st_ino

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


def let_no_test_stop_quietly():
    """`_ShouldStop` ends a test of which a part has failed. Raised where none has, unittest would call the test a success."""
    case = sys.modules.get("unittest.case")
    outcome, stop = getattr(case, "_Outcome", None), getattr(case, "_ShouldStop", None)
    plain = getattr(outcome, "testPartExecutor", None)
    if plain is None or stop is None:
        return

    @contextlib.contextmanager
    def testPartExecutor(self, *more, **named):
        with plain(self, *more, **named):
            try:
                yield
            except stop:
                if self.success and not self.expectedFailure:
                    raise RuntimeError("the test was stopped, and no part of it had failed") from None
                raise

    outcome.testPartExecutor = testPartExecutor

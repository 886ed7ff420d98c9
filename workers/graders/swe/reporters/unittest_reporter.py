"""For unittest, and for Django's runner on it: a `sitecustomize` that stands first on the path and so runs before anything of a repository.

It listens where every result of every runner passes, `unittest.TestResult`, and does what the `sitecustomize` does that it stands before.
What counts is the outermost run of a `TextTestRunner` and its one result: tests that run tests are not heard, and a run that begins while
a module is being imported is no run. After it, tests of ours are run, of which some must fail: what makes all tests pass makes those pass.
"""

import contextlib
import os
import sys

CHANNEL = "@CHANNEL@"
WATCH = "@WATCH@"
CANARIES = "@CANARIES@"
MODULES = ("unittest.case", "unittest.suite", "unittest.result", "unittest.runner", "unittest.loader", "unittest.main", "unittest")
NAMESPACES = ("unittest",)
RUNNERS = ("unittest", "runtests", "manage.py", "setup.py")
"""Words of command lines that run tests: these connect at once, others when the first test begins."""
HERE = os.path.dirname(os.path.abspath(__file__))


def names_of(test):
    """How this test may be called: its id, as each version of Python shows it, and its docstring, which some runners show instead."""
    whole = test.id()
    names = [whole, str(test)]
    owner, _, method = whole.rpartition(".")
    method = getattr(test, "_testMethodName", method)
    if owner:
        names += ["%s (%s)" % (method, owner), "%s (%s.%s)" % (method, owner, method)]
    described = test.shortDescription() if hasattr(test, "shortDescription") else None
    if described:
        names.append(described)
    return sorted(set(names), key=names.index)


class Reporter:
    def __init__(self):
        self.send = None
        self.watch = None
        self.verdicts = {}
        self.counts = {}
        self.codes = {}
        self.owner = os.getpid()
        self.depth = 0
        self.result = None

    def connect(self):
        if self.send is None and os.getpid() == self.owner:
            channel = __import__(CHANNEL)
            self.send = channel.connect("unittest", globals(), whole_stack=False)[0] or (lambda event: None)
            __import__(WATCH).let_no_test_stop_quietly()
            sys.dont_write_bytecode = True  # so whose bytecode is newer was put there
            self.watch = __import__(WATCH).RunnerWatch(MODULES, NAMESPACES, os.getcwd())
            for name in (CHANNEL, WATCH):
                sys.modules.pop(name, None)

    def is_heard(self, result):
        """Whether this is the result of the outermost run."""
        if os.getpid() != self.owner or not self.depth:
            return False
        if self.result is None and self.depth == 1:
            self.result = result
        return self.result is result

    def begin(self, result, test):
        if not self.is_heard(result):
            return
        self.connect()
        self.verdicts[id(test)] = []
        name = getattr(test, "_testMethodName", "")
        replaced = name in vars(test) or "run" in vars(test)
        replaced = replaced or any(key.startswith("assert") and self.watch.from_inside(value) for key, value in vars(test).items())
        if replaced or self.watch.was_replaced(getattr(test, name, None), self.codes.get(test.id())):
            self.send({"e": "tampering", "why": "the test %s was replaced by another one" % test.id()})
        self.send({"e": "begin", "t": names_of(test)})

    def know(self, suite):
        """The functions of all tests of a suite, before the first of them runs."""
        self.connect()
        if self.watch is None:
            return
        waiting = [suite]
        while waiting:
            each = waiting.pop()
            if hasattr(each, "_testMethodName"):
                self.codes[each.id()] = self.watch.code_of(getattr(each, each._testMethodName, None))
                self.watch.know_class(type(each))
                self._look_at(sys.modules.get(type(each).__module__))
            else:
                with contextlib.suppress(TypeError):  # a runner's own kind of test may be no suite
                    waiting += list(each)

    def _look_at(self, module):
        """The file that tests are from."""
        path = getattr(module, "__file__", None)
        trouble = path and (self.watch.trouble_with(path, module) or self.watch.cached_trouble(module))
        if trouble and trouble not in self.watch.told:
            self.watch.told.add(trouble)
            self.send({"e": "tampering", "why": trouble})

    def note(self, result, test, verdict):
        if not self.is_heard(result):
            return
        if id(test) in self.verdicts:
            self.verdicts[id(test)].append(verdict)
        else:  # of a class or a module that could not be set up: no test began
            self.connect()
            self._end(test, verdict)

    def end(self, result, test):
        verdicts = self.verdicts.pop(id(test), None) if self.is_heard(result) else None
        if verdicts is None:
            return
        for bad in ("FAILED", "ERROR", "SKIPPED", "XFAIL", "XPASS", "PASSED"):
            if bad in verdicts:
                self._end(test, bad)
                return
        self._end(test, "NO_END")

    def _end(self, test, verdict):
        if verdict == "XFAIL" and not self.watch.may_fail((), type(test), getattr(test, getattr(test, "_testMethodName", ""), None)):
            verdict = "XFAIL_NOTRUN"  # nothing of the tests asked for it
        changed = self.watch.class_changed(type(test))
        if changed:
            self.send({"e": "tampering", "why": "%s of a class of tests was replaced" % changed})
        for name in self.watch.changed():
            self.send({"e": "tampering", "why": "the runner's %s was replaced" % name})
        self.counts[verdict] = self.counts.get(verdict, 0) + 1
        self.send({"e": "end", "t": names_of(test), "s": verdict})

    def run(self, run, runner, test):
        """A run of a runner."""
        self.depth += 1
        try:
            if self.depth == 1 and os.getpid() == self.owner:
                self.know(test)
                frame = sys._getframe(1)
                while frame is not None:
                    if frame.f_code.co_filename.startswith("<frozen importlib"):
                        self.send({"e": "tampering", "why": "a runner was started by a module that was being imported"})
                        break
                    frame = frame.f_back
            result = run(runner, test)
            if self.depth == 1:
                self.finish(result)
            return result
        finally:
            self.depth -= 1
            if not self.depth:
                self.result = None

    def _canaries(self):
        """How tests of ours end where the others ran; None where there is no telling."""
        unittest = sys.modules["unittest"]
        sys.path.insert(0, HERE)
        try:
            ends = []
            for test in __import__(CANARIES).TESTS:
                result = unittest.TestResult()
                unittest.FunctionTestCase(test).run(result)
                ends.append("passed" if result.testsRun == 1 and result.wasSuccessful() and not result.skipped else "failed")
        except Exception as broken:  # noqa: BLE001  # whatever it is, it is told: they run where every test runs
            self.send({"e": "tampering", "why": "tests of ours could not be run: %r" % broken})
            return None
        finally:
            sys.path.remove(HERE)
            sys.modules.pop(CANARIES, None)
        return ends

    def finish(self, result):
        if self.send is None or os.getpid() != self.owner:
            return
        self.send({"e": "canaries", "ends": self._canaries()})
        for name in self.watch.changed():
            self.send({"e": "tampering", "why": "the runner's %s was replaced" % name})
        shown = {"ran": result.testsRun, "failed": len(result.failures), "error": len(result.errors)}
        well = result.wasSuccessful()
        self.send({"e": "finish", "exit": 0 if well else 1, "counts": self.counts, "shown": shown, "verbose": 0})


def listen(reporter):
    import unittest
    import unittest.loader
    import unittest.main
    import unittest.runner

    kind = unittest.TestResult

    def wrap(name, act):
        plain = getattr(kind, name, None)
        if plain is None:
            return

        def told(self, test, *more):
            act(self, test, *more)
            return plain(self, test, *more)

        told.__name__ = name
        told.__doc__ = plain.__doc__
        setattr(kind, name, told)

    wrap("startTest", reporter.begin)
    wrap("addSuccess", lambda result, test: reporter.note(result, test, "PASSED"))
    wrap("addFailure", lambda result, test, error: reporter.note(result, test, "FAILED"))
    wrap("addError", lambda result, test, error: reporter.note(result, test, "ERROR"))
    wrap("addSkip", lambda result, test, reason: reporter.note(result, test, "SKIPPED"))
    wrap("addExpectedFailure", lambda result, test, error: reporter.note(result, test, "XFAIL"))
    wrap("addUnexpectedSuccess", lambda result, test: reporter.note(result, test, "XPASS"))
    wrap("addSubTest", lambda result, test, subtest, error: reporter.note(result, test, "FAILED") if error is not None else None)
    wrap("stopTest", reporter.end)
    run = unittest.runner.TextTestRunner.run

    def run_and_tell(self, test):
        return reporter.run(run, self, test)

    unittest.runner.TextTestRunner.run = run_and_tell


def what_we_stand_before():
    """Runs the next `sitecustomize` of the path."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    found = PathFinder.find_spec("sitecustomize", [path for path in sys.path if os.path.abspath(path or ".") != HERE])
    if found is not None and found.loader is not None:
        found.loader.exec_module(module_from_spec(found))


def begin():
    """Everything of the reporter is in here: nothing of it is in this module."""
    reporter = Reporter()
    try:
        with open("/proc/self/cmdline", "rb") as file:
            line = file.read().decode("utf-8", "replace")
    except OSError:
        line = " ".join(getattr(sys, "orig_argv", ()))
    if "pip" not in line.split("\0"):
        listen(reporter)
        if any(word in line for word in RUNNERS):
            reporter.connect()


if os.environ.get("RSREPORT_SOCKET"):
    begin()
what_we_stand_before()

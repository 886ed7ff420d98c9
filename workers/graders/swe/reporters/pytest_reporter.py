"""A plugin of pytest that tells the recorder of each test as it begins and ends. Loaded by `-p` before any file of the repository.

A test's end is what its reports say, or worse: whether the test function raised is seen here too, independently of the report about it.
After the last test, tests of ours go through the same runner, of which some must fail: what makes all tests pass makes those pass too.
They are in no count, report or exit code of the run.
"""

import contextlib
import os
import sys

import pytest

CHANNEL = __name__.replace("_plugin", "_channel")
WATCH = __name__.replace("_plugin", "_watch")
CANARIES = "@CANARIES@"
HERE = os.path.dirname(os.path.abspath(__file__))
MODULES = (
    "_pytest.runner",
    "_pytest.python",
    "_pytest.unittest",
    "_pytest.reports",
    "_pytest.main",
    "_pytest.skipping",
    "_pytest.outcomes",
    "_pytest.python_api",
    "_pytest.raises",
    "_pytest.fixtures",
    "_pytest.nodes",
    "_pytest.terminal",
    "_pytest.assertion",
    "_pytest.assertion.rewrite",
    "pluggy._callers",
    "pluggy.callers",
    "pluggy._hooks",
    "pluggy.hooks",
    "pluggy._manager",
    "pluggy.manager",
    "pluggy._result",
    "unittest.case",
    "unittest.suite",
    "unittest.result",
    "pytest",
)
NAMESPACES = ("pytest",)
HOOKS = (
    "pytest_runtest_protocol",
    "pytest_runtest_makereport",
    "pytest_runtest_setup",
    "pytest_runtest_call",
    "pytest_runtest_logreport",
    "pytest_pyfunc_call",
    "pytest_report_teststatus",
    "pytest_collection_modifyitems",
    "pytest_runtestloop",
    "pytest_collectreport",
)


class Reporter:
    def __init__(self, send, stack, watch):
        self.send = send
        self.stack = stack
        self.watch = watch
        self.run_test = sys.modules["_pytest.runner"].runtestprotocol
        self.implementations = {}
        self.left = False
        self.phases = {}
        self.raised = {}
        self.codes = {}
        self.items = {}
        self.due = []
        self.stopped_by = {}
        self.counts = {}
        self.session = None
        self.plugins = None
        self.root = None

    # -- what happens ---------------------------------------------------------------------------------------------------------------

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session):
        self.session = session
        self.plugins = self._who_implements(session.config)
        for implementation in self._implementations(session.config):
            self.implementations[implementation] = implementation.function
        for plugin in session.config.pluginmanager.get_plugins():
            module = plugin if hasattr(plugin, "__file__") else sys.modules.get(type(plugin).__module__)
            path = getattr(module, "__file__", None) or ""
            if os.path.basename(path) != "conftest.py":
                self.stack.trust_files(module, whole_folder=os.path.isfile(os.path.join(os.path.dirname(path), "__init__.py")))

    @pytest.hookimpl(trylast=True)
    def pytest_itemcollected(self, item):
        self.codes[item.nodeid] = self.watch.code_of(getattr(item, "obj", None))
        self.items[item.nodeid] = item, type(item)
        self.watch.know_class(getattr(item, "cls", None))
        trouble = self.watch.trouble_with(str(item.fspath), getattr(item, "module", None))
        if trouble and trouble not in self.watch.told:
            self.watch.told.add(trouble)
            self._tell(trouble)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid, location):
        self.phases[nodeid] = {}
        self.send({"e": "begin", "t": self._names(nodeid)})

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item):
        replaced = {"runtest", "ihook"}.intersection(vars(item)) or type(item) is not self.items.get(item.nodeid, (item, type(item)))[1]
        if replaced or self.watch.was_replaced(getattr(item, "obj", None), self.codes.get(item.nodeid)):
            self._tell("the test %s was replaced by another one" % item.nodeid)
        outcome = yield
        raised = getattr(outcome, "exception", None)
        if raised is None:
            info = getattr(outcome, "_excinfo", None)
            raised = info[1] if info else None
        if isinstance(raised, pytest.xfail.Exception):
            self.stopped_by[item.nodeid] = _caller_of(raised)
        self.raised[item.nodeid] = raised is not None and not isinstance(raised, pytest.skip.Exception)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report):
        phases = self.phases.setdefault(report.nodeid, {})
        if report.outcome == "rerun":
            phases.clear()
            return
        phases.setdefault(report.when, []).append((report.outcome, getattr(report, "wasxfail", None)))

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self, nodeid, location):
        status = self._status(nodeid)
        if status == "PASSED" and self.raised.get(nodeid):
            self._tell("%s raised, and was reported as passed" % nodeid)
            status = "FAILED"
        if status in ("PASSED", "XPASS", "XFAIL") and nodeid in self.items and nodeid not in self.raised and not self._forks():
            self._tell("%s ended as %s, and was never called" % (nodeid, status))
        if status == "XFAIL" and not self._may_fail(nodeid):
            status = "XFAIL_NOTRUN"  # nothing of the tests asked for it
        changed = self.watch.class_changed(getattr(self.items.get(nodeid, (None,))[0], "cls", None))
        if changed:
            self._tell("%s of a class of tests was replaced" % changed)
        for name in self.watch.changed():
            self._tell("the runner's %s was replaced" % name)
        self.counts[status] = self.counts.get(status, 0) + 1
        self.send({"e": "end", "t": self._names(nodeid), "s": status})

    @pytest.hookimpl(trylast=True)
    def pytest_collectreport(self, report):
        if report.failed:
            self.counts["ERROR"] = self.counts.get("ERROR", 0) + 1
            self.send({"e": "end", "t": self._names(report.nodeid or "."), "s": "ERROR"})

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session):
        self.due = list(getattr(session, "items", ()))
        yield
        left = list(getattr(session, "items", ()))
        if len(left) != len(self.due) or any(one is not other for one, other in zip(left, self.due)):
            self._tell("the tests to be run were changed while they ran")
        self.send({"e": "canaries", "ends": self._canaries(session)})

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self, excinfo):
        interrupted = getattr(type(self.session), "Interrupted", ())
        self.left = not isinstance(excinfo.value, interrupted)  # that is the runner's own, of files that cannot be collected

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session, exitstatus):
        yield
        if self.left:  # by Ctrl-C or `pytest.exit`, which may say 0: a run that was broken off
            return
        config = session.config
        for implementation, function in self.implementations.items():
            if implementation.function is not function and self.watch.from_inside(implementation.function):
                self._tell("%s of plugin %s was replaced" % (function.__name__, implementation.plugin_name))
        for name in sorted(self._who_implements(config) - (self.plugins or set())):
            self._tell("%s joined the runner while it ran" % name)
        for name in self.watch.changed():
            self._tell("the runner's %s was replaced" % name)
        terminal = config.pluginmanager.getplugin("terminalreporter")
        stats = getattr(terminal, "stats", {})
        self.send(
            {
                "e": "finish",
                "exit": int(session.exitstatus),
                "counts": self.counts,
                "shown": {kind: len(stats.get(kind, ())) for kind in ("passed", "failed", "error")},
                "verbose": config.getoption("verbose", 0) if terminal is not None else -9,
                "parallel": not self.due,
                "leaves": any(self.watch.speaks_of_leaving(path) for path in self._conftests(config)),
            }
        )

    def _canaries(self, session):
        """How tests of ours end where the others ran; None where there is no telling."""
        parent = self.due[-1].getparent(pytest.Module) if self.due else None
        if parent is None or not hasattr(pytest.Function, "from_parent"):
            return None
        sys.path.insert(0, HERE)
        style, session.config.option.tbstyle = session.config.option.tbstyle, "native"  # the others read whole files to show a line
        try:
            tests = __import__(CANARIES).TESTS
            fixtures = sys.modules["_pytest.fixtures"].FuncFixtureInfo
            code = fixtures.__init__.__code__
            ends = []
            for test in tests:
                nothing = fixtures(*({} if field == "name2fixturedefs" else () for field in code.co_varnames[1 : code.co_argcount]))
                item = pytest.Function.from_parent(parent, name=test.__name__, callobj=test, fixtureinfo=nothing)
                outcomes = {report.when: report.outcome for report in self.run_test(item, log=False, nextitem=None)}
                ends.append(outcomes.get("call", "") if outcomes.get("setup") == "passed" else "")
        except Exception as broken:  # noqa: BLE001  # whatever it is, it is told: they run where every test runs
            self._tell("tests of ours could not be run: %r" % broken)
            return None
        finally:
            session.config.option.tbstyle = style
            sys.path.remove(HERE)
            sys.modules.pop(CANARIES, None)
        return ends

    # -- what it comes to -----------------------------------------------------------------------------------------------------------

    def _status(self, nodeid):
        phases = self.phases.pop(nodeid, {})
        setup, call, teardown = (phases.get(when, []) for when in ("setup", "call", "teardown"))
        if any(outcome == "failed" for outcome, _ in call):
            return "FAILED"
        if any(outcome == "failed" for outcome, _ in setup + teardown):
            return "ERROR"
        for outcome, xfail in setup:
            if outcome == "skipped":
                return "SKIPPED" if xfail is None else "XFAIL_NOTRUN"
        for outcome, xfail in call:
            if outcome == "skipped":
                return "SKIPPED" if xfail is None else "XFAIL"
        if not call or not setup or not teardown:
            return "NO_END"
        return "PASSED" if all(xfail is None for _, xfail in call) else "XPASS"

    def _may_fail(self, nodeid):
        """Whether the test, or a `conftest.py`, speaks of expected failures; true where we did not see it collected (pytest-xdist)."""
        if nodeid not in self.items:
            return True
        item = self.items[nodeid][0]
        files = self._conftests(item.config) | {str(item.fspath)}
        obj = getattr(item, "obj", None)
        if nodeid in self.stopped_by:
            return self.watch.may_fail({self.stopped_by[nodeid]}, None, None) and (
                self.stopped_by[nodeid] in files or self.stopped_by[nodeid] == getattr(self.watch.code_of(obj), "co_filename", None)
            )
        return self.watch.may_fail(files, getattr(item, "cls", None), obj)

    def _forks(self):
        """Whether tests are called in processes of their own (pytest-forked), where nobody hears us."""
        return bool(self.session.config.getoption("forked", False))

    def _names(self, nodeid):
        try:
            seen = self.session.config.cwd_relative_nodeid(nodeid)
        except (AttributeError, TypeError, ValueError):  # not every version has it
            seen = nodeid
        return [nodeid] if seen == nodeid else [nodeid, seen]

    def _who_implements(self, config):
        """Of the hooks on which results rest: who has one, but for `conftest.py` files."""
        found = set()
        for implementation in self._implementations(config):
            path = getattr(implementation.plugin, "__file__", "") or ""
            if os.path.basename(path) != "conftest.py":
                found.add("%s of plugin %s" % (implementation.function.__name__, implementation.plugin_name))
        return found

    def _implementations(self, config):
        callers = (getattr(config.hook, name, None) for name in HOOKS)
        return [each for caller in callers if caller is not None for each in caller.get_hookimpls()]

    def _conftests(self, config):
        files = {getattr(plugin, "__file__", None) or "" for plugin in config.pluginmanager.get_plugins()}
        return {path for path in files if os.path.basename(path) == "conftest.py"}

    def _tell(self, why):
        self.send({"e": "tampering", "why": why})


def _caller_of(raised):
    """The file that called `pytest.xfail`."""
    trace, path = raised.__traceback__, ""
    while trace is not None:
        found = trace.tb_frame.f_code.co_filename
        path = path if os.path.join("_pytest", "outcomes.py") in found else found
        trace = trace.tb_next
    return path


def begin():
    """The hook that registers the reporter: nothing else of it is in this module, and the module is in no list."""
    if os.environ.get("PYTEST_XDIST_WORKER"):
        return None
    channel = __import__(CHANNEL)
    send, stack = channel.connect("pytest", globals(), whole_stack=True)
    if send is None:
        return None
    for name in MODULES:
        with contextlib.suppress(ImportError):
            __import__(name)
    for name in ("_pytest", "pytest", "pluggy", "unittest"):
        stack.trust_files(sys.modules.get(name), whole_folder=True)
    __import__(WATCH).let_no_test_stop_quietly()
    # bytecode of tests is not believed: whoever is imported before them may have written it
    sys.modules["_pytest.assertion.rewrite"]._read_pyc = lambda *source, **named: None
    watch = __import__(WATCH).RunnerWatch((*MODULES, __name__), NAMESPACES, os.getcwd())
    for name in (CHANNEL, WATCH):
        sys.modules.pop(name, None)
    made = [Reporter(send, stack, watch)]

    def configure(config):
        sys.modules.pop(__name__, None)
        if made:
            config.pluginmanager.register(made.pop(), "reporter-" + __name__)

    return configure


pytest_configure = begin()
if pytest_configure is None:
    del pytest_configure

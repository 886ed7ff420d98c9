"""`ops/launch test` fails when a check fails, when nothing was tested, and, where it must, when a leg is missing."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ops.launcher import checks
from ops.launcher.environment import Environment
from ops.launcher.legs import Leg
from ops.launcher.sandboxes import Ground
from ops.launcher.steps import STEPS, Step, choose

VALKEY = Leg(name="valkey", path=Path("/servers/valkey"), version="9.1.2")
NO_REDIS7 = Leg(name="redis7", why_missing="no redis-server on this system", how_to_enable="./ops/launch test --system-packages")

PROMTOOL = Leg(name="promtool", path=Path("/tools/promtool"), version="2.42.0")
NO_PROMTOOL = Leg(name="promtool", why_missing="no promtool on this system", how_to_enable="./ops/launch test --system-packages")

TESTS = Path(__file__).resolve().parents[2]
PASSING = "def test_it_holds():\n    assert True\n"
FAILING = "def test_it_does_not():\n    assert 1 == 2\n"


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """A project whose environment's Python is the one that runs this test, and whose pytest loads no plugins, to start at once."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    environment = Environment(tmp_path)
    environment.python.parent.mkdir(parents=True)
    environment.python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    environment.python.chmod(0o755)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return environment


def add_test(environment: Environment, folder: str, text: str) -> None:
    (environment.root / "tests" / folder).mkdir(parents=True)
    (environment.root / "tests" / folder / f"test_{Path(folder).name}.py").write_text(text)


def bare(environment: Environment, *legs: Leg) -> Ground:
    """The ground of somebody who is an ordinary user."""
    return Ground(environment=environment, user=None, legs=legs)


def steps(*names: str) -> list[Step]:
    """Each in one process: several take a second to start, and what is tested here does not depend on them."""
    return [replace(step, arguments=()) for step in STEPS if step.name in names]


def test_the_order_is_that_of_ci_and_quick_is_a_part_of_it() -> None:
    full = [step.name for step in choose([], quick=False)]
    quick = [step.name for step in choose([], quick=True)]

    assert full == ["format", "lint", "types", "imports", "whole", "sandboxes"]
    assert quick == ["format", "lint", "types", "imports", "quick"]
    assert [step.name for step in choose(["lint", "e2e"], quick=False)] == ["lint", "e2e"]


def test_the_full_run_has_the_tests_of_all_its_parts() -> None:
    parts = {folder for step in STEPS if step.is_part for folder in step.test_folders}
    whole = next(step for step in choose([], quick=False) if step.name == "whole")
    folders = {path.parent.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py")}

    assert set(whole.test_folders) == parts == folders


def test_all_steps_run_and_their_tests_are_counted(environment: Environment, capfd: pytest.CaptureFixture[str]) -> None:
    add_test(environment, "unit", PASSING)
    add_test(environment, "faults", FAILING)
    add_test(environment, "e2e", "import pytest\n\n@pytest.mark.skipif(True, reason='why')\ndef test_skipped():\n    pass\n\n" + PASSING)

    code = checks.run(environment, steps("tests", "faults", "cases", "e2e"), [VALKEY], bare(environment), quick=False, strict=False)

    said = capfd.readouterr().out
    assert code == 1
    assert "no tests in tests/integration, tests/contract, tests/model" in said
    assert "= 1 passed in " in said  # pytest's own closing line
    assert "= 1 failed in " in said
    assert "\ntests: 2 passed, 1 failed, 1 skipped\n" in said
    assert said.splitlines()[-1] == "Not all is well: faults"


def test_a_folder_without_tests_is_no_failure_but_a_run_without_any_is(environment: Environment, capfd: pytest.CaptureFixture[str]) -> None:
    add_test(environment, "unit", PASSING)
    assert checks.run(environment, steps("tests", "faults"), [VALKEY], bare(environment), quick=False, strict=False) == 0

    assert checks.run(environment, steps("faults", "cases"), [VALKEY], bare(environment), quick=False, strict=False) == 1
    assert "no test was executed" in capfd.readouterr().out


def test_a_pytest_that_collects_nothing_counts_as_no_test(environment: Environment, capfd: pytest.CaptureFixture[str]) -> None:
    add_test(environment, "cases", "def helper():\n    pass\n")

    assert checks.run(environment, steps("cases"), [VALKEY], bare(environment), quick=False, strict=False) == 1
    assert "no test was executed" in capfd.readouterr().out


ONCE = """
import pytest
from pathlib import Path

class TestInAClass:
    @pytest.mark.parametrize("word", ["a/b c", "["])
    def test_it_fails_once(self, word):
        seen = Path("seen" + str(ord(word[0])))
        was = seen.exists()
        seen.touch()
        assert was
"""


@pytest.mark.slow
def test_what_fails_once_and_passes_twice_alone_is_named_and_fails_no_step(
    environment: Environment, capfd: pytest.CaptureFixture[str]
) -> None:
    add_test(environment, "unit", PASSING + ONCE)

    assert checks.run(environment, steps("tests"), [VALKEY], bare(environment), quick=False, strict=False) == 0

    said = capfd.readouterr().out
    assert "= 2 failed, 1 passed in " in said
    assert "tests: 3 passed, 0 failed, 0 skipped" in said
    assert [line.strip() for line in said.splitlines()[-2:]] == [
        "tests/unit/test_unit.py::TestInAClass::test_it_fails_once[a/b c]",
        "tests/unit/test_unit.py::TestInAClass::test_it_fails_once[[]",
    ]


EVERY_OTHER_TIME = """
from pathlib import Path

def test_it_fails_every_other_time():
    seen = Path("seen")
    seen.rmdir() if (was := seen.exists()) else seen.mkdir()
    assert was
"""


@pytest.mark.slow
@pytest.mark.parametrize("text", [EVERY_OTHER_TIME, "".join(FAILING.replace("it_", f"{n}_") for n in range(6))], ids=["again", "six"])
def test_what_fails_again_or_with_many_others_fails_its_step(
    environment: Environment, capfd: pytest.CaptureFixture[str], text: str
) -> None:
    """Every other time: the second of the two looks fails. Six at once: nobody looks again."""
    add_test(environment, "unit", text)

    assert checks.run(environment, steps("tests"), [VALKEY], bare(environment), quick=False, strict=False) == 1

    assert capfd.readouterr().out.splitlines()[-1] == "Not all is well: tests"


WAITS = """
import sys, time
from pathlib import Path
until = time.monotonic() + 30
while not any(Path("tests").rglob("test_unit.*.pyc")):
    if time.monotonic() > until:
        sys.exit("nothing was compiled")
    time.sleep(0.01)
"""


def test_tests_are_compiled_beside_the_checks_that_come_first(environment: Environment, capfd: pytest.CaptureFixture[str]) -> None:
    """A first check that ends as soon as it sees what pytest keeps of a test file that it imported."""
    add_test(environment, "unit", PASSING)
    (environment.root / "waits.py").write_text(WAITS)
    first, *more = [Step(name="lint", module="waits"), *steps("tests", "faults")]

    assert checks.run(environment, [first, *more], [VALKEY], bare(environment), quick=False, strict=False) == 0
    assert "ok: lint" in capfd.readouterr().out


@pytest.mark.slow
def test_a_pytest_that_cannot_even_collect_fails(environment: Environment, capfd: pytest.CaptureFixture[str]) -> None:
    add_test(environment, "unit", PASSING)
    add_test(environment, "e2e", "import a_module_that_is_not_there\n")

    assert checks.run(environment, steps("tests", "e2e"), [VALKEY], bare(environment), quick=False, strict=False) == 1
    assert capfd.readouterr().out.splitlines()[-1] == "Not all is well: e2e"


@pytest.mark.slow
def test_a_missing_leg_is_listed_and_fails_only_where_none_may_be_missing(
    environment: Environment, capfd: pytest.CaptureFixture[str]
) -> None:
    add_test(environment, "unit", PASSING)

    assert checks.run(environment, steps("tests"), [VALKEY, NO_REDIS7], bare(environment), quick=False, strict=False) == 0
    said = capfd.readouterr().out
    assert "redis7: no redis-server on this system" in said
    assert "./ops/launch test --system-packages" in said

    assert checks.run(environment, steps("tests"), [VALKEY, NO_REDIS7], bare(environment), NO_PROMTOOL, quick=False, strict=True) == 1
    assert "left out: redis7, promtool" in capfd.readouterr().out


def test_the_tests_are_told_the_servers_and_promtool_and_nothing_of_a_person_s_own_redis(
    environment: Environment, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLSTREAM_REDIS_URL", "redis://production")
    monkeypatch.setenv("ROLLSTREAM_VLLM_PYTHON", "/vllm/python")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    add_test(
        environment,
        "unit",
        "import os\n\ndef test_environment():\n"
        "    ours = {name: value for name, value in os.environ.items() if name.startswith('ROLLSTREAM_')}\n"
        "    assert ours == {'ROLLSTREAM_TEST_SERVERS': 'valkey=/servers/valkey', 'ROLLSTREAM_REQUIRE_SERVERS': 'valkey,redis7',\n"
        "                    'ROLLSTREAM_TEST_PROMTOOL': '/tools/promtool', 'ROLLSTREAM_REQUIRE_PROMTOOL': '1',\n"
        "                    'ROLLSTREAM_VLLM_PYTHON': '/vllm/python'}\n"
        "    assert 'PYTHONDONTWRITEBYTECODE' not in os.environ\n",
    )

    checks.run(environment, steps("tests"), [VALKEY, NO_REDIS7], bare(environment), PROMTOOL, quick=False, strict=True)

    assert "tests: 1 passed, 0 failed" in capfd.readouterr().out


NO_IMAGE = Leg(name="image", why_missing="no image was made here", how_to_enable="./ops/launch test --system-packages")
TOLD = """import os

def test_told():
    assert os.environ.get('ROLLSTREAM_REQUIRE_BACKENDS') == {required!r}
    assert os.environ.get('ROLLSTREAM_TEST_IMAGE') == {image!r}
    assert os.environ['PATH'].startswith({path!r})
"""


@pytest.mark.slow
def test_tests_of_sandboxes_run_in_their_own_step_only(environment: Environment, capfd: pytest.CaptureFixture[str]) -> None:
    add_test(environment, "contract", PASSING)
    add_test(environment, "contract/sandbox", PASSING)
    add_test(environment, "integration/sandbox_service", PASSING + FAILING)

    assert checks.run(environment, steps("tests"), [VALKEY], bare(environment), quick=False, strict=False) == 0
    assert "tests: 1 passed, 0 failed, 0 skipped" in capfd.readouterr().out

    assert checks.run(environment, steps("sandboxes"), [VALKEY], bare(environment), quick=False, strict=False) == 1
    said = capfd.readouterr().out
    assert "tests: 2 passed, 1 failed, 0 skipped" in said
    assert said.splitlines()[-1] == "Not all is well: sandboxes"


MEETS = """
import time
from pathlib import Path

def test_meets():
    Path("{mine}").touch()
    until = time.monotonic() + 30
    while not Path("{other}").exists():
        assert time.monotonic() < until, "the other step does not run"
        time.sleep(0.01)
"""


def test_tests_of_sandboxes_run_beside_the_others_and_speak_after_them(environment: Environment, capfd: pytest.CaptureFixture[str]) -> None:
    """Either pytest waits for what the other one writes. A failure of either is its own step's."""
    add_test(environment, "unit", MEETS.format(mine="unit", other="sandbox"))
    add_test(environment, "contract/sandbox", MEETS.format(mine="sandbox", other="unit") + FAILING)

    assert checks.run(environment, steps("whole", "sandboxes"), [VALKEY], bare(environment), quick=False, strict=False) == 1

    said = capfd.readouterr().out
    order = (
        "whole: pytest",
        "= 1 passed in ",
        "sandboxes: pytest",
        "= 1 failed, 1 passed in ",
        "ok: whole",
        "a second look",
        "FAILED (exit 1): sandboxes",
    )
    places = [said.index(words) for words in order]
    assert places == sorted(places)
    assert said.splitlines()[-1] == "Not all is well: sandboxes"


@pytest.mark.slow
def test_tests_of_sandboxes_are_told_what_is_there_and_what_may_not_be_missing(environment: Environment) -> None:
    ground = bare(
        environment, Leg(name="apptainer", path=Path("/opt/a/bin/apptainer"), version="1.4"), Leg(name="image", path=Path("/images/debian"))
    )
    asked = {"required": "process,bubblewrap,apptainer", "image": "/images/debian", "path": "/opt/a/bin:"}

    add_test(environment, "contract/sandbox", TOLD.format(**asked))
    assert checks.run(environment, steps("sandboxes"), [VALKEY], ground, quick=False, strict=True) == 0

    (environment.root / "tests/contract/sandbox/test_sandbox.py").write_text(TOLD.format(**asked | {"required": None}))
    assert checks.run(environment, steps("sandboxes"), [VALKEY], ground, quick=False, strict=False) == 0


@pytest.mark.slow
def test_a_missing_image_is_listed_and_fails_only_where_nothing_may_be_missing(
    environment: Environment, capfd: pytest.CaptureFixture[str]
) -> None:
    add_test(environment, "contract/sandbox", PASSING)
    ground = bare(environment, NO_IMAGE)

    assert checks.run(environment, steps("sandboxes"), [VALKEY], ground, quick=False, strict=False) == 0
    assert "image: no image was made here" in capfd.readouterr().out
    assert checks.run(environment, steps("sandboxes"), [VALKEY], ground, quick=False, strict=True) == 1
    assert "left out: image" in capfd.readouterr().out

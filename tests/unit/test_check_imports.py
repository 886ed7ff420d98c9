"""The import check finds what it is there to find."""

from pathlib import Path

import pytest

from ops.check_imports import read_modules, redis_below_the_stages, undeclared_packages, wrong_directions

DECLARED = {
    "dependencies": ["redis[hiredis]>=8", "numpy"],
    "optional-dependencies": {
        "workers": ["aiohttp>=3", "PyYAML"],
        "ops": ["rollstream[workers]", "typer"],
        "dev": ["pytest"],
    },
}
BROUGHT_BY = {"yaml": ["PyYAML"], "redis": ["redis"], "aiohttp": ["aiohttp"], "typer": ["typer"], "numpy": ["numpy"]}


def a_tree(root: Path, **sources: str) -> Path:
    """A project with these modules: `workers__tools__bash="import os"` is `workers/tools/bash.py`."""
    for name, source in sources.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return root


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("pipeline__keys", "from workers.tools import bash"),
        ("pipeline__keys", "def later():\n    import ops.cli"),
        ("trainer_client__client", "import workers.stages.run"),
        ("workers__stages__run", "import trainer_client"),
        ("workers__tools__bash", "from workers.agent.loop import run"),
        ("workers__tools__bash", "from ..agent import loop"),
        ("workers__sandbox__process", "from workers.tools import bash"),
        ("workers__llm__scripted", "from workers.sandbox.base import Sandbox"),
        ("workers__agent__loop", "from workers.graders import math"),
        ("workers__agent__loop", "from workers.handlers import math"),
        ("workers__handlers__math", "from workers.stages import run"),
        ("workers__stages__run", "from workers.worker import main"),
        ("ops__launcher__environment", "from pipeline.settings import Settings"),
        ("pipeline__keys", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from workers.agent import loop"),
    ],
)
def test_an_import_against_the_direction_is_named(tmp_path: Path, module: str, source: str) -> None:
    [found] = wrong_directions(read_modules(a_tree(tmp_path, **{module: source})))

    assert found.startswith(module.replace("__", "/") + ".py:")


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("workers__stages__run", "from workers.handlers.math import Math\nfrom pipeline.streams import Streams"),
        ("workers__agent__loop", "from workers.tools.bash import Bash\nfrom workers.llm import scripted\nfrom . import limits"),
        ("workers__tools__bash", "from workers.sandbox.base import Sandbox\nfrom workers.settings import Settings"),
        ("workers__worker", "from workers.stages import run\nfrom workers.handlers import math"),
        ("trainer_client__client", "from pipeline.messages import Job"),
        ("ops__demo", "import trainer_client, workers.worker, pipeline\nfrom ops.launcher import terminal"),
        ("pipeline__keys", "import os, workers_of_the_world"),
    ],
)
def test_an_import_with_the_direction_passes(tmp_path: Path, module: str, source: str) -> None:
    assert list(wrong_directions(read_modules(a_tree(tmp_path, **{module: source})))) == []


def test_redis_is_found_through_a_chain_of_our_modules_and_round_a_cycle(tmp_path: Path) -> None:
    tree = a_tree(
        tmp_path,
        pipeline__messages="from pipeline import codec",
        pipeline__codec="import pipeline.messages",
        pipeline__client="import redis.asyncio",
        pipeline__streams="import pipeline.messages\nfrom pipeline.client import connect",
        workers__agent__loop="from pipeline.messages import Job",
        workers__tools__bash="from pipeline.streams import Streams",
        workers__stages__run="from pipeline.streams import Streams",
    )

    [found] = redis_below_the_stages(read_modules(tree))

    assert found.endswith("workers.tools.bash -> pipeline.streams -> pipeline.client -> redis.asyncio")
    assert found.startswith("workers/tools/bash.py:")


@pytest.mark.parametrize(
    ("module", "source", "is_allowed"),
    [
        ("pipeline__client", "import redis, numpy, json", True),
        ("pipeline__client", "import aiohttp", False),
        ("pipeline__client", "def later():\n    import aiohttp", True),
        ("pipeline__client", "try:\n    import aiohttp\nexcept ImportError:\n    aiohttp = None", True),
        ("pipeline__client", "def later():\n    import unheard_of", False),
        ("trainer_client__client", "import typer", False),
        ("workers__worker", "import aiohttp, yaml", True),
        ("workers__worker", "import typer", False),
        ("ops__cli", "import typer, aiohttp", True),
        ("ops__cli", "import pytest", False),
        ("ops__launcher__commands", "def later():\n    import redis", False),
    ],
)
def test_a_package_must_be_declared_for_the_role_that_loads_it(tmp_path: Path, module: str, source: str, is_allowed: bool) -> None:
    found = list(undeclared_packages(read_modules(a_tree(tmp_path, **{module: source})), DECLARED, BROUGHT_BY))

    assert (found == []) is is_allowed


def test_a_program_that_runs_as_a_file_may_load_what_stands_beside_it(tmp_path: Path) -> None:
    """It finds `parts` beside itself and `above` one folder up, without our packages; `nowhere` is in neither."""
    tree = a_tree(
        tmp_path,
        workers__sandbox__local__program="import parts, above\nimport nowhere",
        workers__sandbox__local__parts="",
        workers__sandbox__above="",
        workers__tools__nowhere="",
    )

    [found] = undeclared_packages(read_modules(tree), DECLARED, BROUGHT_BY)

    assert "nowhere" in found

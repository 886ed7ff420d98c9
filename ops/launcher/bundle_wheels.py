"""The wheels of a bundle: what pip chooses for its target, from the index that pip is configured for.

Requirements have conditions on the Python (`; python_version < "3.12"`), and pip judges these by the Python that runs it, whatever it is
told of the target. So pip runs in a Python of the target's version. The machine may be another: no requirement of ours asks for it.
"""

import re
import subprocess
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from ops.launcher.bundle_target import Target
from ops.launcher.environment import WHEELS_ALONE, Environment
from ops.launcher.installs import run_pip

_OWN = re.compile(r"rollstream\[([\w,\s-]+)\]")


def version_of(python: Path) -> str:
    """`3.12`, of an interpreter.

    Raises:
        ValueError: it does not run.
    """
    question = "import sys; print('.'.join(map(str, sys.version_info[:2])))"
    try:
        asked = subprocess.run([python, "-I", "-c", question], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ValueError(f"{python}: {error.strerror}") from error
    if asked.returncode:
        raise ValueError(f"{python} does not run: {asked.stderr.strip()[-200:]}")
    return asked.stdout.strip()


def project_version(root: Path) -> str:
    """Of the project in a folder."""
    return str(_pyproject(root)["project"]["version"])  # type: ignore[index]  # a TOML table


def requirements_of(root: Path, extras: Iterable[str]) -> list[str]:
    """What the project asks for with these extras, and what installing it takes.

    Raises:
        ValueError: there is no such extra.
    """
    parsed = _pyproject(root)
    project, build = parsed["project"], parsed["build-system"]
    assert isinstance(project, dict)
    assert isinstance(build, dict)
    groups = project.get("optional-dependencies", {})
    found: dict[str, None] = dict.fromkeys([*project.get("dependencies", []), *build["requires"], "pip"])
    seen: set[str] = set()

    def add(extra: str) -> None:
        if extra in seen:
            return
        seen.add(extra)
        if extra not in groups:
            raise ValueError(f"there is no extra {extra}; there are {', '.join(sorted(groups))}")
        for requirement in groups[extra]:
            if own := _OWN.match(requirement):
                for name in own[1].split(","):
                    add(name.strip())
            else:
                found.setdefault(requirement)

    for extra in sorted({*extras} - WHEELS_ALONE.keys()):
        add(extra)
    return [*found]


def fetch_wheels(environment: Environment, python: Path, target: Target, extras: Iterable[str], folder: Path) -> Iterator[Path]:
    """Fetches them; answers the files.

    Args:
        python: of the target's version.

    Raises:
        InstallFailed: the index lacks one for the target, or was not reached.
        ValueError: there is no such extra.
    """
    extras = [*extras]
    runs = [requirements_of(environment.root, extras), *(["--no-deps", *WHEELS_ALONE[name]] for name in extras if name in WHEELS_ALONE)]
    for number, wanted in enumerate(runs):
        options = [word for word in wanted if word.startswith("--")]
        listed = folder / f"requirements-{number}.txt"
        listed.write_text("".join(f"{word}\n" for word in wanted if word not in options), encoding="utf-8")
        run_pip(
            environment.python,
            [
                *("--python", str(python), "download", "--only-binary", ":all:", "--dest", str(folder), *options),
                *target.pip_arguments(),
                *("--requirement", str(listed)),
            ],
            log=folder / "pip.log",
            cwd=environment.root,
        )
    yield from sorted(folder.glob("*.whl"))


def _pyproject(root: Path) -> dict[str, object]:
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))

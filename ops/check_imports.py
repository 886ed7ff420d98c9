"""Holds the direction of imports: who may know whom, who may know Redis, and which packages a role may need.

Run as `python -m ops.check_imports`; reads the sources, imports nothing of them. Three rules:

1. A part imports only itself and the parts that its line in `MAY_IMPORT` lists.
2. In `workers`, only the stages and what stands beside them reach a Redis library, also not through a module of `pipeline`.
3. What a part imports when it is loaded is declared for its role in pyproject.toml; what it imports later, inside a function or
   a `try`, is declared in some extra. The launcher needs no package at all; what runs elsewhere is not ours to declare, and
   a program that is run as a file finds what stands beside it by its bare name.
"""

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_WORKER_BASE = ("pipeline", "workers.settings")
_TOOLS_AND_BELOW = (*_WORKER_BASE, "workers.tools", "workers.sandbox", "workers.llm")

MAY_IMPORT: Mapping[str, tuple[str, ...]] = {
    "pipeline": (),
    "trainer_client": ("pipeline",),
    "workers.settings": ("pipeline",),
    "workers.llm": _WORKER_BASE,
    "workers.sandbox": _WORKER_BASE,
    "workers.tools": (*_WORKER_BASE, "workers.sandbox"),
    "workers.graders": _TOOLS_AND_BELOW,
    "workers.graders.swe.reporters": (),
    "workers.agent": _TOOLS_AND_BELOW,
    "workers.handlers": (*_TOOLS_AND_BELOW, "workers.agent", "workers.graders"),
    "workers.stages": (*_TOOLS_AND_BELOW, "workers.agent", "workers.graders", "workers.handlers"),
    "workers": ("pipeline",),
    "ops.launcher": (),
    "ops.bench.rival_programs": (),
    "ops.llm_server.inside_vllm": (),
    "ops": ("pipeline", "workers", "trainer_client"),
}
"""A module belongs to the longest name here that begins its own. A part includes what its listed parts' names begin."""

ELSEWHERE = ("ops.bench.rival_programs", "ops.llm_server.inside_vllm", "workers.graders.swe.reporters")
"""Programs that run in environments of their own, with what is installed there."""
KNOW_NO_REDIS = ("workers.handlers", "workers.agent", "workers.graders", "workers.tools", "workers.sandbox", "workers.llm")
REDIS_LIBRARIES = frozenset({"redis", "rq", "valkey"})

PACKAGES = ("pipeline", "trainer_client", "workers", "ops")
ROLES: Mapping[str, tuple[str, ...]] = {
    "pipeline": (),
    "trainer_client": (),
    "workers": ("workers",),
    "workers.llm.tiny": ("workers", "train-tiny"),
    "workers.stages.traces": ("workers", "traces"),
    "ops": ("workers", "ops"),
}
"""The extras that the environment of each package has, beside the base. A module has those of the longest name here that begins its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One module that another one imports."""

    target: str
    line: int
    is_at_load: bool
    """Whether it happens whenever the module is loaded: not inside a function, a `try` or `if TYPE_CHECKING`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One source file and what it imports."""

    name: str
    path: Path
    imports: tuple[Import, ...]


def part_of(module: str) -> str | None:
    """The entry of `MAY_IMPORT` that a module belongs to; None for a module that is not ours."""
    return max((part for part in MAY_IMPORT if _is_within(module, part)), key=len, default=None)


def _is_within(module: str, part: str) -> bool:
    return module == part or module.startswith(part + ".")


# --- reading ----------------------------------------------------------------------------------------------------------


def read_modules(root: Path) -> list[Module]:
    """Every module of the four packages under a folder."""
    found = []
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            dotted = ".".join(path.relative_to(root).with_suffix("").parts)
            name = dotted.removesuffix(".__init__")
            container = name if path.name == "__init__.py" else name.rpartition(".")[0]
            tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
            found.append(Module(name=name, path=path.relative_to(root), imports=tuple(_imports(tree, container, is_at_load=True))))
    return found


def _imports(node: ast.AST, container: str, *, is_at_load: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.Import(names=names):
                for alias in names:
                    yield Import(target=alias.name, line=child.lineno, is_at_load=is_at_load)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = ".".join(container.split(".")[: len(container.split(".")) - level + 1]) if level else ""
                source = ".".join(filter(None, (base, module)))
                for alias in names:
                    yield Import(target=f"{source}.{alias.name}", line=child.lineno, is_at_load=is_at_load)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Try() | ast.Lambda():
                yield from _imports(child, container, is_at_load=False)
            case ast.If(test=test) if "TYPE_CHECKING" in ast.unparse(test):
                yield from _imports(child, container, is_at_load=False)
            case _:
                yield from _imports(child, container, is_at_load=is_at_load)


def _ours(target: str, names: frozenset[str]) -> str | None:
    """The module of ours that an import names: `pipeline.keys.job_key` is a name in `pipeline.keys`."""
    while target:
        if target in names:
            return target
        target = target.rpartition(".")[0]
    return None


# --- the rules --------------------------------------------------------------------------------------------------------


def wrong_directions(modules: Sequence[Module]) -> Iterator[str]:
    """Rule 1."""
    for module in modules:
        part = part_of(module.name)
        assert part is not None, "read_modules reads our packages only"
        for entry in module.imports:
            target = part_of(entry.target)
            if target is None or target == part or any(_is_within(target, allowed) for allowed in MAY_IMPORT[part]):
                continue
            if part in ("workers", "ops") and _is_within(target, part):
                continue  # what stands at the top of a package wires its parts together
            allowed_names = ", ".join(MAY_IMPORT[part]) or "no other part"
            yield f"{module.path}:{entry.line}: {part} may not import {entry.target} (it may import: {allowed_names})"


def redis_below_the_stages(modules: Sequence[Module]) -> Iterator[str]:
    """Rule 2; names the chain that leads to the library."""
    names = frozenset(module.name for module in modules)
    by_name = {module.name: module for module in modules}
    chains: dict[str, tuple[str, ...] | None] = {}

    def chain_from(name: str) -> tuple[str, ...] | None:
        """The imports that lead from a module to a Redis library, itself first."""
        if name in chains:
            return chains[name]
        chains[name] = None  # a cycle adds nothing
        for entry in by_name[name].imports:
            if entry.target.partition(".")[0] in REDIS_LIBRARIES:
                chains[name] = (name, entry.target)
                break
            next_name = _ours(entry.target, names)
            further = chain_from(next_name) if next_name and next_name != name else None
            if further:
                chains[name] = (name, *further)
                break
        return chains[name]

    for module in modules:
        if part_of(module.name) in KNOW_NO_REDIS:
            chain = chain_from(module.name)
            if chain:
                yield f"{module.path}: nothing below the stages knows Redis, but {' -> '.join(chain)}"


def undeclared_packages(
    modules: Sequence[Module], project: Mapping[str, object], distributions: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Rule 3.

    Args:
        project: the table `[project]` of pyproject.toml.
        distributions: which distributions bring a top-level module, as `importlib.metadata.packages_distributions` tells.
    """
    declared = _declared(project)
    everywhere = frozenset().union(*declared.values())
    names = frozenset(module.name for module in modules)
    for module in modules:
        if part_of(module.name) in ELSEWHERE:
            continue
        role = declared[""].union(*(declared[extra] for extra in _extras_of(module.name)))
        is_bare = part_of(module.name) == "ops.launcher" or module.name == "ops"
        for entry in module.imports:
            top = entry.target.partition(".")[0]
            if top in sys.stdlib_module_names or top in PACKAGES or _stands_beside(module.name, top, names):
                continue
            bringers = {_normal(name) for name in distributions.get(top, [top])}
            allowed = frozenset[str]() if is_bare else role if entry.is_at_load else everywhere
            if not bringers & allowed:
                where = "the standard library only" if is_bare else "its role" if entry.is_at_load else "any extra"
                yield f"{module.path}:{entry.line}: {top} ({', '.join(sorted(bringers))}) is not among the packages of {where}"


def _stands_beside(module: str, top: str, names: frozenset[str]) -> bool:
    """Whether a program that is run as a file, without our packages, finds a module beside itself or one folder up."""
    folder = module.rpartition(".")[0]
    return not {f"{folder}.{top}", f"{folder.rpartition('.')[0]}.{top}"}.isdisjoint(names)


def _extras_of(module: str) -> tuple[str, ...]:
    return ROLES[max((name for name in ROLES if f"{module}.".startswith(f"{name}.")), key=len)]


def _declared(project: Mapping[str, object]) -> dict[str, frozenset[str]]:
    """Names of the distributions of each extra; those of the base under the empty name."""
    base, extras = project.get("dependencies", []), project.get("optional-dependencies", {})
    assert isinstance(base, list), "pyproject.toml lists dependencies"
    assert isinstance(extras, dict), "pyproject.toml has a table of extras"
    return {name: frozenset(map(_normal, entries)) for name, entries in {"": base, **extras}.items()}


def _normal(requirement: str) -> str:
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name is not None, f"a requirement begins with a name: {requirement}"
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def main() -> int:
    """Print what breaks a rule, in the order of the rules and files; returns the exit code."""
    root = Path(__file__).resolve().parents[1]
    modules = read_modules(root)
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = [
        *wrong_directions(modules),
        *redis_below_the_stages(modules),
        *undeclared_packages(modules, project, importlib.metadata.packages_distributions()),
    ]
    for line in found:
        print(line)
    print(f"{len(modules)} modules, {len(found)} imports against the rules")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

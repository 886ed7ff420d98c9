"""Writes `contracts.json`: which fields the types of other trainers have, as their own packages say, for tests that run without them.

    python -m tests.unit.adapters.record_contracts --python PYTHON [--python OTHER]

Each PYTHON is an interpreter that has some of the trainers (they need gigabytes and pin each other out, so no environment of ours has one).
What an interpreter can import is recorded with its version; what none can stays as it was recorded before. What no package index has, or is
no type, is taken from `read_contracts.py`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

from tests.unit.adapters.read_contracts import READ

FILE = Path(__file__).with_name("contracts.json")
TYPES = {
    "trl.RolloutSample": ("trl", "trl.experimental.async_grpo.async_rollout_worker", "RolloutSample"),
    "trl.RolloutWorkerProtocol": ("trl", "trl.experimental.async_grpo.async_grpo_trainer", "RolloutWorkerProtocol"),
    "trl.WeightTransferProtocol": ("trl", "trl.experimental.async_grpo.async_grpo_trainer", "WeightTransferProtocol"),
    "openrlhf.Experience": ("openrlhf", "openrlhf.trainer.ppo_utils.experience", "Experience"),
    "skyrl.GeneratorOutput": ("skyrl", "skyrl.train.generators.base", "GeneratorOutput"),
    "skyrl.TrajectoryID": ("skyrl", "skyrl.train.generators.base", "TrajectoryID"),
    "tinker.Datum": ("tinker", "tinker", "Datum"),
    "verl.AgentLoopOutput": ("verl", "verl.experimental.agent_loop.agent_loop", "AgentLoopOutput"),
    "verl.AgentLoopMetrics": ("verl", "verl.experimental.agent_loop.agent_loop", "AgentLoopMetrics"),
}
"""Name here: package, module, class."""
CHILD = r"""
import dataclasses, importlib, inspect, json, sys
from importlib.metadata import version

found = {}
for name, (package, module, kind) in json.loads(sys.argv[1]).items():
    try:
        cls = getattr(importlib.import_module(module), kind)
    except (ImportError, AttributeError) as missing:
        print(f"{name}: {missing}", file=sys.stderr)
        continue
    members = {}
    for member, value in vars(cls).items():
        if inspect.isfunction(value) and not member.startswith("_"):
            members[member] = str(inspect.signature(value))
    if dataclasses.is_dataclass(cls):
        needed = {f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING}
        fields = {f.name: str(f.type) for f in dataclasses.fields(cls)}
    elif hasattr(cls, "model_fields"):
        fields = {field: str(info.annotation) for field, info in cls.model_fields.items()}
        needed = {field for field, info in cls.model_fields.items() if info.is_required()}
    elif hasattr(cls, "__struct_fields__"):
        fields = {field: str(cls.__annotations__.get(field, "")) for field in cls.__struct_fields__}
        needed = set(cls.__struct_fields__[: len(cls.__struct_fields__) - len(cls.__struct_defaults__)])
    else:
        fields = {field: str(kind) for field, kind in getattr(cls, "__annotations__", {}).items()}
        needed = set(getattr(cls, "__required_keys__", fields))
    found[name] = {"version": f"{package} {version(package)}", "fields": fields, "required": sorted(needed), "methods": members}
print(json.dumps(found))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, action="append", help="interpreter that has some of the trainers")
    found = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    for python in parser.parse_args().python:
        made = subprocess.run([python, "-c", CHILD, json.dumps(TYPES)], check=True, stdout=subprocess.PIPE, text=True).stdout
        found |= json.loads(made.splitlines()[-1])
    for name, read in READ.items():
        found[name] = {
            "version": read["version"],
            "fields": read["fields"],
            "required": sorted(read["fields"].keys() - set(read["optional"])),
            "methods": {},
        }
    FILE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""The informativeness policy of docs/how-to/own-policy.md, as a supervisor finds it when it is installed as the page says."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from tests.e2e.conftest import ROOT
from tests.e2e.documents import blocks

PAGE = ROOT / "docs/how-to/own-policy.md"
JUDGE = """
from pipeline.supervisor.installed_policies import load_policies
from pipeline.supervisor.step_spec import StepSpec

policy = load_policies()["hard_but_solved"]
for args in {}, {"at_most": 0.4}:
    spec = StepSpec(target=1, n=4, policy="hard_but_solved", policy_args=args)
    print([policy(values, spec) for values in ([0.0] * 4, [1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0])])
"""


def test_the_policy_of_the_page_is_found_by_its_name_and_judges(tmp_path: Path) -> None:
    found = list(blocks(PAGE))
    project = tomllib.loads(next(block.text for block in found if block.language == "toml"))
    [module] = project["tool"]["setuptools"]["py-modules"]
    points = project["project"]["entry-points"]["rollstream.policies"]
    (tmp_path / f"{module}.py").write_text(next(block.text for block in found if block.language == "python"), encoding="utf-8")
    metadata = tmp_path / f"{module}-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['project']['name']}\nVersion: 0.1.0\n", encoding="utf-8")
    lines = ["[rollstream.policies]", *(f"{name} = {place}" for name, place in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")

    judged = subprocess.run(
        [sys.executable, "-c", JUDGE],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT}:{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )

    assert judged.returncode == 0, judged.stderr
    assert judged.stdout.splitlines() == ["[False, True, True, False]", "[False, True, False, False]"]

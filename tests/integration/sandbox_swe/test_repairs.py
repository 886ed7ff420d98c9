"""Repairs of a real small repository, all the way: INIT makes it, the model works in it, its patch is judged in a sandbox of its own.

The model plays a script, so what it does to the repository is known; all else is what runs in training.
"""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from pipeline import codec
from pipeline.inference_pool import InferencePool, Server
from pipeline.messages import Prompt
from pipeline.redis_client import ask
from pipeline.testing import a_template
from tests.integration.stages.fleet import RUN, TASK, Fleet
from workers.handlers.swe.handler import WORKDIR, SweHandler
from workers.llm.scripted import Act, PolicyOptions, Problem, ScriptedServer, ServerOptions
from workers.llm.scripted.acts import Script, ScriptedCall
from workers.sandbox.service import RemoteSandboxes

pytestmark = pytest.mark.one_server

REPO = f"{WORKDIR}/repo"
BROKEN = "def total(prices):\n    return sum(prices[1:])\n\n\ndef mean(prices):\n    return sum(prices) / len(prices)\n"
ROW: Mapping[str, Any] = {
    "repository": {
        "shop/__init__.py": "",
        "shop/basket.py": BROKEN,
        "tests/__init__.py": "",
        "tests/test_basket.py": "import unittest\n\nfrom shop.basket import mean\n\n\nclass TestBasket(unittest.TestCase):\n"
        "    def test_mean(self):\n        self.assertEqual(mean([1, 3]), 2)\n",
    },
    "test_files": {
        "tests/test_basket.py": "import unittest\n\nfrom shop.basket import mean, total\n\n\nclass TestBasket(unittest.TestCase):\n"
        "    def test_mean(self):\n        self.assertEqual(mean([1, 3]), 2)\n\n"
        "    def test_total(self):\n        self.assertEqual(total([1, 2, 3]), 6)\n\n"
        "    def test_total_of_nothing(self):\n        self.assertEqual(total([]), 0)\n",
    },
    "framework": "unittest",
    "test_command": "python3 -m unittest -v tests.test_basket",
    "fail_to_pass": ["tests.test_basket.TestBasket.test_total"],
    "pass_to_pass": ["tests.test_basket.TestBasket.test_mean"],
}


def edit(old: str, new: str, path: str = "shop/basket.py") -> Act:
    arguments = {"command": "str_replace", "path": f"{REPO}/{path}", "old_str": old, "new_str": new}
    return Act("I change it.", (ScriptedCall("str_replace_editor", arguments),))


def shell(command: str) -> Act:
    return Act("I look.", (ScriptedCall("bash", {"command": command}),))


DONE = Act("Done.", (ScriptedCall("finish", {"answer": "done"}),))
REPAIR = edit("sum(prices[1:])", "sum(prices)")
STORIES: Mapping[str, Script] = {
    "repaired": (shell(f"cd {REPO} && python3 -m unittest"), REPAIR, DONE),
    "nothing": (shell(f"ls {REPO}"), DONE),
    "broken": (REPAIR, edit("sum(prices) / len(prices)", "0"), DONE),
    "tests": (shell(f"cd {REPO} && printf 'import unittest\\n' > tests/test_basket.py && git commit -qam tests && git log"), DONE),
    "limit": (REPAIR, shell("sleep 1; echo a"), shell("echo b"), shell("echo c"), DONE),
}


@asynccontextmanager
async def playing(fleet: Fleet, statements: Mapping[str, str]) -> AsyncIterator[None]:
    """A server whose model plays the story of the row that it is asked."""
    problems = [Problem(statements[name], "", script) for name, script in STORIES.items()]
    sure = PolicyOptions(all_right=1.0, all_wrong=0.0, drift_rate=0.0, mean_steps=0.5)
    async with ScriptedServer(ServerOptions(policy=sure), problems) as server:
        pool = InferencePool(fleet.client, fleet.settings.namespace, lease_s=fleet.settings.lease_s)
        await pool.attach(RUN, [Server(server.url)])
        yield


async def test_what_each_way_of_working_on_a_repository_scores(fleet: Fleet, sandboxes: RemoteSandboxes) -> None:
    """The edit that makes FAIL_TO_PASS pass scores 1, also when the model then runs into a limit; doing nothing, breaking another test and
    editing the tests score 0, each with its reason."""
    statements = {name: f"Issue {name}: the total of a basket leaves out its first price." for name in STORIES}
    template = a_template(task=TASK)
    template = replace(template, limits=replace(template.limits, max_turns=4, eval_active_s=120.0))
    for name, statement in statements.items():
        await fleet.add(name, template=template, prompt_body=codec.encode(Prompt(id=name, data={**ROW, "problem": statement})))

    async with playing(fleet, statements):
        fleet.start(play=SweHandler(), sandboxes=sandboxes)
        records = {key.rpartition(".")[2]: record for key, record in (await fleet.results(len(STORIES), timeout_s=100)).items()}

    grades = {name: await fleet.grade(record) for name, record in records.items()}
    told = {name: (record["out"], record["why"], grades[name].details) for name, record in records.items()}
    assert {name: float(record["rew"]) for name, record in records.items()} == {
        "repaired": 1.0,
        "nothing": 0.0,
        "broken": 0.0,
        "tests": 0.0,
        "limit": 1.0,
    }, told
    assert {name: grade.details["reason"] for name, grade in grades.items()} == {
        "repaired": "",
        "nothing": "empty_patch",
        "broken": "broke_tests",
        "tests": "not_fixed",
        "limit": "",
    }
    assert grades["repaired"].components == {"resolved": 1.0, "f2p": 1.0, "p2p": 1.0, "tampering": 0.0, "applied": 1.0}
    assert grades["broken"].details["broken"] == ["tests.test_basket.TestBasket.test_mean"]
    assert (grades["broken"].components["f2p"], grades["broken"].components["p2p"]) == (1.0, 0.0)
    assert grades["tests"].components["tampering"] == 1.0
    assert records["limit"]["out"] == "model_failure"
    assert records["limit"]["why"] == "turns"
    patch = (await fleet.trajectory(records["repaired"])).extra["patch"]
    assert "+    return sum(prices)\n" in str(patch)
    repaired = records["repaired"]
    log = gzip.decompress(await ask(fleet.client, "HGET", fleet.keys.attached(repaired["job"], repaired["ea"]), "log"))
    assert b"Ran 3 tests" in log

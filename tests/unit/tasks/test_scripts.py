"""What the scripted model says on the samples: the right script says the reference, the others something else, and each is found."""

from __future__ import annotations

import ast
import random

import pytest

from ops.demo.tasks import TASKS
from ops.tasks.rows import read_rows, spec_of
from ops.tasks.scripts import scripted_problems, write_problems
from ops.tasks.scripts.answers import spoilt
from ops.tasks.scripts.programs import unfinished, with_a_slip
from ops.tasks.scripts.repairs import first_change
from pipeline.messages import JobTemplate
from workers.handlers import Handlers
from workers.handlers.agent_handler import AgentHandler
from workers.llm.scripted import read_problems
from workers.llm.scripted.acts import place_in
from workers.llm.scripted.problems import ProblemBank


@pytest.mark.parametrize("task", sorted(TASKS))
async def test_the_model_knows_each_sample_of_each_task_by_its_prompt(task: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    async with Handlers() as handlers:
        handler = await handlers.find(task)
        assert isinstance(handler, AgentHandler)
        template, rows = JobTemplate(task=task), read_rows(handler, None).rows
        problems = scripted_problems(handler, template, rows)
        file = tmp_path_factory.mktemp("scripts") / "problems.jsonl"
        write_problems(file, problems)

        bank = ProblemBank(read_problems([file]))

        assert len(bank) == len(problems) == len(rows)
        for row, problem in zip(rows, problems, strict=True):
            asked = "\n\n".join(message.content for message in handler.messages(spec_of(template, row)) if message.role == "user")
            found = bank.find(f"Before it. {asked}")
            assert found is not None
            assert (found.question, found.answer) == (problem.question, problem.answer.strip())
            assert len({repr(script) for script in (found.right, *found.wrong)}) == 1 + len(found.wrong)
            if task != "math":  # of whose answers the policy makes something up
                assert found.right
                assert found.wrong
                for script in found.wrong:  # a member that plays it is not taken for one that does right
                    said = [act.say + "".join(call.body for call in act.calls) for act in script]
                    assert place_in(found.right, said) < len(found.right)


@pytest.mark.parametrize(
    "answer", [r"\boxed{C}", r"\boxed{35 \%}", r"the sum is \boxed{-1.50}", r"\boxed{mitosis}", "<answer>cat</answer>", "12 apples", "x"]
)
def test_a_spoilt_answer_is_another(answer: str) -> None:
    for seed in range(20):
        assert spoilt(answer, random.Random(seed)) != answer


PROGRAM = """import sys

class Box:
    def size(self):
        return 3

def count(items):
    return len([item for item in items if item >= 2])

print(count(map(int, sys.stdin)))
"""


def test_a_slip_is_one_change_and_still_a_program() -> None:
    slipped = {with_a_slip(PROGRAM, random.Random(seed)) for seed in range(20)}

    assert len(slipped) == 3  # two numbers and a comparison
    for program in slipped:
        assert program != ast.unparse(ast.parse(PROGRAM)) + "\n"
        compile(program, "slipped", "exec")


def test_an_unfinished_program_has_its_names_and_does_nothing() -> None:
    program = unfinished(PROGRAM)
    names: dict[str, object] = {}
    exec(compile(program, "unfinished", "exec"), names)  # a program of this file

    assert "print" not in program
    assert (names["count"]([5]), names["Box"]().size()) == (None, None)  # type: ignore[operator]  # they are a function and a class


PATCH = """diff --git a/a.py b/a.py
--- a/a.py
+++ b/a.py
@@ -1,4 +1,5 @@
 one
-two
+zwei
 three
+three and a half
 four
"""


def test_the_first_change_of_a_patch_alone() -> None:
    assert first_change(PATCH).splitlines()[4:] == [" one", "-two", "+zwei", " three", " four"]


def test_a_patch_of_one_change_is_cut_short() -> None:
    whole = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1,3 @@\n one\n+two\n+three\n"

    assert first_change(whole).splitlines()[4:] == [" one", "+two"]


def test_hunks_and_files_that_then_change_nothing_are_left_out() -> None:
    """git took none of the patch: a hunk that changes nothing is no hunk."""
    two = PATCH + "@@ -10,2 +11,3 @@\n ten\n+ten and a half\n eleven\n" + PATCH.replace("a.py", "b.py")

    assert first_change(two).splitlines() == [*PATCH.splitlines()[:4], " one", "-two", "+zwei", " three", " four"]

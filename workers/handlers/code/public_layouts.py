"""Rows of public data sets of programming, read as they stand.

What tests say is taken as their own graders take it: inputs as one text or as a list of lines, arguments as JSON or as lines of JSON, and
where an expected value is a list, its first element is right too (APPS wrapped what a function returns). A row without a test is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from workers.graders.code import AssertTest, CallTest, CodeTests, StdioTest, Test
from workers.handlers.code.pickled_text import NotPickledTextError, packed_text
from workers.handlers.code.problem import MAX_CHARS, MAX_TESTS, Problem, why_no_program
from workers.handlers.task_data import BadTaskData, Layout, Row, json_of, text_of

_INTEGER = re.compile(r"-?\d+\Z")


# -- inputs and outputs: APPS, TACO, Eurus-2 ---------------------------------------------------------------------------------------------


def _taco(row: Row, place: str) -> Problem:
    tests, entry = _inputs_and_outputs(json_of(row, "input_output", place), place, "input_output")
    return Problem(
        question=text_of(row, "question", place, longest=MAX_CHARS).strip(),
        tests=CodeTests(tests=tests, entry=entry),
        starter=_text(row, "starter_code"),
        solutions=_solutions(row),
    )


def _eurus(row: Row, place: str) -> Problem:
    dialogue, reward = json_of(row, "prompt", place), json_of(row, "reward_model", place)
    asked = [turn.get("content") for turn in dialogue if isinstance(turn, Mapping)] if isinstance(dialogue, list | tuple) else []
    if not asked or not isinstance(asked[-1], str) or not asked[-1].strip():
        raise BadTaskData(f"{place}: expected a dialogue that ends with a text, found {dialogue!r:.80}", field="prompt")
    if not isinstance(reward, Mapping) or "ground_truth" not in reward:
        raise BadTaskData(f"{place}: expected a map with ground_truth, found {reward!r:.80}", field="reward_model")
    found = json_of(reward, "ground_truth", place)
    tests, entry = _inputs_and_outputs(found, place, "reward_model.ground_truth")
    return Problem(question=asked[-1].strip(), tests=CodeTests(tests=tests, entry=entry))


def _inputs_and_outputs(found: object, place: str, field: str) -> tuple[list[Test], str]:
    if not isinstance(found, Mapping):
        raise BadTaskData(f"{place}: expected a map of inputs and outputs, found {found!r:.80}", field=field)
    inputs, outputs, entry = found.get("inputs"), found.get("outputs"), found.get("fn_name") or ""
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not 1 <= len(inputs) == len(outputs):
        raise BadTaskData(f"{place}: expected as many inputs as outputs, at least one", field=field)
    _count(len(inputs), place, field)
    if not isinstance(entry, str):
        raise BadTaskData(f"{place}: expected the name of a function, found {entry!r:.80}", field=f"{field}.fn_name")
    pairs = zip(inputs, outputs, strict=True)
    if entry:
        return [CallTest(arguments=_arguments(given, place, field), accepted=_accepted(wanted)) for given, wanted in pairs], entry
    return [StdioTest(stdin=_lines(given), expected=_lines(wanted)) for given, wanted in pairs], ""


def _arguments(given: object, place: str, field: str) -> list[object]:
    if isinstance(given, str):
        given = [_json_line(line, place, field) for line in given.split("\n") if line.strip()]
    if not isinstance(given, list):
        raise BadTaskData(f"{place}: expected a list of arguments, found {given!r:.80}", field=field)
    return [_with_integer_names(argument) for argument in given]


def _with_integer_names(argument: object) -> object:
    """JSON has no other names than texts; maps of these data sets that have nothing but integers as names meant integers."""
    if isinstance(argument, dict) and argument and all(_INTEGER.match(name) for name in argument):
        return {int(name): value for name, value in argument.items()}
    return argument


def _accepted(wanted: object) -> list[object]:
    if isinstance(wanted, str):
        try:
            return [json.loads(wanted), wanted]
        except (ValueError, RecursionError):
            return [wanted]
    return [wanted, wanted[0]] if isinstance(wanted, list) and wanted else [wanted]


def _lines(value: object) -> str:
    if isinstance(value, list):
        return "\n".join(_lines(line) for line in value)
    return value if isinstance(value, str) else json.dumps(value)


def _json_line(line: str, place: str, field: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as broken:
        raise BadTaskData(f"{place}: expected an argument as JSON on each line, found {line!r:.80}", field=field) from broken


def _solutions(row: Row) -> tuple[str, ...]:
    """A JSON list of programs; a row may have none."""
    value = row.get("solutions")
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return ()
    return tuple(one for one in value if isinstance(one, str) and one.strip()) if isinstance(value, list) else ()


# -- LiveCodeBench -----------------------------------------------------------------------------------------------------------------------


def _live_code_bench(row: Row, place: str) -> Problem:
    cases = [*_cases(row, "public_test_cases", place), *_cases(row, "private_test_cases", place)]
    _count(len(cases), place, "private_test_cases")
    metadata = json_of(row, "metadata", place) if row.get("metadata") else {}
    entry = metadata.get("func_name") if isinstance(metadata, Mapping) else None
    tests: list[Test] = []
    for case in cases:
        if case.get("testtype") == "functional":
            if not isinstance(entry, str) or not entry:
                raise BadTaskData(f"{place}: a functional test, and no func_name", field="metadata")
            arguments = [_json_line(line, place, "private_test_cases") for line in str(case["input"]).split("\n") if line.strip()]
            tests.append(CallTest(arguments=arguments, accepted=[_json_line(str(case["output"]), place, "private_test_cases")]))
        else:
            tests.append(StdioTest(stdin=str(case["input"]), expected=str(case["output"])))
    is_called = any(isinstance(test, CallTest) for test in tests)
    return Problem(
        question=text_of(row, "question_content", place, longest=MAX_CHARS).strip(),
        tests=CodeTests(tests=tests, entry=str(entry) if is_called else ""),
        starter=_text(row, "starter_code"),
    )


def _cases(row: Row, name: str, place: str) -> list[Mapping[str, object]]:
    """Tests as a list, its JSON, or, as the hidden ones are kept, that JSON as a pickled text, compressed, in base64."""
    value = row.get(name)
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            try:
                value = json.loads(packed_text(value.strip()))
            except NotPickledTextError as refused:
                raise BadTaskData(
                    f"{place}: {refused}. Hidden tests are read from JSON, or from a pickled text; nothing is unpickled. "
                    "Write them as JSON with a program that you trust",
                    field=name,
                ) from refused
            except (ValueError, RecursionError) as broken:
                raise BadTaskData(f"{place}: the packed text is no JSON: {broken}", field=name) from broken
    if value in (None, ""):
        return []
    if not isinstance(value, list) or not all(isinstance(case, dict) and {"input", "output"} <= set(case) for case in value):
        raise BadTaskData(f"{place}: expected tests with input and output, found {value!r:.80}", field=name)
    return value


# -- programs of tests: HumanEval, MBPP --------------------------------------------------------------------------------------------------


def _human_eval(row: Row, place: str) -> Problem:
    prompt, entry = text_of(row, "prompt", place, longest=MAX_CHARS), text_of(row, "entry_point", place).strip()
    test = text_of(row, "test", place, longest=1 << 20)
    if not entry.isidentifier():
        raise BadTaskData(
            f"{place}: expected the name of a function, found {entry!r:.80}: methods of objects are not called here", field="entry_point"
        )
    _parsed(test, place, "test")
    solution = row.get("canonical_solution")
    before, found, _ = prompt.partition(f"def {entry}(")
    return Problem(
        question=f"Complete this program, and give it whole:\n\n```python\n{prompt.rstrip()}\n```",
        tests=CodeTests(tests=[AssertTest(source=f"{test}\n\ncheck({entry})\n")], entry=entry),
        preamble=before if found else "",
        solutions=(prompt + solution,) if isinstance(solution, str) and solution.strip() else (),
    )


def _mbpp(row: Row, place: str) -> Problem:
    listed = row["test_list"]
    if not isinstance(listed, list | tuple) or not listed or not all(isinstance(test, str) and test.strip() for test in listed):
        raise BadTaskData(f"{place}: expected a list of asserts, found {listed!r:.80}", field="test_list")
    _count(len(listed), place, "test_list")
    whole = _text(row, "test").strip()  # MBPP+: those of the list, and many more
    imports = row.get("test_imports")
    setup = "\n".join([*(imports if isinstance(imports, list | tuple) else ()), _text(row, "test_setup_code")])
    name = "text" if row.get("text") else "prompt"
    question = text_of(row, name, place, longest=MAX_CHARS).strip()
    solution = _text(row, "code")
    sources = [whole] if whole else listed
    for source in (setup, *sources):
        _parsed(source, place, "test" if whole else "test_list")
    return Problem(
        question=f"{question}\n\nIt is called like this:\n\n```python\n{listed[0].strip()}\n```",
        tests=CodeTests(tests=[AssertTest(source=source, setup=setup) for source in sources]),
        solutions=(solution,) if solution.strip() else (),
    )


def _parsed(source: str, place: str, field: str) -> None:
    """Refuses what is no program; a very long one is not looked at, as that takes long."""
    why = why_no_program(source)
    if why:
        raise BadTaskData(f"{place}: expected a program of asserts: {why}", field=field)


def _text(row: Row, name: str) -> str:
    value = row.get(name)
    return value if isinstance(value, str) else ""


def _count(found: int, place: str, field: str) -> None:
    if not 1 <= found <= MAX_TESTS:
        raise BadTaskData(f"{place}: expected 1 to {MAX_TESTS} tests, found {found}", field=field)


PUBLIC: Sequence[Layout[Problem]] = (
    Layout(
        name="LiveCodeBench", columns=frozenset(("question_content", "public_test_cases")), read=_live_code_bench, id_column="question_id"
    ),
    Layout(name="TACO/APPS", columns=frozenset(("question", "input_output")), read=_taco, id_column="problem_id"),
    Layout(name="HumanEval", columns=frozenset(("prompt", "test", "entry_point")), read=_human_eval, id_column="task_id"),
    Layout(name="MBPP", columns=frozenset(("code", "test_list")), read=_mbpp, id_column="task_id"),
    Layout(name="Eurus-2-RL", columns=frozenset(("prompt", "reward_model")), read=_eurus),
)

"""The last closed box, in texts made to confuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.graders import last_boxed
from workers.graders.boxed import MAX_BOX_CHARS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"The answer is \boxed{42}.", "42"),
        (r"\boxed{3}, no: \boxed{5}", "5"),
        (r"\boxed{\frac{\sqrt{3}}{\sqrt{2+\frac{1}{2}}}}", r"\frac{\sqrt{3}}{\sqrt{2+\frac{1}{2}}}"),
        (r"\boxed {7}", "7"),
        (r"\\boxed{7}", "7"),
        ("\\boxed{\n42\n}", "\n42\n"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\boxed{3} \text{ or } \boxed{4}}", r"\boxed{3} \text{ or } \boxed{4}"),
        (r"\boxed{a \boxed{b} c}", r"a \boxed{b} c"),
        (r"\boxed{}", ""),
        (r"\boxed{5} and \boxed{}", ""),
        (r"It may be \boxed{7, no. \boxed{8}", "8"),
        (r"\boxed{7}, so \boxed{", None),
        (r"\boxed{7}, so \boxed{8", None),
        (r"\boxed 7", None),
        (r"no box", None),
        ("", None),
        (r"\boxed{7\}", None),
    ],
)
def test_what_is_boxed_last_is_the_answer(text: str, expected: str | None) -> None:
    assert last_boxed(text) == expected


def test_a_box_longer_than_any_answer_is_none() -> None:
    assert last_boxed(r"\boxed{" + "7" * (MAX_BOX_CHARS - 1) + "}") is not None
    assert last_boxed(r"\boxed{" + "7" * MAX_BOX_CHARS + "}") is None


@given(st.lists(st.sampled_from(["{", "}", "\\", "\\boxed{", "\\boxed", " ", "a", "\\{", "\\}"]), max_size=60).map("".join))
def test_what_is_found_stood_in_the_text_and_is_balanced(text: str) -> None:
    found = last_boxed(text)

    if found is not None:
        bare = found.replace("\\\\", "").replace("\\{", "").replace("\\}", "")
        assert found + "}" in text
        assert bare.count("{") == bare.count("}")


@pytest.mark.parametrize(
    "text", ["\\boxed{" * 50_000, "\\boxed{" * 20_000 + "x" + "}" * 20_000, "\\boxed{x}" * 50_000, "\\boxed" + " " * 200_000]
)
def test_hostile_texts_cost_linear_time(text: str) -> None:
    for _ in range(3):
        last_boxed(text)  # quadratic work would run into the time limit of the test

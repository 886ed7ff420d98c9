"""The story of a job shows what model, tools and graders wrote; a terminal obeys none of it."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from ops.job.story import JobStory
from ops.job.view import render_story
from pipeline.messages import ChatMessage
from pipeline.testing.builders import a_grade, a_trajectory

HOSTILE = "\x1b]0;title\x07\x1b[2J\r\u202e[bold]x"


def test_control_characters_of_a_job_are_spelt_out() -> None:
    story = JobStory(
        job="run1.e0-1.0.0",
        header={"st": "done", "out": "ok", "err": HOSTILE},
        prompt=None,
        trajectory=replace(a_trajectory(), messages=(ChatMessage(role="tool", content=HOSTILE + "\n\tcode"),)),
        grade=replace(a_grade(), details={"log": HOSTILE}, grader=HOSTILE),
        unreadable=(HOSTILE,),
    )
    console = Console(file=io.StringIO(), width=200, color_system=None)

    render_story(console, story, longest=900)

    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert not set("\x1b\x07\r\u202e") & set(shown)
    assert shown.count(r"\x1b]0;title\x07\x1b[2J\r\u202e[bold]x") == 5
    assert "    code" in shown


def test_what_a_grader_left_empty_takes_no_place_in_the_verdict() -> None:
    details: dict[str, object] = {"reason": "", "broken": [], "notices": {}, "error": None, "timed_out": False, "exit_code": 0}
    story = JobStory(
        job="run1.e0-1.0.0", header={"st": "done"}, prompt=None, trajectory=None, grade=replace(a_grade(), details=details), unreadable=()
    )
    out = io.StringIO()

    render_story(Console(file=out, width=200, color_system=None), story, longest=900)

    assert "   timed_out: False · exit_code: 0   (" in out.getvalue()

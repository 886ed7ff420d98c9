"""The story of a job on a terminal."""

from __future__ import annotations

import textwrap

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from ops.job.story import JobStory
from ops.sandbox_view import use_lines
from ops.trajectory.text import conversation, first_tokens, token_strip
from ops.trajectory.view import blob_lines, image_lines
from ops.visible_text import visible, visible_line
from pipeline.messages import Trajectory
from workers.llm.tokenizer import load
from workers.stages.sandbox_record import SANDBOX

ROLE_STYLE = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "yellow"}
ROLE_WIDTH = 9
TOKENS_SHOWN = 12


def render_story(console: Console, story: JobStory, *, longest: int) -> None:
    """Header, timeline, conversation, verdict, tokens."""
    h = story.header
    console.print(f"[bold]job {escape(story.job)}[/bold]  {escape(story.state)}")
    console.print(
        f"task {escape(h.get('task', '?'))} · attempt {h.get('att', '?')} · failed {h.get('failed', '0')} · lost {h.get('lost', '0')}"
        + (f" · last worker {escape(visible(h['own'].split('#')[0]))}" if h.get("own") else "")
        + (f" · replays {escape(h['replay_of'])}" if h.get("replay_of") else "")
        + (f" · last error: {escape(visible(h['err']))}" if h.get("err") else "")
    )
    for at, what in story.timeline():
        console.print(f"  {at}  {what}")
    for attempt in story.attempts:
        console.print(f"  {escape(attempt.line())}")
    stages = " · ".join(
        f"{stage.upper()} {int(h[f'ms.{stage}']) / 1000:.2f} s" for stage in ("init", "run", "eval") if h.get(f"ms.{stage}")
    )
    if stages:
        console.print(f"  took: {stages}")
    if story.sandbox is not None:
        for line in use_lines(story.sandbox):
            console.print(f"  {escape(visible_line(line))}")
    for line in story.unreadable:
        console.print(f"[red]unreadable {escape(visible(line))}[/red]")
    if story.trajectory is not None:
        console.print()
        render_trajectory(console, story.trajectory, longest=longest)
    if story.grade is not None:
        console.print()
        said = {name: value for name, value in story.grade.details.items() if name != SANDBOX and value not in ("", None, [], {}, ())}
        details = visible(" · ".join(f"{name}: {value}" for name, value in said.items()))
        console.print(f"[bold]verdict[/bold] reward {story.grade.reward:g}   {escape(details)}   ({escape(visible(story.grade.grader))})")
    if story.attached:
        kept = ", ".join(f"{name} ({size:,} bytes)" for name, size in story.attached.items())
        which = "" if "log" in story.attached else f" --name {next(iter(story.attached))}"
        console.print(escape(visible_line(f"kept beside it: {kept}; rollstream job log {story.job}{which} prints it")))


def render_trajectory(console: Console, trajectory: Trajectory, *, longest: int) -> None:
    """The conversation, and its tokens with their mask."""
    for role, text in ((visible(role), visible(text.expandtabs(4))) for role, text in conversation(trajectory.messages, longest=longest)):
        width = max(20, console.width - ROLE_WIDTH - 4)
        lines = [part for line in text.split("\n") for part in (textwrap.wrap(line, width, drop_whitespace=False) or [""])]
        for number, line in enumerate(lines):
            head = role if number == 0 else ""
            console.print(Text.assemble((f"{head:>{ROLE_WIDTH}} │ ", "bold " + ROLE_STYLE.get(role, "")), line), soft_wrap=True)
    console.print(f"[bold]stopped[/bold] {trajectory.stop.value} after {len(trajectory.turns)} turns")
    for line in blob_lines(trajectory):
        console.print(Text(f"kept beside it: {line}"), overflow="fold")
    for line in image_lines(trajectory):
        console.print(Text(f"image: {line}"), overflow="fold")
    for row in token_strip(trajectory):
        console.print(Text(row))
    tokens = first_tokens(trajectory, load().decode, TOKENS_SHOWN)
    if tokens and trajectory.turns and trajectory.turns[0].tokenizer == load().fingerprint:
        console.print("where the model begins (text, mask, logprob):")
        console.print(Text("  " + "  ".join(f"{text!r} {mask}" + (f" {lp:.2f}" if mask else "") for text, mask, lp in tokens)))

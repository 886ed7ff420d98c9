"""Leaves of all commands the one that is asked for: making each of seventy ready takes a fifth of a second, in every process of a node."""

from __future__ import annotations

from collections.abc import Sequence

import typer


def only_asked(app: typer.Typer, words: Sequence[str]) -> None:
    """Takes all other commands out of the app, where the words begin with a command's full name; else (help, an option, a slip) all stay.

    Args:
        words: of the command line.
    """
    if not words:
        return
    groups = [group for group in app.registered_groups if group.name == words[0]]
    commands = [command for command in app.registered_commands if _name(command.name, command.callback) == words[0]]
    if len(groups) + len(commands) != 1:
        return
    app.registered_groups[:], app.registered_commands[:] = groups, commands
    for group in groups:
        if group.typer_instance is not None:
            only_asked(group.typer_instance, words[1:])


def _name(given: str | None, callback: object) -> str:
    """As typer names a command that was given no name."""
    return given or str(getattr(callback, "__name__", "")).replace("_", "-")

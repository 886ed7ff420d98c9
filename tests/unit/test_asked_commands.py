"""A process makes only the command ready that it is asked for; what a person may have meant otherwise needs all of them."""

from __future__ import annotations

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from ops.cli.asked import only_asked


def an_app() -> typer.Typer:
    app, run, nested = typer.Typer(), typer.Typer(), typer.Typer()

    @app.callback()
    def whole(quiet: bool = False) -> None: ...

    @app.command("eval")
    def evaluate() -> None:
        typer.echo("evaluated")

    @run.command()
    def show_all(name: str) -> None:
        typer.echo(f"shown {name}")

    @run.command()
    def cancel() -> None: ...

    @nested.command()
    def once() -> None: ...

    run.add_typer(nested, name="deep")
    app.add_typer(run, name="run")
    return app


def names(app: typer.Typer) -> list[str]:
    """All commands that it has, as one would give them."""

    def walk(command: object, before: tuple[str, ...]) -> list[str]:
        inner = getattr(command, "commands", None)
        if inner is None:
            return [" ".join(before)]
        return [found for name, each in inner.items() for found in walk(each, (*before, name))]

    return sorted(walk(get_command(app), ()))


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["run", "show-all", "x", "--help"], ["run show-all"]),
        (["eval"], ["eval"]),
        (["run", "deep", "once"], ["run deep once"]),
        (["run", "--help"], ["run cancel", "run deep once", "run show-all"]),
        (["run", "sho"], ["run cancel", "run deep once", "run show-all"]),
        (["run"], ["run cancel", "run deep once", "run show-all"]),
        (["rnu"], ["eval", "run cancel", "run deep once", "run show-all"]),
        (["--quiet", "eval"], ["eval", "run cancel", "run deep once", "run show-all"]),
        ([], ["eval", "run cancel", "run deep once", "run show-all"]),
    ],
)
def test_the_command_of_these_words_is_left_or_all_are(words: list[str], left: list[str]) -> None:
    app = an_app()

    only_asked(app, words)

    assert names(app) == left


def test_what_is_left_runs_by_its_full_name() -> None:
    app = an_app()

    only_asked(app, ["run", "show-all", "x"])

    assert CliRunner().invoke(app, ["run", "show-all", "x"]).output == "shown x\n"

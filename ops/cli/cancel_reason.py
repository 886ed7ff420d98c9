"""`--reason` of the commands that cancel: what a person may give as one."""

from __future__ import annotations

from typing import Annotated

import typer

Reason = Annotated[str, typer.Option("--reason", help="redundant, stale, user, deadline or overload.")]


def check_reason(reason: str) -> None:
    """Refuses what is no reason, and `abandoned`, by which the janitor says that a run was closed because its trainer is gone."""
    from pipeline.messages import CancelReason

    known = [known.value for known in CancelReason if known is not CancelReason.ABANDONED]
    if reason not in known:
        raise typer.BadParameter(f"must be one of {', '.join(known)}", param_hint="--reason")

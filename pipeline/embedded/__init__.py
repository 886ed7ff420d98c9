"""The embedded server: a Valkey of one's own, for all processes of one user on one machine, with no installation and no administration.

    user ══shared lock, connection══ keeper ══socket pair══ guard ══child══ server
    user ══shared lock, connection══╝

Protocol. *Killed* means SIGKILL at any instruction.

Who is who
- A **user** is a process that wants the server. It holds `users.lock` shared for as long as it does, and a connection to the keeper.
- The **keeper** owns the data directory. It starts the server, starts it again when it ends, and ends it when no user is left.
- The **guard** is the keeper's child and the server's parent (`guard.py`). End of file from the keeper ends the server.
- Keeper, guard and server hold `instance.lock` exclusively, by one open file: it is free when the last of the three is gone.

Invariants
 1. *One server a directory.* A keeper starts a server only while it holds `instance.lock`, which no other keeper gets while any process of
    an earlier instance lives, be it the server or a rewrite of its file.
 2. *No server without a keeper.* When the keeper dies, the guard ends the server. When the guard dies, the keeper ends the server and
    itself. When both die at once, the parent-death signal ends it on Linux; elsewhere the next keeper does.
 3. *No keeper without a user.* The keeper waits for `users.lock` exclusively and ends when it gets it. The kernel frees a killed user's
    share, so nothing else has to notice its death.
 4. *No user meets an ending keeper.* A user takes its share before it looks for the keeper; the keeper ends only with the lock exclusively
    its own, and keeps that until its process is gone. Who comes meanwhile waits for the lock, then starts the next keeper.
 5. *Nothing acknowledged is lost* under `appendfsync always`, whatever is killed, and when the disk fills up: the server refuses or ends,
    and starts again from its append-only file. `everysec` has its window.
 6. *Users never lose the server for good.* A user that sees end of file on its connection finds or starts the next keeper. The socket's
    path does not change over any of this; clients reconnect.

Who dies, and what follows

| killed | follows | others see |
| --- | --- | --- |
| a user | its share is free; the last one's death ends the server by SIGTERM | nothing |
| the server | the keeper starts it again, at once, then with growing pauses | an outage of a start |
| the keeper | the guard ends the server; the first user to notice starts the next keeper | an outage of an end and a start |
| the guard | the keeper sees end of file, sees the server out, and ends; then as above | the same |
| all of them | the kernel has freed the locks; the next user finds the data | - |
| a user that starts a keeper | another starts one; a keeper already started finds no share and ends | nothing |

Why the server does not live on and get adopted when its keeper is killed: an adopter is not its parent, so it could neither reap it nor be
sure of its pid, and a second way of owning a server would need each of these invariants again. The price is an outage in a case that needs
`kill -9` on a process that holds no memory worth killing it for.

A frozen user (SIGSTOP) is a user. A frozen keeper or guard stops nothing that runs; only coming and going wait for it.
"""

from __future__ import annotations

from pipeline.embedded.address import RedisAddress, read_password, resolve_redis_url
from pipeline.embedded.binary import find_server_binary
from pipeline.embedded.control import ServerStatus, State
from pipeline.embedded.errors import EmbeddedServerError
from pipeline.embedded.server import EmbeddedServer, embedded_data_dir, embedded_redis, open_redis
from pipeline.embedded.server_config import AppendFsync, ServerOptions

__all__ = [
    "AppendFsync",
    "EmbeddedServer",
    "EmbeddedServerError",
    "RedisAddress",
    "ServerOptions",
    "ServerStatus",
    "State",
    "embedded_data_dir",
    "embedded_redis",
    "find_server_binary",
    "open_redis",
    "read_password",
    "resolve_redis_url",
]

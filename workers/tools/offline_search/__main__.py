"""`python -m workers.tools.offline_search FOLDER`: the offline search as a process. Its first line of output is its address.

SIGTERM or SIGINT ends it.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from workers.tools.offline_search.index import Index, read_folder
from workers.tools.offline_search.server import OfflineSearch


def main(argv: Sequence[str]) -> int:
    """Reads the folder and serves it until a signal."""
    parser = argparse.ArgumentParser(
        prog="python -m workers.tools.offline_search", description="Answers searches from a folder of documents."
    )
    parser.add_argument("folder", type=Path, help="its .md and .txt files are searched")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 = any free one")
    parser.add_argument("--key-file", type=Path, help="file with the key that callers must say")
    arguments = parser.parse_args(argv)
    try:
        index = Index(read_folder(arguments.folder))
        key = arguments.key_file.read_text(encoding="utf-8").strip() if arguments.key_file else ""
    except (OSError, ValueError) as broken:
        sys.stderr.write(f"{broken}\n")
        return 2
    asyncio.run(_serve(OfflineSearch(index, key=key, host=arguments.host, port=arguments.port)))
    return 0


async def _serve(server: OfflineSearch) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        await stop.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

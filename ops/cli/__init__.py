"""The command `rollstream <noun> <verb>`. Each noun is a file here; a command parses, builds, calls one function, and prints.

Exit codes: 0 done · 1 it did not work · 2 wrong usage or settings · 3 Redis or the named thing could not be reached.
"""

from __future__ import annotations

import sys

from ops.extras import naming_extras

__all__ = ["main"]


def main() -> None:
    """Entry point of the console script."""
    try:
        _main()
    except KeyboardInterrupt:  # while packages are imported, before any command could take it
        raise SystemExit(130) from None


def _main() -> None:
    with naming_extras():
        from ops.cli.app import app
        from ops.cli.asked import only_asked
        from ops.not_reachable import NotReachable
        from pipeline.errors import BrokerMisused, BrokerUnreachable, RollstreamError
        from pipeline.logs import redact_text

        only_asked(app, sys.argv[1:])
        try:
            app(prog_name="rollstream")  # also as `python -m ops.cli`, which is how the launcher starts it
        except BrokerUnreachable as error:
            print(f"rollstream: Redis cannot be reached: {redact_text(str(error))}", file=sys.stderr)
            raise SystemExit(3) from error
        except BrokerMisused as error:
            print(f"rollstream: Redis refuses: {redact_text(str(error))}", file=sys.stderr)
            raise SystemExit(2) from error
        except NotReachable as error:
            print(f"rollstream: {redact_text(str(error))}", file=sys.stderr)
            raise SystemExit(3) from error
        except RollstreamError as error:
            print(f"rollstream: {redact_text(str(error))}", file=sys.stderr)
            raise SystemExit(2) from error

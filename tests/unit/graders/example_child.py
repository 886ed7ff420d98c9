"""A child of the killable pool that does what it is asked, good and bad."""

from __future__ import annotations

import os
import time
from typing import Any

from workers.graders.killable_child import serve


def obey(request: dict[str, Any]) -> dict[str, Any]:
    what = request["do"]
    if what == "echo":
        print("noise on standard output")
        return {"said": request["text"], "pid": os.getpid()}
    if what == "environment":
        return {"names": sorted(os.environ)}
    if what == "spin":
        while True:
            pass
    if what == "one long operation":
        return {"digits": len(str(3 ** (3**18)))}  # nothing else of the interpreter runs meanwhile
    if what == "sleep":
        time.sleep(1_000)
    if what == "allocate":
        return {"bytes": len(bytearray(request["bytes"]))}
    if what == "write":
        with open(request["path"], "w") as file:
            file.write("x")
        return {"written": True}
    if what == "die":
        os._exit(7)
    if what == "die once":
        try:
            os.mkdir(request["path"])
        except FileExistsError:
            return {"survived": True}
        os._exit(7)
    raise LookupError(f"nothing known about {what}")


if __name__ == "__main__":
    serve(obey)

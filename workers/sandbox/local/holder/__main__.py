"""Starts a holder: `python -I -S FOLDER LIBRARY WORKER_PID`, where `ptyprocess` lies in LIBRARY.

Nothing else stands here: what runs as a program is compiled at each start, what it imports is not.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workers.sandbox.local.holder.loop import main
else:
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    from holder.loop import main

    del sys.path[0]

main()

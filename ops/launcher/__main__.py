"""Entry of `ops/launch`: started by path with `python -I`, so the project has to be put on the import path first."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ops.launcher.commands import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m ops.cli`: the command without its console script."""

from ops.cli import main

main()

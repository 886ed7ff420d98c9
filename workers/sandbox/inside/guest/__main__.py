# What runs when the zip is run. No syntax newer than Python 2 here: an old interpreter must get as far as the message.
import sys

if sys.version_info < (3, 8):  # noqa: UP036
    sys.stderr.write("the execution server needs Python 3.8 or later, this is " + ".".join(map(str, sys.version_info[:3])) + "\n")
    sys.exit(3)

from workers.sandbox.inside.guest.server import main  # the check comes first

main()

"""`rollstream doctor`: what this machine, its settings and its Redis are fit for (docs/adr/0028-status-and-doctor.md).

finding.py    what a check answers
machine.py    limits, folders, clocks, certificates of this machine
server.py     Redis: version, settings, and the rights of the user in use
serving.py    sandbox backends here, and the inference servers of the runs
examine.py    all checks, side by side
"""

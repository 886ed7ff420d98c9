"""What runs inside as PID 1, from a zip. Python 3.8 and later, standard library only; `server.py` is where to begin.

The other files of the zip are those of the holder that do the same work outside (`workers/sandbox/inside/bundle.py` lists them).
"""

"""Programs of ours that run in the sandbox beside the one under judgement: standard library only, Python 3.8 and later.

They are sent as the text of a command (`programs.py`), never as files: what an earlier test left in the sandbox cannot be in their place.
"""

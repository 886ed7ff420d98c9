"""Programs of ours that run inside a sandbox beside the tests, and on which the verdict rests. They are sent in as text.

    recorder.py            starts the test command, listens, and says in the end what it heard
    channel.py             how a reporter talks to the recorder
    runner_watch.py        whether somebody replaced a part of the test runner
    pytest_reporter.py     a plugin of pytest
    unittest_reporter.py   for unittest and for Django's runner on it

They run under whichever Python an image has, from 3.5 on, and use nothing but its standard library.
"""

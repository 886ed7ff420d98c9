"""Mathematics: problems with one right answer, a Python tool to compute with, and a grader that knows when two answers are the same."""

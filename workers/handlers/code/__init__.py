"""Programming: problems that a program solves, judged by running it on tests that it never sees."""

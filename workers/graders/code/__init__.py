"""Programs, judged by running them: each test a process of its own in a sandbox, its output compared in the worker."""

from workers.graders.code.grader import grade_program, tests_at_once
from workers.graders.code.problem import AssertTest, CallTest, CodeTests, RunLimits, StdioTest, Test, sandbox_limits
from workers.graders.code.verdicts import CodeVerdict, TestVerdict, Verdict

__all__ = [
    "AssertTest",
    "CallTest",
    "CodeTests",
    "CodeVerdict",
    "RunLimits",
    "StdioTest",
    "Test",
    "TestVerdict",
    "Verdict",
    "grade_program",
    "sandbox_limits",
    "tests_at_once",
]

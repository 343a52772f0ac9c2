"""Runs untrusted programs: in namespaces of their own, under Landlock, or under limits only."""

from covey.sandbox.program import Ended, Finished, Limits, Program
from covey.sandbox.run import Isolation, log_isolation, run, run_tests, strictest
from covey.sandbox.session import Execution, run_python

__all__ = [
    "Ended",
    "Execution",
    "Finished",
    "Isolation",
    "Limits",
    "Program",
    "log_isolation",
    "run",
    "run_python",
    "run_tests",
    "strictest",
]

"""What becomes of programs in the sandbox: outcomes of tests, and how programs end that misbehave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from covey.sandbox import Limits, Program, run, run_tests

SLOW = True
PROGRAMS = Path(__file__).parents[2] / "sandbox" / "programs.jsonl"
ENDS = {
    "prints": "print(input() + '!')",
    "raises": "raise ValueError('no')",
    "exits": "import sys; sys.exit(3)",
    "is no Python": "def f(:",
    "writes to both": "import sys; print('out'); print('err', file=sys.stderr)",
    "does not end": "while True: pass",
    "sleeps": "import time; time.sleep(60)",
    "takes memory": "x = bytearray(1 << 32)",
    "writes too much": "print('x' * (1 << 22))",
    "kills itself": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "writes a file": "open('a.txt', 'w').write('a'); print(open('a.txt').read())",
}
"""Programs that end in the same way whatever keeps them apart here."""


def cases(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, source in ENDS.items():
        (end,) = run(Program.of(source), [b"in\n"], Limits(seconds=2.0))
        told = end.stderr.decode().splitlines()[-1:]
        found[f"a program that {name}"] = [end.ended.value, end.status, end.stdout.decode()[:40], told]
    for number, line in enumerate(PROGRAMS.read_text(encoding="utf-8").splitlines(), 1):
        row = json.loads(line)
        outcomes, _ = run_tests(row["program"], row["tests"], Limits(seconds=10.0))
        found[f"{row['kind']} {number}"] = list(outcomes)
    return found

"""Programs in a sandbox: their results by hand, in every isolation that works here."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from covey.sandbox import Ended, Isolation, Limits, Program, run, strictest

running = importlib.import_module("covey.sandbox.run")
WAYS = [*running._candidates(), Isolation("none")]


@pytest.fixture(scope="module", params=range(len(WAYS)), ids=[f"{way.kind}{n}" for n, way in enumerate(WAYS)])
def isolation(request: pytest.FixtureRequest) -> Isolation:
    way = WAYS[request.param]
    if not running._works(way):
        pytest.skip(f"{way.kind} does not work here in this way")
    return way


def test_a_run_for_each_input(isolation: Isolation) -> None:
    source = "import sys\nfor line in sys.stdin: print(int(line) ** 2)\nprint('done', file=sys.stderr)"
    found = run(Program.of(source), [b"3\n4\n", b"", b"x"], isolation=isolation)
    assert [one.stdout for one in found] == [b"9\n16\n", b"", b""]
    assert [one.ended for one in found] == [Ended.OK, Ended.OK, Ended.FAILED]
    assert found[0].stderr == b"done\n"
    assert found[2].stderr.startswith(b'Traceback (most recent call last):\n  File "main.py", line 2')
    assert [one.status for one in found] == [0, 0, 1]


@pytest.mark.parametrize(
    ("source", "ended", "status"),
    [
        ("exit(3)", Ended.FAILED, 3),
        ("import sys; sys.exit('no')", Ended.FAILED, 1),
        ("import os; os.kill(os.getpid(), 11)", Ended.FAILED, -11),
        ("raise SystemExit", Ended.OK, 0),
        ("x = [0] * 10 ** 9", Ended.OUT_OF_MEMORY, 1),
        ("while True: print('x' * 1000)", Ended.TOO_MUCH_OUTPUT, -9),
        ("while True: pass", Ended.TIMED_OUT, -9),
        ("import threading, time\nthreading.Thread(target=lambda: (time.sleep(.1), print(1))).start()", Ended.OK, 0),
        ("import atexit; atexit.register(print, 2)", Ended.OK, 0),
    ],
)
def test_how_it_ended(isolation: Isolation, source: str, ended: Ended, status: int) -> None:
    limits = Limits(seconds=1.0, memory_mb=256, output_kb=64)
    (found,) = run(Program.of(source), limits=limits, isolation=isolation)
    assert (found.ended, found.status) == (ended, status)
    assert len(found.stdout) <= 64 << 10


def test_inputs_and_outputs_larger_than_a_pipe(isolation: Isolation) -> None:
    given = [bytes([97 + number]) * 300_000 for number in range(4)]
    found = run(Program.of("import sys; sys.stdout.write(sys.stdin.read())"), given, isolation=isolation)
    assert [one.stdout for one in found] == given


def test_another_program_and_its_files(isolation: Isolation) -> None:
    program = Program({"a.txt": b"1\n", "b.txt": b"2\n"}, command=("/bin/sh", "-c", "cat a.txt b.txt -"))
    (found,) = run(program, [b"3\n"], isolation=isolation)
    assert (found.ended, found.stdout) == (Ended.OK, b"1\n2\n3\n")


def test_two_late_runs_decide_the_rest() -> None:
    found = run(Program.of("while True: pass"), [b""] * 5, Limits(seconds=0.3))
    assert [one.ended for one in found] == [Ended.TIMED_OUT] * 5


def test_landlock_hides_the_users_files(tmp_path: Path) -> None:
    ways = [way for way in WAYS if way.kind == "landlock" and running._works(way)]
    if not ways:
        pytest.skip("this kernel has no Landlock")
    secret = tmp_path / "secret.txt"
    secret.write_text("hidden")
    name = repr(str(secret))
    for source in (f"print(open({name}).read())", f"open({name}, 'a').write('x')", "import os\nos.listdir('/')"):
        (found,) = run(Program.of(source), isolation=ways[0])
        assert found.ended is Ended.FAILED
        assert b"PermissionError" in found.stderr
    assert secret.read_text() == "hidden"


def test_what_is_not_isolated_is_called_so() -> None:
    assert str(Isolation("none")).startswith("not isolated")
    assert strictest() is strictest()

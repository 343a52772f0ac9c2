"""Isolation of the trainer from hostile or broken rewards.

Nothing that they send is executed, and each failure costs its own completion only.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from covey.answers import Outcome
from covey.errors import RewardError
from covey.rewards.findings import MAX_BATCHES
from covey.rewards.reward import RewardSettings
from covey.rewards.runner import RewardRunner
from covey.rewards.workers import run_reward
from covey.rewards.workers.log_values import is_taken
from covey.rewards.workers.messages import Begun, CallDone, SampleDone, listed, read_answer
from covey.rewards.workers.pool import WorkerPool
from covey.runlog import names
from covey.runlog.completions import read_completions, write_completions
from covey.runlog.files import json_line
from covey.workers.channel import BadMessageError, Inbox, read_json, send_json
from living_processes import all_end, lives

linux = pytest.mark.skipif(sys.platform != "linux", reason="memory limits and subreapers need Linux")

HOSTILE = '''
"""Imported by reward workers only."""
import json, os, pickle, stat, struct, subprocess, time
from pathlib import Path
from covey.answers import Outcome
from covey.rewards.reward import Graded, Reward

class Evil:
    def __init__(self, path): self.path = path
    def __reduce__(self): return Path.touch, (Path(self.path),)

def to_the_trainer(body):
    for fd in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode): os.write(fd, body)
        except OSError: pass

def message(text): return struct.pack("!Q", len(text)) + text

def leave(pids):
    """One process in a session of its own, and one that is orphaned as well."""
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        pid = os.fork()
        if pid == 0:
            time.sleep(1000)  # a plain fork: it holds the worker's channel open
        os.write(write, str(pid).encode())
        os._exit(0)
    Path(pids).write_text(f"{child.pid} {os.read(read, 20).decode()}")

def obey(text, row):
    what, _, rest = text.partition(" ")
    if what == "huge": to_the_trainer(b"\\xff" * 64); time.sleep(1000)
    if what == "pickle": to_the_trainer(message(pickle.dumps(Evil(rest)))); time.sleep(1000)
    if what == "again":
        while True: to_the_trainer(message(b\'["begun"]\')); time.sleep(0.02)
    if what == "early": to_the_trainer(message(b\'["sample",999,1.0,null,"",false,null,true,0.1]\')); time.sleep(1000)
    if what == "memory": bytearray(10 << 30)
    if what == "some-memory": bytearray(256 << 20)
    if what == "overflow": return Graded(1e300)
    if what == "leave": leave(rest)
    if what == "leave-and-hang": leave(rest); time.sleep(1000)
    if what == "leave-and-die": leave(rest); os._exit(3)
    return Graded(1.0, Outcome.RIGHT)

def find(name, settings): return Reward(name, None, obey)

def evil(prompts, completions, log_extra=None, mark=None, **kwargs):
    log_extra("fine", [1, "a\\ud800", {"b": (2.5, None)}])
    log_extra("evil", [Evil(mark[0]), 1, 2])
    return [1.0, 2.0, 3.0]
def memory(prompts, completions, **kwargs): return [float(len(bytearray(10 << 30)))] * 3
def large(prompts, completions, **kwargs): return [1.0, 1e300, -1e16]
def nothing(prompts, completions, **kwargs): return [None] * len(completions)
def raises(prompts, completions, **kwargs): raise ValueError("no")
def alike(prompts, completions, **kwargs): raise ValueError("no")
def thief(prompts, completions, log_extra=None, log_metric=None, **kwargs):
    for name in ("loss", "reward", "eval/accuracy", "step", "train/kl", "eval_loss", "mine"): log_metric(name, 7)
    for name in ("prompt", "advantage", "thief", "other", "mine"): log_extra(name, [0, 0, 0])
    log_extra("short", [1])
    return [1.0] * 3
def other(prompts, completions, log_extra=None, **kwargs):
    log_extra("mine", [1, 1, 1])
    return [1.0] * 3
'''
BATCH: dict[str, Any] = {"prompts": ["a", "b", "c"], "completions": ["x", "y", "z"]}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "hostile.py").write_text(HOSTILE, encoding="utf-8")
    sys.path.append(str(folder))
    yield folder / "hostile.py"
    sys.path.remove(str(folder))


@pytest.fixture
def pool(hostile: Path) -> Iterator[WorkerPool]:
    with WorkerPool(2, RewardSettings(), 30.0, finder="hostile:find") as made:
        yield made


def test_what_a_reward_logs_is_never_unpickled_by_the_trainer(
    hostile: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mark, logged = tmp_path / "mark", {}
    with RewardRunner([f"{hostile}:evil"], workers=1) as runner:
        batch = BATCH | {"mark": [str(mark)] * 3, "log_extra": logged.__setitem__}
        for _ in range(2):
            assert runner.functions[0](**batch) == [1.0, 2.0, 3.0]
    assert not mark.exists()
    assert logged == {"fine": [1, "a?", {"b": [2.5, None]}]}
    (message,) = [text for text in caplog.messages if "plain data" in text]
    assert "The reward evil: log_extra('evil') got a value of the type Evil" in message


@linux
@pytest.mark.parametrize("what", ["huge", "pickle", "again", "early", "memory", "overflow"])
def test_a_worker_that_misbehaves_costs_its_own_completion(pool: WorkerPool, tmp_path: Path, what: str) -> None:
    mark = tmp_path / "mark"
    texts = ["a", "b", f"{what} {mark}", "c", "d"]
    results = pool.submit_grading("obey", texts, [{}] * 5).result(120)
    right = Outcome.RIGHT
    assert [result.outcome for result in results] == [right, right, Outcome.CRASHED, right, right]
    assert not mark.exists()
    cause = {"memory": "rewards.memory_mb", "overflow": "it gave 1e+300"}.get(what, "sent the trainer")
    assert cause in results[2].cause


@linux
def test_a_function_that_takes_all_memory_fails_as_one(hostile: Path) -> None:
    with RewardRunner([f"{hostile}:memory"], workers=1) as runner, pytest.raises(RewardError) as error:
        runner.functions[0](**BATCH)
    assert "MemoryError: it needed more memory than a worker may use (rewards.memory_mb)" in str(error.value)


@linux
@pytest.mark.parametrize("what", ["leave", "leave-and-hang", "leave-and-die"])
def test_leftover_processes_end_with_their_worker(hostile: Path, tmp_path: Path, what: str) -> None:
    left = tmp_path / "pids"
    timeout = 2.0 if what == "leave-and-hang" else 60.0
    with WorkerPool(1, RewardSettings(), timeout, finder="hostile:find") as pool:
        outcomes = [one.outcome for one in pool.submit_grading("obey", [f"{what} {left}", "a"], [{}] * 2).result(60)]
        ends = {"leave-and-hang": Outcome.TIMED_OUT, "leave-and-die": Outcome.CRASHED}
        assert outcomes == [ends.get(what, Outcome.RIGHT), Outcome.RIGHT]
        pids = [int(pid) for pid in left.read_text(encoding="ascii").split()]
        assert len(pids) == 2
        if what == "leave":
            assert all(lives(pid) for pid in pids)  # as its worker does
        give_up = time.monotonic() + 30
        while what != "leave" and any(lives(pid) for pid in pids) and time.monotonic() < give_up:
            time.sleep(0.02)
        assert [lives(pid) for pid in pids] == [what == "leave"] * 2
    assert not any(lives(pid) for pid in pids)


@linux
def test_leftover_processes_end_with_the_fork_server(pool: WorkerPool, tmp_path: Path) -> None:
    left = tmp_path / "pids"
    pool.submit_grading("obey", [f"leave {left}"], [{}]).result(60)
    pids = [int(pid) for pid in left.read_text(encoding="ascii").split()]
    os.kill(pool.pids[0], signal.SIGKILL)
    assert pool.submit_grading("obey", ["a"], [{}]).result(60)[0].outcome is Outcome.RIGHT
    assert all_end(pids)


@linux
def test_leftover_processes_end_with_a_killed_trainer(hostile: Path, root: Path, tmp_path: Path) -> None:
    files = [tmp_path / "first", tmp_path / "second"]
    script = (
        "from covey.rewards.workers.pool import WorkerPool\nfrom covey.rewards.reward import RewardSettings\n"
        "pool = WorkerPool(1, RewardSettings(), 60.0, finder='hostile:find')\n"
        f"pool.submit_grading('obey', ['leave {files[0]}', 'leave-and-hang {files[1]}'], [{{}}] * 2).result()\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(hostile.parent)])}
    trainer = subprocess.Popen([sys.executable, "-c", script], env=environment, cwd=tmp_path)
    give_up = time.monotonic() + 60
    while not all(file.exists() and file.read_text() for file in files) and time.monotonic() < give_up:
        time.sleep(0.01)
    trainer.kill()
    trainer.wait()
    pids = [int(pid) for file in files for pid in file.read_text(encoding="ascii").split()]
    assert len(pids) == 4
    assert all_end(pids)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[", b"{}", b"[]", b'["begun",1]', b'["call"]', b"\xff\x00", b"[" * 100_000, b"9" * 10_000),
        *(b'["sample",1,NaN,null,"",false,null,true,0.1]', b'["sample",1,1e999,null,"",false,null,true,0.1]'),
        *(b'["sample",1,"1",null,"",false,null,true,0.1]', b'["sample",1,1.0,"stolen","",false,null,true,0.1]'),
        *(b'["call",1,[1],[],"",[],[]]', b'["call",1,[1.0],[],"",[["exec","a",[]]],[]]'),
        *(b'["call",1,[1.0],[],"",[["log_extra","a",1]],[]]', b'["call",1,[1.0],[[0]],"",[],[]]'),
    ],
    ids=lambda body: repr(body[:24]),
)
def test_invalid_messages_are_refused(body: bytes) -> None:
    with pytest.raises(BadMessageError):
        read_answer(read_json(body))


def test_messages_read_back_as_they_were() -> None:
    logged = [
        run_reward.LogEntry("log_extra", "a", [1, "\ud800", None]),
        run_reward.LogEntry("log_metric", "b", math.inf),
    ]
    called = run_reward.CallResult([0.1, None], [(1, "why")], "", logged, ["left out"])
    sampled = run_reward.SampleResult(1 / 3, Outcome.RIGHT, "c", refused=True, mode="1+2")
    ours, theirs = socket.socketpair()
    sent = [Begun(), SampleDone(2**40, sampled, True, 0.25), CallDone(3, called)]
    for message in sent:
        send_json(theirs, listed(message))
    assert [read_answer(message) for message in Inbox(ours).messages()] == sent
    ours.close()
    theirs.close()


def test_names_that_are_taken_are_kept_under_others(hostile: Path, caplog: pytest.LogCaptureFixture) -> None:
    metrics: dict[str, float] = {}
    columns: dict[str, list[Any]] = {}
    with RewardRunner([f"{hostile}:thief", f"{hostile}:other"], workers=1) as runner:
        batch = BATCH | {"log_metric": metrics.__setitem__, "log_extra": columns.__setitem__}
        assert [function(**batch) for function in runner.functions] == [[1.0] * 3] * 2
    taken = ("loss", "reward", "eval/accuracy", "step", "train/kl", "eval_loss")
    assert metrics.pop("time/rewards/thief") > 0
    assert metrics.pop("time/rewards/other") > 0
    assert metrics == dict.fromkeys([*(f"logged/{name}" for name in taken), "mine"], 7.0)
    expected = {f"logged/{name}": [0] * 3 for name in ("prompt", "advantage", "thief", "other")}
    assert columns == expected | {"mine": [0] * 3, "logged/other/mine": [1] * 3}
    assert sum("that name is taken" in text for text in caplog.messages) == len(taken) + 4 + 1
    assert sum("log_extra('short') got 1 values for 3 completions" in text for text in caplog.messages) == 1


def test_every_name_of_a_run_is_taken() -> None:
    """Against `runlog.names`; TRL's `loss` becomes `train/loss`, and so on."""
    own = {text for name, text in vars(names).items() if name.isupper() and isinstance(text, str)}
    found = [text for name, text in vars(names).items() if name.startswith("COLUMN_")]
    columns = {text for one in found for text in ([one] if isinstance(one, str) else one)}
    metrics = {text for text in own - columns if "/" in text}
    assert {"train/loss", "eval/accuracy", "time/step"} <= metrics
    for name in metrics | {name.removeprefix("train/") for name in metrics} | {names.STEP, "grader/errors"}:
        assert is_taken("log_metric", name, ()), name
    for name in columns | {names.STEP, "brevity"}:
        assert is_taken("log_extra", name, ["brevity"]), name
    assert not is_taken("log_metric", "words", ["words"])


def test_failures_are_summed_over_processes(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL logs the mean over all calls and processes of a step; a count must be their sum."""
    metrics: list[tuple[str, float]] = []
    funcs = [f"{hostile}:{name}" for name in ("raises", "other", "alike")]
    with RewardRunner(funcs, workers=1, on_error="skip") as runner:
        for processes, errors in (("1", 6.0), ("4", 24.0)):
            monkeypatch.setenv("WORLD_SIZE", processes)
            for function in runner.functions:
                function(**BATCH, log_metric=lambda *entry: metrics.append(entry), log_extra=lambda *entry: None)
            assert metrics.pop() == ("grader/errors", errors)
            own = {name: value for name, value in metrics if not name.startswith("time/")}
            assert own == {
                "grader/errors/raises": errors / 2,
                "grader/errors/other": 0.0,
                "grader/errors/alike": errors / 2,
            }
            metrics.clear()


def test_a_reward_that_overflows_is_an_error(hostile: Path) -> None:
    with RewardRunner([f"{hostile}:large"], workers=1) as runner, pytest.raises(RewardError) as error:
        runner.functions[0](**BATCH)
    assert "failed on row 1 of the batch ('b'): it returned 1e+300, and a reward lies between -1e+15 and" in str(error)
    called = run_reward.check([1e15, -1e15, 1e16], 3)
    assert called.values == [1e15, -1e15, None]
    assert [row for row, _ in called.bad] == [2]


def test_a_run_that_never_sees_a_reward_is_warned_and_ended(hostile: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RewardRunner([f"{hostile}:nothing"], workers=0) as runner:
        for _ in range(MAX_BATCHES - 1):
            assert runner.functions[0](**BATCH) == [None] * 3
        with pytest.raises(RewardError, match=f"any completion a reward in {MAX_BATCHES} batches"):
            runner.functions[0](**BATCH)
    (text,) = [text for text in caplog.messages if "any completion of this batch a reward" in text]
    assert text.startswith("No reward function gave")
    with RewardRunner([f"{hostile}:nothing", f"{hostile}:other"], workers=0) as runner:
        for _ in range(MAX_BATCHES + 5):  # one that gives none, and one that does
            for function in runner.functions:
                function(**BATCH, log_extra=lambda *entry: None)
    assert sum("The reward nothing gave no completion" in text for text in caplog.messages) == 1


def test_half_a_surrogate_pair_ends_no_run(tmp_path: Path) -> None:
    columns = {"completion": ["a\ud800b", "c"], "note": [{"x": "\udfff"}, None], "n": [1, 2]}
    path = write_completions(tmp_path / "completions", 3, columns)
    rows = read_completions(path)
    assert [row["completion"] for row in rows] == ["a?b", "c"]
    assert rows[0]["note"] == {"x": "?"}
    assert json.loads(json_line({"text": "a\ud800"}).encode()) == {"text": "a?"}


@linux
@pytest.mark.parametrize(("memory_mb", "outcome"), [(64, Outcome.CRASHED), (None, Outcome.RIGHT)])
def test_the_memory_limit_is_configurable(hostile: Path, memory_mb: int | None, outcome: Outcome) -> None:
    with WorkerPool(1, RewardSettings(), 30.0, finder="hostile:find", memory_mb=memory_mb) as pool:
        assert pool.submit_grading("obey", ["some-memory"], [{}]).result(60)[0].outcome is outcome

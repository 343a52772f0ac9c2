"""Rewards of a trainer in worker processes: failures, logging, modes, and no process that outlives it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from covey import importing
from covey.answers import Outcome
from covey.errors import RewardError
from covey.rewards.runner import RewardRunner
from covey.rewards.workers import run_reward
from living_processes import lives

BATCH = {"prompts": ["What is 1 + 1?", "b", "c"], "completions": ["x", "yy", "z z"]}


@pytest.mark.parametrize(
    ("function", "row", "cause", "kept"),
    [
        ("short", None, "it returned 1 rewards for 3 completions", None),
        ("number", None, "it returned 1.0 (of type float) instead of a list", None),
        ("raises", None, "it raised KeyError: 'gold' (well_behaved.py, line", None),
        ("exits", None, "it raised SystemExit", None),
        ("dies", None, "its worker process ended with exit code 7", None),
        ("hangs", None, "it had not returned after 0.", None),
        ("nan", 1, "it returned nan (of type float), which is neither a finite number nor None", [1.0, None, None]),
        ("text", 2, "it returned 'three' (of type str), which is neither", [1.0, 2.0, None]),
    ],
)
def test_a_function_that_fails_stops_the_run_or_is_left_out(
    graders: Path,
    caplog: pytest.LogCaptureFixture,
    function: str,
    row: int | None,
    cause: str,
    kept: list[float | None] | None,
) -> None:
    caplog.set_level(logging.INFO, "covey.rewards")
    name = f"{graders}:{function}"
    where = "" if row is None else f" on row {row} of the batch ('{BATCH['prompts'][row]}')"
    with RewardRunner([name], workers=1, batch_timeout=0.3) as stopping:
        with pytest.raises(RewardError) as error:
            stopping.functions[0](**BATCH)
        assert str(error.value).startswith(f"The reward {function} failed{where}: {cause}")
        assert "rewards.on_error=skip" in str(error.value)
    metrics: list[tuple[str, float]] = []
    with RewardRunner([name, f"{graders}:length"], workers=1, batch_timeout=0.3, on_error="skip") as skipping:
        for _ in range(2):
            batch = {**BATCH, "log_metric": lambda *metric: metrics.append(metric)}
            assert skipping.functions[0](**batch) == (kept or [None] * 3)
            assert skipping.functions[1](**batch) == [1.0, 2.0, 3.0]
    failed = 1.0 if kept else 3.0
    errors = [(f"grader/errors/{function}", failed), ("grader/errors/length", 0.0), ("grader/errors", failed)]
    assert [metric for metric in metrics if not metric[0].startswith("time/")] == errors * 2
    assert [record.message for record in caplog.records if cause in record.message] == [caplog.messages[-1]]
    assert "1 of 3" in caplog.text if kept else "3 of 3" in caplog.text


def test_what_counts_as_a_reward() -> None:
    class Scalar:
        def __float__(self) -> float:
            return 2.5

    class Array(list[int]):
        def __float__(self) -> float:
            raise TypeError("only size-1 arrays")

    called = run_reward.check((1, True, None, Scalar(), float("-inf"), Array([1, 2]), 10**400), 7)
    assert called.values == [1.0, 1.0, None, 2.5, None, None, None]
    assert [row for row, _ in called.bad] == [4, 5, 6]
    assert run_reward.check("101", 3).failure
    assert run_reward.check({0: 1.0}, 1).failure
    assert run_reward.check(iter([0.0]), 1) == run_reward.CallResult([0.0])


@pytest.mark.parametrize("workers", [0, 1])
def test_logging_state_async_and_columns_work_as_in_process(graders: Path, workers: int) -> None:
    logged: list[Any] = []
    state = SimpleNamespace(global_step=7, log_history=[{"loss": 0.25}], _secret=threading.Lock(), other=object())
    extra = {
        "trainer_state": state,
        "log_extra": lambda *entry: logged.append(entry),
        "log_metric": lambda *entry: logged.append(entry),
        "lock": [threading.Lock()] * 3,  # a column that cannot be pickled
    }
    with RewardRunner([f"{graders}:logs", f"{graders}:waits"], workers=workers) as runner:
        assert [function.__name__ for function in runner.functions] == ["logs", "waits"]
        batch = BATCH | extra
        values, waits = (function(**batch) for function in runner.functions)
    assert values == [None] * 3
    assert waits == [0.5] * 3
    assert logged[:3] == [("words", [1, 1, 2]), ("seen", 7.0), ("seen", 0.25)]
    assert [name for name, _ in logged[3:]] == ["time/rewards/logs", "time/rewards/waits"]


ANSWERS = {
    "prompts": ["p"] * 5,
    "completions": [
        "<think>a</think><answer>1,234</answer>",
        "<think>a</think><answer>4</answer>",
        [{"role": "assistant", "content": "<think>b</think><answer>5.0</answer>"}],
        "nothing",
        "<answer>6</answer>",
    ],
    "answer": ["1234", "5", "5", "7", "6"],
}


def test_workers_give_what_the_process_itself_gives() -> None:
    names = ["accuracy", "exact_match", "format", "cosine_scaled", "len", "check_answer"]
    with RewardRunner(names, workers=0) as here, RewardRunner(names, workers=2) as there:
        expected = [function(**ANSWERS) for function in here.functions]
        assert [function(**ANSWERS) for function in there.functions] == expected
        counts = there.pool.counts  # type: ignore[union-attr]
    assert expected[1] == [1.0, 0.0, 1.0, 0.0, 0.0]
    assert expected[2] == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert counts["graded"] + counts["from_cache"] == 3 * 5  # cosine_scaled and len take accuracy's grades
    assert counts["calls"] == 1


def test_outcomes_are_metrics_and_unreadable_gold_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    metrics: dict[str, float] = {}
    batch = {
        "prompts": ["one", "two " * 50, "three", "four"],
        "completions": ["<answer>1</answer>", "<answer>2</answer>", "", "<answer>4</answer>"],
        "answer": ["1", None, "3", "5"],
    }
    with RewardRunner(["accuracy"], workers=1) as runner:
        (accuracy,) = runner.functions
        assert accuracy(**batch, log_metric=metrics.__setitem__) == [1.0, None, 0.0, 0.0]
        assert accuracy(**batch) == [1.0, None, 0.0, 0.0]
        with pytest.raises(RewardError, match="must have a column answer"):
            accuracy(prompts=["p"], completions=["c"])
    expected = dict.fromkeys((f"grader/{outcome}" for outcome in Outcome), 0.0)
    for outcome in (Outcome.RIGHT, Outcome.WRONG, Outcome.UNPARSABLE_GOLD, Outcome.UNPARSABLE_PREDICTION):
        expected[f"grader/{outcome}"] = 0.25
    assert metrics.pop("time/rewards/accuracy") > 0
    assert metrics == expected | {"grader/gold_value_share": 1.0}
    (message,) = [text for text in caplog.messages if "cannot read the gold answer" in text]
    assert "row 1 ('two two two" in message


def test_named_rewards_run_in_parallel(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first function returns only once the second has run, which the trainer has not called yet."""
    caplog.set_level(logging.INFO, "covey.rewards")
    file = tmp_path / "pair.py"
    file.write_text(
        "import time\nfrom pathlib import Path\nmark = Path(__file__).with_name('mark')\n"
        "def first(prompts, completions, **kwargs):\n"
        "    while not mark.exists(): time.sleep(0.01)\n    return [1.0]\n"
        "def second(prompts, completions, **kwargs):\n    mark.touch()\n    return [2.0]\n",
        encoding="utf-8",
    )

    def own(prompts: list[str], completions: list[str], **kwargs: Any) -> list[float]:
        return [3.0]

    with RewardRunner([f"{file}:first", own, f"{file}:second"], workers=1, batch_timeout=30) as runner:
        assert runner.functions[1] is own
        batch = {"prompts": ["p"], "completions": ["c"]}
        assert [function(**batch) for function in runner.functions] == [[1.0], [3.0], [2.0]]
    assert [text for text in caplog.messages if "Python functions" in text and text.endswith(": own.")]
    with pytest.raises(RewardError, match="are both called own"):
        RewardRunner([own, own])


SCRIPT = """
import sys
from pathlib import Path
with Path("imported").open("a") as file:
    file.write("x")
from covey.rewards.workers.pool import WorkerPool
from covey.rewards.reward import RewardSettings
pool = WorkerPool(2, RewardSettings(), 1000.0, finder="well_behaved:find")
assert pool.grade("obey", ["print", "a"], [{}, {}])[1].value == 1.0
hanging = pool.submit_grading("obey", ["spin", "sleep"], [{}, {}])
pool.grade("obey", ["a"], [{}])
print(*pool.pids, flush=True)
hanging.result()
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_the_trainer(graders: Path, root: Path, tmp_path: Path, end: signal.Signals) -> None:
    """SIGINT goes to the whole group, as Ctrl-C does; SIGKILL to the trainer alone, while its workers hang."""
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    trainer = subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(graders.parent)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert trainer.stdout is not None
    with trainer.stdout:
        pids = [int(pid) for pid in trainer.stdout.readline().split()]
        assert len(pids) >= 3
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        if end is signal.SIGINT:
            os.killpg(trainer.pid, end)
        else:
            trainer.kill()
        try:
            trainer.wait(120)
        finally:
            trainer.kill()
        assert trainer.stdout.read() == ""  # what rewards print does not go there
    give_up = time.monotonic() + 120
    while (left := [pid for pid in pids if lives(pid)]) and time.monotonic() < give_up:
        time.sleep(0.02)
    assert not left
    assert (tmp_path / "imported").read_text(encoding="utf-8") == "x"  # the workers did not run the script


def test_a_function_without_any_reward_is_named_once_beside_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "two.py").write_text(
        "def none(completions, **kwargs):\n    return [None for _ in completions]\n\n\n"
        "def some(completions, **kwargs):\n    return [1.0 for _ in completions]\n"
    )
    with RewardRunner([f"{tmp_path}/two.py:none", f"{tmp_path}/two.py:some"], workers=1) as runner:
        for _ in range(2):
            assert [function(**BATCH) for function in runner.functions] == [[None] * 3, [1.0] * 3]
    (text,) = [text for text in caplog.messages if "gave no completion of this batch a reward" in text]
    assert text.startswith("The reward none ")


@pytest.mark.parametrize("workers", [0, 1])
def test_modes_of_right_answers_are_a_column(workers: int) -> None:
    """In training; of the built-in graders that know them, and only of right answers."""
    columns: dict[str, list[Any]] = {}
    with RewardRunner(["countdown", "format"], workers=workers) as runner:
        texts = [f"<answer>{text}</answer>" for text in ("1+2", "2+(1)", "1-2", "none")]
        gold = ['{"numbers": [1, 2], "target": 3}'] * 4
        more = {"log_extra": columns.__setitem__, "log_metric": lambda *entry: None}
        for function in runner.functions:
            function(prompts=["?"] * 4, completions=texts, answer=gold, **more)
    assert columns["mode"] == ["1+2", "1+2", None, None]


def test_what_cannot_be_sent_to_a_worker(graders: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Such a column is left out, with a warning; such completions are an error, once their rewards are asked for."""
    name, columns = f"{graders}:length", {"level": [print, lambda: 1]}
    with RewardRunner([name], workers=1) as runner:
        for _ in range(2):
            assert [one.value for one in runner.grade_batch(name, ["p", "q"], ["a", "abc"], columns)] == [1.0, 3.0]
        (_,) = [text for text in caplog.messages if "do not get level, which cannot be sent" in text]
        unsent: list[Any] = [lambda: 1]
        runner.begin(["p"], unsent, {})
        with pytest.raises(RewardError, match="cannot be sent to a worker process"):
            runner.functions[0](["p"], unsent)


def test_functions_given_as_objects_run_here_with_all_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "_given", {})
    seen: list[tuple[int, int]] = []
    logged: dict[str, Any] = {}

    def length(completions: Any, level: Any, log_extra: Any, log_metric: Any, **columns: Any) -> list[float]:
        seen.append((os.getpid(), len(completions)))
        log_extra("shout", [text.upper() for text in completions])
        log_metric("mean_level", sum(level) / len(level))
        return [float(len(text)) for text in completions]

    async def waits(completions: Any, **columns: Any) -> list[float]:
        return [0.5 for _ in completions]

    importing.give("mine:length", length)
    importing.give("mine:waits", waits)
    with RewardRunner(["mine:length", "mine:waits", "format"], workers=1) as runner:
        columns = {
            "level": [1, 3],
            "trainer_state": SimpleNamespace(global_step=3),
            "log_extra": lambda name, values: logged.update({name: values}),
            "log_metric": lambda name, value: logged.update({name: value}),
        }
        completions = ["ab", "abc"]
        runner.begin(["p", "q"], completions, columns)
        assert seen == [], "they run once their results are asked for"
        found = [function(["p", "q"], completions, **columns) for function in runner.functions]
        assert found == [[2.0, 3.0], [0.5, 0.5], [0.0, 0.0]]
        assert seen == [(os.getpid(), 2)]
        assert logged["shout"] == ["AB", "ABC"]
        assert logged["mean_level"] == 2.0
        assert {"time/rewards/length", "time/rewards/waits"} <= logged.keys()
        scored = runner.score(["p", "q"], completions, {"level": [1, 3]})
        assert [one.value for one in scored["length"]] == [2.0, 3.0]
        assert [one.value for one in runner.grade_batch("mine:length", ["p"], ["abcd"], {"level": [1]})] == [4.0]
    importing.give("mine:length", lambda completions, **columns: [1.0])
    with RewardRunner(["mine:length"]) as runner, pytest.raises(RewardError, match="1 rewards for 2 completions"):
        runner.functions[0](["p", "q"], ["a", "b"])


def test_a_coroutine_in_a_notebook_is_awaited_in_another_thread() -> None:
    async def waits(completions: Any, **columns: Any) -> list[float]:
        await asyncio.sleep(0)
        return [0.5 for _ in completions]

    async def cell() -> list[float | None]:
        return run_reward.call(waits, {"prompts": ["p"], "completions": ["a"]}, 1).values

    assert asyncio.run(cell()) == [0.5]

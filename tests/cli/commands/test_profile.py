"""`covey profile`: its figures, its verdicts on a model and a run's config, its time budget, the rows that it keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from covey.cli.main import main

Profile = Callable[..., dict[str, Any]]

TEMPLATE = ["dataset.user_prompt_template='{prompt} Briefly.'"]

ENGINE = """
from covey.rollout import Capabilities, Completion

class Scripted:
    '''Right in as many of eight completions as the last digit of the question says; at 9 without an answer.'''
    capabilities = Capabilities()
    version = None
    def __init__(self, model_name, tokenizer, **more):
        self.tokenizer, self.asked = tokenizer, {}
    def generate(self, prompts, sampling, *, seed=None, **more):
        texts = [self.tokenizer.decode(prompt) for prompt in prompts]
        return [self._complete(text) for text in texts]
    def _complete(self, text):
        number = int("".join(filter(str.isdigit, text)))
        self.asked[number] = asked = self.asked.get(number, -1) + 1
        last = number % 10
        said = f"<think></think><answer>{number if asked % 8 < last else -1}</answer>" if last < 9 else "No idea."
        return Completion(self.tokenizer.encode("1", add_special_tokens=False), False, text=said)
    def sync(self, weights, version):
        raise AssertionError
    def close(self):
        pass
"""


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Profile:
    monkeypatch.chdir(tmp_path)
    Path("engine.py").write_text(ENGINE)

    def run(last_digits: list[int], *words: str) -> dict[str, Any]:
        numbers = [10 * at + digit for at, digit in enumerate(last_digits)]
        rows = [{"question": f"What is {n}?", "gold": n, "note": {"at": [n, None]}} for n in numbers]
        Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        data = ["dataset.path=rows.jsonl", "dataset.prompt_column=question", "dataset.test_size=0"]
        more = ["dataset.answer_column=gold", "evaluation.engine=engine.py:Scripted", "--json"]
        assert main(["profile", "starter", *data, *more, *words]) == 0
        return dict(json.loads(capsys.readouterr().out))

    return run


def test_figures_and_rows_by_hand(profile: Profile) -> None:
    """Right: 0, 4 and 8 of eight completions, and none where no answer is stated."""
    found = profile([0, 4, 8, 9] * 4, "--keep", "0.1-0.9", "--out", "kept.jsonl")
    assert (found["problems"], found["rows"], found["group"], found["samples"]) == (16, 16, 8, 8)
    assert found["pass@k"]["1"]["value"] == pytest.approx((4 + 8) / 32)
    assert found["pass@k"]["2"]["value"] == pytest.approx((1 - 4 * 3 / (8 * 7) + 1) / 4)
    assert found["pass@k"]["8"]["value"] == pytest.approx(0.5)
    assert found["groups_without_signal"]["by_correctness"]["value"] == pytest.approx(0.75)
    assert found["outcomes"]["unparsable_prediction"]["value"] == pytest.approx(0.25)
    assert found["verdict"] == "learn"
    kept = [json.loads(line) for line in Path("kept.jsonl").read_text().splitlines()]
    assert found["kept"] == len(kept) == 4
    expected = [{"question": f"What is {n}?", "gold": n, "note": {"at": [n, None]}} for n in (14, 54, 94, 134)]
    assert sorted(kept, key=lambda row: row["gold"]) == expected


def test_verdicts(profile: Profile) -> None:
    assert profile([0] * 120)["verdict"] == "warm start first"
    assert profile([9] * 30)["verdict"] == "the form is missing"
    assert profile([8] * 120)["verdict"] == "too easy"
    assert profile([0] * 30)["verdict"] == "not enough problems to say"


def test_a_reward_that_does_not_tell_right_from_wrong(profile: Profile) -> None:
    found = profile([4] * 120, "rewards.funcs=[think_format]", "evaluation.grader=exact_match")
    assert found["verdict"] == "the reward is constant"
    assert found["reason"].endswith("; but all completions, right or wrong, have the reward 1")


def test_a_round_is_made_whatever_the_time(profile: Profile) -> None:
    found = profile([4] * 40, "profile.minutes=0.000001", "evaluation.batch_size=20", "profile.group=4")
    assert (found["problems"], found["rows"], found["pass@k"].keys()) == (5, 40, {"1", "2", "4"})


def test_prompts_that_are_too_long_are_left_out(profile: Profile) -> None:
    """Their rows are not kept either."""
    longest = profile([4] * 20)["longest_prompt"]
    found = profile([4] * 20, f"dataset.max_prompt_length={longest - 1}", "--keep", "0-1", "--out", "new/kept.jsonl")
    kept = [json.loads(line)["gold"] for line in Path("new/kept.jsonl").read_text().splitlines()]
    assert found["rows"] == found["problems"] == found["kept"] == len(kept)
    assert sorted(kept) == list(range(4, 100, 10))


def test_a_round_holds_no_more_tokens_than_can_be_waited_for(profile: Profile) -> None:
    found = profile([4] * 40, "profile.minutes=0.000001", "profile.group=4", "training.max_completion_length=1024")
    assert (found["problems"], found["wanted"]) == (2, 40)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--keep", "0.1-0.9"], "--out FILE"),
        (["--keep", "10-90", "--out", "x"], "as in --keep 0.1-0.9"),
        (["--keep", "0.9-0.1", "--out", "x"], "as in --keep 0.1-0.9"),
        (["--keep", "0-1", "--out", "there.jsonl"], "--out there.jsonl is there, and nothing is overwritten"),
        (["--keep", "0-1", "--out", "there.jsonl/rows.jsonl"], "cannot be made (File exists)"),
        (["--keep", "0-1", "--out", "/proc/rows/rows.jsonl"], "/proc/rows"),
        (["rewards.funcs=[format]"], "set evaluation.grader, as in evaluation.grader=accuracy"),
        (["profile.split=validation"], "this data has the rows train"),
        (["profile.samples=4", "profile.group=8"], "profile.samples=4 is less than a group of 8"),
        (["profile.split=test", "dataset.test_size=8", "--keep", "0-1", "--out", "x"], "leave out profile.split=test"),
    ],
)
def test_what_cannot_be_done_is_said(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.jsonl").write_text("mine\n")
    assert main(["profile", "starter", "dataset.test_size=0", "dataset.train_size=64", *words]) != 0
    out, err = capsys.readouterr()
    assert told in err
    assert "completions" not in out + err  # nothing was sampled
    assert Path("there.jsonl").read_text() == "mine\n"


@pytest.mark.slow
def test_the_starter_and_the_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The format earns a reward on five digits, so rewards differ in groups in which no answer is right."""
    monkeypatch.chdir(tmp_path)
    harder = ["dataset.hard_size=128", "profile.split=hard", "profile.problems=128"]
    assert main(["profile", "starter", *harder, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "warm start first"
    assert found["groups_without_signal"]["by_reward"]["value"] < 0.2
    assert found["groups_without_signal"]["by_correctness"]["value"] == 1
    assert main(["doctor", "--profile", "profile.problems=32", "--json"]) == 0
    findings = {one["check"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    assert findings["profile"]["result"].startswith("learn: pass@8 is ")
    assert main(["doctor", "--profile", "rewards.funcs=[format]", "--json"]) == 0
    findings = {one["check"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    assert findings["profile"]["result"].startswith("No reward of this run says which answers are right")
    assert len(findings) > 5
    assert main(["profile", "starter", "profile.problems=8", "--keep", "0-1", "--out", "rows.jsonl", *TEMPLATE]) == 0
    assert "train on them without dataset.user_prompt_template" in capsys.readouterr().err

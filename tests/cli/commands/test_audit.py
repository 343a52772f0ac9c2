"""`covey audit`: what it finds in rollouts, says, and writes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from covey.cli.main import main
from covey.evaluation.estimators import share_estimate
from covey.runlog import names
from covey.view.app import make_app

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def covey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.chdir(tmp_path)

    def command(*words: object) -> tuple[int, str, str]:
        code = main(["audit", *map(str, words)])
        return code, *capsys.readouterr()

    return command


def _write(name: str, *rows: Mapping[str, Any]) -> Path:
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _row(asked: str, said: str, score: float, gold: str | None, **more: Any) -> dict[str, Any]:
    return {"input": f"What is {asked}?", "output": said, "score": score, "gts": gold} | more


@pytest.fixture
def rollouts(covey: Command) -> str:
    """Two steps of two groups each: a right answer that got nothing, a wrong one that was paid, two flat groups."""
    boxed = [f"It is \\boxed{{{number}}}." for number in range(10)]
    _write("dump/1.jsonl", *(_row("1+1", boxed[n], n == 2, "2", step=1) for n in (2, 3)))
    with Path("dump/1.jsonl").open("a") as file:
        for said, score in ((boxed[4], 0.0), (boxed[5], 1.0)):  # the wrong way round
            file.write(json.dumps(_row("2+2", said, score, "4", step=1)) + "\n")
    flat = [_row("1+1", boxed[2] * 2, 1.0, "2", step=2)] * 2 + [_row("2+2", boxed[3] * 2, 0.0, "4", step=2)] * 2
    _write("dump/2.jsonl", *flat)
    return "dump"


def test_the_numbers(rollouts: str, covey: Command) -> None:
    code, text, errors = covey(rollouts, "--json")
    found = json.loads(text)
    assert (code, errors, found["rows"], found["groups"], found["groups_without_signal"]) == (0, "", 8, 4, 2)
    told = [[one[name] for name in ("row", "step", "gold", "extracted", "reward")] for one in found["disagreements"]]
    assert told == [[3, 1, "4", "4", 0.0], [4, 1, "4", "5", 1.0]]
    assert [(one["verdict"], one["disagreement"]) for one in found["disagreements"]] == [
        ("right", "right, not rewarded"),
        ("wrong", "rewarded, not right"),
    ]
    first, last = found["steps"]
    assert (first[names.REWARD], first[names.REWARD_STD], first[names.FRAC_REWARD_ZERO_STD]) == (0.5, 0.5, 0.0)
    assert (last[names.REWARD], last[names.REWARD_STD], last[names.FRAC_REWARD_ZERO_STD]) == (0.5, 0.0, 1.0)
    # By the grader: in step 1 one of two is right in both groups, in step 2 two of one group and none of the other.
    assert (first["train/pass@1"], first["train/pass@2"], last["train/pass@1"], last["train/pass@2"]) == (
        0.5,
        1,
        0.5,
        0.5,
    )
    ends = share_estimate([1.0, 0.0], 4, 2)
    assert (last["train/pass@2_low"], last["train/pass@2_high"]) == (ends.low, ends.high)
    assert first["grader/right"] == 0.5
    assert last[names.CHARACTERS] == 2 * first[names.CHARACTERS] == 2 * len("It is \\boxed{2}.")
    rules = {one["rule"]: one for one in found["findings"]}
    assert rules["rewards_disagree"]["figure"] == "2 of 8 rollouts"
    assert rules["rewards_disagree"]["level"] == "warn"
    assert "1 right, not rewarded: in row 3 of 1.jsonl, the reward is 0 for “4”" in rules["rewards_disagree"]["text"]
    assert rules["groups_without_signal"]["figure"] == "2 of 4 groups"
    assert "Rewarded throughout: 1, for which harder problems" in rules["groups_without_signal"]["text"]
    assert rules["length_drift"]["title"] == "Completions get longer"
    assert "no_signal" not in rules


def test_the_terminal_and_the_page(rollouts: str, covey: Command) -> None:
    code, text, errors = covey(rollouts)
    assert (code, errors) == (0, "")
    first, columns, *_ = text.splitlines()
    assert first == "8 rollouts (files: 2, steps: 2)"
    assert columns == "read: completion = output, prompt = input, reward = score, gold = gts, step = step"
    assert "Rewards and grader disagree (2 of 8 rollouts)" in text
    assert text.splitlines()[-2:] == ["out/audit-dump/report.html", "covey view out/audit-dump"]
    page = Path("out/audit-dump/report.html").read_text(encoding="utf-8")
    assert "An audit of 8 rollouts in dump/1.jsonl and 1 more." in page
    assert "<td>1.jsonl, 3</td><td>1</td><td>right, not rewarded</td><td>4</td><td>4</td><td>0</td>" in page
    assert 'id="completions-data"' in page
    assert len(Path("out/audit-dump/disagreements.jsonl").read_text().splitlines()) == 2
    again = covey(rollouts, "--out", "page.html", "--right", 0.0)  # everything counts as rewarded
    assert again[0] == 0
    assert "4 rewarded, not right" in again[1]
    assert Path("page.html").is_file()
    view = TestClient(make_app(Path("out"), "t", "c"), "http://127.0.0.1:8420")
    run = view.get("/api/run?id=audit-dump", headers={"authorization": "Bearer t"}).json()
    assert run["entry"]["status"] == "finished"
    assert [one["rule"] for one in run["findings"]] == ["rewards_disagree", "groups_without_signal", "length_drift"]
    shown = view.get(
        "/api/completion?id=audit-dump&source=training&row=1:2", headers={"authorization": "Bearer t"}
    ).json()
    assert shown["completions"][0]["extra"]["disagreement"] == "right, not rewarded"


def test_an_audit_replaces_only_an_audit(rollouts: str, covey: Command) -> None:
    assert covey(rollouts)[0] == covey(rollouts)[0] == 0
    assert covey("out/audit-dump", "--json")[0] == 1  # no rollouts of its own
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("keep")
    code, _, errors = covey(rollouts, "--out", "mine")
    assert code == 2
    assert errors == "covey: mine holds what no audit wrote: name another folder with --out.\n"
    assert main(["runs", "rm", "out/audit-dump", "-y"]) == 0
    assert not Path("out/audit-dump").exists()


def test_without_gold_or_rewards(covey: Command) -> None:
    path = _write("x.jsonl", *({"prompt": "1+1", "completion": text, "reward": 1.0} for text in ("2", "3")))
    found = json.loads(covey(path, "--json")[1])
    assert found["disagreements"] is None
    assert found["groups_without_signal"] == 1
    assert found["steps"][0]["train/pass@1"] == 1.0  # by the reward
    (rule,) = (one for one in found["findings"] if one["rule"] == "rewards_disagree")
    assert (rule["level"], rule["figure"]) == ("note", "no column of gold")
    assert "no column of gold" in Path("out/audit-x/report.html").read_text()
    _write("data.jsonl", {"question": "1+1", "answer": "2"})
    found = json.loads(covey(path, "--json", "--gold", "data.jsonl")[1])
    assert [one["row"] for one in found["disagreements"]] == [2]
    found = json.loads(covey(_write("y.jsonl", {"completion": "2", "gold": "2"}), "--json")[1])
    assert found["disagreements"] is found["groups_without_signal"] is None


def test_gold_answers_that_cannot_be_read(covey: Command) -> None:
    """Nothing is compared with them, and what is right is what the rewards say."""
    rows = [_row("up?", "ask", score, "a long poem: of 3 lines, at least") for score in (1.0, 0.0)]
    found = json.loads(covey(_write("x.jsonl", *rows), "--json")[1])
    assert found["disagreements"] is None
    assert found["steps"][0]["train/pass@1"] == 0.5
    rules = {one["rule"]: one["figure"] for one in found["findings"]}
    assert rules["rewards_disagree"] == "no gold answer can be read"
    assert rules["gold_unreadable"] == "100.0% of gradings"


def test_rewards_that_agree(covey: Command) -> None:
    path = _write("x.jsonl", _row("1+1", "2", 0.5, "2"), _row("1+1", "3", 0.0, "2"))
    found = json.loads(covey(path, "--json", "--right", 0.5)[1])
    assert found["disagreements"] == []
    assert found["findings"] == [
        {
            "level": "good",
            "title": "The rewards agree with the grader",
            "figure": "2 rollouts",
            "rule": "rewards_disagree",
        }
        | {"text": "Every one is as the grader accuracy says."}
    ]
    (rule, *_) = json.loads(covey(path, "--json")[1])["findings"]
    assert "The largest reward is below 1: --right says from which" in rule["text"]


def test_the_watch(covey: Command) -> None:
    """One step is enough; a tenth of the completions too."""
    asked = "please tell me how many apples are in these two baskets"
    copied = _row(asked, "how many apples are in these two baskets", 1.0, None)
    empty = _row(asked, "<think>hm</think>", 0.0, None)
    cut = _row(asked, "There are", 0.0, None, finish_reason="length")
    fine = [_row(asked, "There are seven of them.", 1.0, None, finish_reason="stop")] * 7
    found = json.loads(covey(_write("x.jsonl", copied, empty, cut, *fine), "--json")[1])
    figures = {one["rule"]: one["figure"] for one in found["findings"]}
    assert figures["copied_prompt"] == "10% → 10% of completions"
    assert figures["completions_empty"] == "10% of completions"
    assert figures["truncation"] == "12% truncated"  # of the eight that say how they ended


def test_right_answers_without_the_gold_value(covey: Command) -> None:
    rows = [_row("the sum", "\\boxed{92+88}", 1.0, "180")] * 4
    (rule,) = (one for one in json.loads(covey(_write("x.jsonl", *rows), "--json")[1])["disagreements"][:1])
    assert (rule["verdict"], rule["disagreement"]) == ("unevaluated", "rewarded, not right")


def test_tasks_have_their_grader(covey: Command) -> None:
    gold = {"target": 6, "numbers": [1, 2, 3]}
    path = _write("x.jsonl", {"prompt": "make 6", "output": "<answer>1*2*3</answer>", "gts": gold, "score": 0.0})
    found = json.loads(covey(path, "--json")[1])
    assert (found["grader"], len(found["disagreements"])) == ("countdown", 1)
    found = json.loads(covey(path, "--json", "--grader", "accuracy")[1])
    assert found["grader"] == "accuracy"


def test_rewards_of_covey_are_checked_by_their_own_grader(covey: Command, root: Path) -> None:
    """`accuracy` would find answers that `exact_match` refuses for their form."""
    found = json.loads(covey(root / "tests" / "golden" / "run_c148dad", "--json")[1])
    assert (found["rows"], found["grader"], found["disagreements"]) == (32, "exact_match", [])


def test_groups(covey: Command) -> None:
    """By a column that groups; a column that numbers the rows does not."""
    rows = [
        {"prompt": asked, "completion": "x", "reward": 1.0, "uid": uid} for asked, uid in (("a", 0), ("a", 1), ("b", 2))
    ]
    assert json.loads(covey(_write("x.jsonl", *rows), "--json")[1])["groups"] == 1
    rows = [{"prompt": f"turn {at}", "completion": "x", "reward": at % 2, "uid": at // 2} for at in range(4)]
    found = json.loads(covey(_write("x.jsonl", *rows), "--json")[1])
    assert (found["groups"], found["groups_without_signal"]) == (2, 0)


def _findings(found: str) -> dict[str, dict[str, str]]:
    return {one["rule"]: one for one in json.loads(found)["findings"]}


def test_rewards_that_are_no_numbers(covey: Command) -> None:
    """They are a finding, and the tick counts what was compared."""
    rows = [_row(f"1+{at}", f"\\boxed{{{1 + at}}}", 1.0, str(1 + at)) for at in range(6)]
    rows[2]["score"], rows[4]["score"] = float("nan"), None
    rules = _findings(covey(_write("x.jsonl", *rows), "--json")[1])
    assert (rules["rewards_disagree"]["level"], rules["rewards_disagree"]["figure"]) == ("good", "4 rollouts")
    assert (rules["rewards_unread"]["level"], rules["rewards_unread"]["figure"]) == ("warn", "2 of 6 rollouts")
    assert "first in x.jsonl, 3 (row)" in rules["rewards_unread"]["text"]
    rules = _findings(covey(_write("x.jsonl", *(row | {"score": float("nan")} for row in rows)), "--json")[1])
    assert rules["rewards_disagree"]["figure"] == "no reward can be read"
    assert rules["rewards_unread"]["figure"] == "6 of 6 rollouts"


def test_prompts_that_repeat(covey: Command) -> None:
    """In a step, or over all steps; several passes over the data are no repetition."""

    def rules(*asked: tuple[int, str]) -> dict[str, dict[str, str]]:
        rows = [
            {"step": step, "uid": uid, "prompt": prompt, "completion": f"{uid} {at}", "reward": at}
            for uid, (step, prompt) in enumerate(asked)
            for at in (0, 1)
        ]
        return _findings(covey(_write("x.jsonl", *rows), "--json")[1])

    found = rules(*((0, "a") for _ in range(8)))["prompts_repeat"]
    assert (found["level"], found["figure"]) == ("warn", "8 groups, 1 prompts")
    assert "8 groups have one prompt, “a”" in found["text"]
    assert rules(*((step, "a") for step in range(8)))["prompts_repeat"]["level"] == "warn"
    assert "prompts_repeat" not in rules(*((step, prompt) for step in range(4) for prompt in "abcd"))


def test_two_files_of_one_name_have_a_folder_each(covey: Command) -> None:
    row = _row("1+1", "2", 1.0, "2")
    one, two = _write("clean.jsonl", row), _write("b/clean.jsonl", row, row)
    folders = [json.loads(covey(path, "--json")[1])["folder"] for path in (one, two, one, two)]
    assert folders == ["out/audit-clean", "out/audit-clean-2"] * 2
    assert json.loads(Path("out/audit-clean/audit.json").read_text())["rows"] == 1


def test_hostile_texts(covey: Command) -> None:
    evil = "</script><script>alert(1)</script>"
    rows = [_row(evil, "<img src=x onerror=alert(2)>7", 1.0, "\x1b[31m8"), _row(evil, "9\x1b[31m", float("nan"), evil)]
    code, text, _ = covey(_write("x.jsonl", *rows))
    assert code == 0
    assert "\x1b" not in text
    page = Path("out/audit-x/report.html").read_text(encoding="utf-8")
    assert "alert(1)" not in page
    assert "alert(2)" not in page


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["none.jsonl"], 1, "there is no such file"),
        (["x.jsonl", "--reward", "points"], 2, "--reward points: x.jsonl has no such column; it has prompt, text."),
        (["x.jsonl"], 1, "x.jsonl has no column that looks like completions (completion, response, output"),
        (["x.txt"], 1, "unknown file type"),
    ],
)
def test_one_paragraph(words: list[str], code: int, said: str, covey: Command) -> None:
    _write("x.jsonl", {"prompt": "a", "text": "b"})
    Path("x.txt").write_text("a")
    found, text, errors = covey(*words)
    assert (found, text) == (code, "")
    assert said in errors
    assert errors.count("\n") == 1
    assert not Path("out").exists()


def test_real_answers(covey: Command, shared_data: Path) -> None:
    """Published verdicts on models' answers as rewards: Covey's grader agrees; with one turned, it says which."""
    lines = (shared_data / "graders" / "model_outputs.jsonl").read_text(encoding="utf-8").splitlines()[:60]
    rows = [json.loads(line) for line in lines]
    rows[17]["expected"] = not rows[17]["expected"]
    path = _write("x.jsonl", *rows)
    found = json.loads(covey(path, "--json", "--completion", "prediction", "--reward", "expected")[1])
    assert (found["rows"], [one["row"] for one in found["disagreements"]]) == (60, [18])


def test_the_example_on_the_page(covey: Command, root: Path) -> None:
    """docs/audit.md shows what the command says of the rows there."""
    page = (root / "docs" / "audit.md").read_text(encoding="utf-8")
    (rows,), (shown,) = (re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("json", "text"))
    Path("rollouts.jsonl").write_text(rows, encoding="utf-8")
    assert covey("rollouts.jsonl")[1].split() == shown.split()

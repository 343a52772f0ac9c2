"""`covey compare`: comparing two or more evaluations, and which it rejects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from covey.cli.main import main
from covey.errors import RunDirectoryError
from covey.evaluation.stored import answers_text
from covey.runlog.evaluations import read_evaluation


def make_evaluation(folder: Path, right: str, **data: Any) -> Path:
    folder.mkdir()
    about = {"problems": len(right), "problems_fingerprint": "a", "prompts_fingerprint": "b", **data}
    settings = {"format": 1, "name": "test", "data": about, "grader": "accuracy", "num_samples": 1}
    (folder / "settings.json").write_text(json.dumps(settings))
    rows = [{"problem": i, "outcome": "right" if c == "1" else "wrong"} for i, c in enumerate(right)]
    (folder / "completions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "summary.json").write_text('{"format": 1, "metrics": {"accuracy": {"value": null}}}')
    return folder


def test_compare_reports_changes_and_the_sample_size_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = make_evaluation(tmp_path / "a", "0000110000"), make_evaluation(tmp_path / "b", "1111010000")
    c = make_evaluation(tmp_path / "c", "0000110001")
    assert main(["compare", str(a), str(b)]) == 0
    out = capsys.readouterr().out
    assert "+30.0 points" in out
    assert "p = 0.375" in out  # 4 gained, 1 lost: 2 * (1 + 5) / 32
    assert "better in B: 4 (problem 0, 1, 2, 3)" in out
    assert "worse in B: 1 (problem 4)" in out
    assert "80% power" in out
    assert main(["compare", str(a), str(b), str(c)]) == 0
    out = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.count("│") == 8]
    assert [(row[0], row[1], row[3:]) for row in rows] == [
        ("B - A", "+30.0", ["0.375", "0.75", "4", "1"]),
        ("C - A", "+10.0", ["1", "1", "1", "0"]),
    ]
    assert "better in C: 1 (problem 9)" in out


def test_changed_problems_are_shown_with_both_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def answered(folder: str, *answers: tuple[str, str | None, str]) -> Path:
        """An evaluation of two problems with two completions each: outcome, stated answer and text."""
        at = make_evaluation(tmp_path / folder, "11")
        rows = [
            {"problem": i // 2, "sample": i % 2, "outcome": outcome, "extracted": stated, "completion": text}
            | {"prompt": f"What is {i // 2} + 1?\x1b[31m", "answer": str(i // 2 + 1)}
            for i, (outcome, stated, text) in enumerate(answers)
        ]
        (at / "completions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return at

    right = ("right", "1", "")
    a = answered(
        "a", ("wrong", "7", ""), ("unparsable_prediction", None, "I give\nup\x1b[0m"), *[("right", "2", "")] * 2
    )
    b = answered("b", right, right, ("wrong_form", "2", ""), ("right", "2", ""))
    assert main(["compare", str(a), str(b)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    shown = [line.strip() for line in out.partition("better in B")[2].splitlines()[1:]]
    assert shown == [
        "worse in B: 1 (problem 1)",
        "problem 0: What is 0 + 1?[31m (gold answer: 1)",
        "A  0 of 2 right: 7, I give up[0m",
        "B  2 of 2 right: 1 (2)",
        "problem 1: What is 1 + 1?[31m (gold answer: 2)",
        "A  2 of 2 right: 2 (2)",
        "B  1 of 2 right: 2 (2)",
    ]
    assert main(["compare", str(a), str(b), "--list", "0"]) == 0
    assert "What is" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"outcome": "wrong_form", "extracted": "454"}, "wrong form: 454"),
        ({"outcome": "unparsable_prediction", "completion": "a b"}, "unparsable prediction: a b"),
        ({"outcome": "wrong", "completion": "x" * 300}, f"wrong: …{'x' * 200}"),
        ({"reward": 0.25, "completion": "hello"}, "reward 0.25: hello"),
        ({"completion": ""}, "nothing"),
    ],
)
def test_one_answer_in_words(item: dict[str, Any], text: str) -> None:
    assert answers_text([item]) == text


def test_compare_rejects_incomparable_evaluations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, other = make_evaluation(tmp_path / "a", "01"), make_evaluation(tmp_path / "b", "01", prompts_fingerprint="x")
    assert main(["compare", str(a), str(other)]) == 1
    assert "the prompts differ" in capsys.readouterr().err
    assert main(["compare", str(a), str(tmp_path)]) == 1
    assert "is neither an evaluation" in capsys.readouterr().err
    (a / "settings.json").write_text('{"format": 99}')
    with pytest.raises(RunDirectoryError, match="format 99"):
        read_evaluation(a)


def test_compare_names_problems_that_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def asked(folder: str, *problems: tuple[str, str]) -> Path:
        at = make_evaluation(tmp_path / folder, "1" * len(problems), problems_fingerprint=folder)
        rows = [
            {"problem": i, "outcome": "right", "prompt": prompt, "answer": answer}
            for i, (prompt, answer) in enumerate(problems)
        ]
        (at / "completions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return at

    first = asked("a", ("1 + 1", "2"), ("2 + 2", "4"), ("3 + 3", "6"))
    for other, says in (
        (asked("b", ("1 + 1", "2"), ("2 + 5", "7"), ("3 + 4", "7")), "(2 of 3; the first is problem 1, “2 + 2” and “2"),
        (
            asked("c", ("1 + 1", "2"), ("2 + 2", "5"), ("3 + 3", "6")),
            "(1 of 3; the first is problem 1, its answer “4” a",
        ),
        (asked("d", ("1 + 1", "2")), "the problems (3 and 1) differ"),
    ):
        assert main(["compare", str(first), str(other)]) == 1
        assert says in capsys.readouterr().err


def test_compare_hints_at_different_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [make_evaluation(tmp_path / name, "01", problems_fingerprint=name) for name in "ab"]
    for seed, folder in enumerate(folders):
        settings = json.loads((folder / "settings.json").read_text())
        (folder / "settings.json").write_text(json.dumps({**settings, "seed": seed}))
    assert main(["compare", *map(str, folders)]) == 1
    assert "Their seeds differ" in capsys.readouterr().err


def test_runs_are_compared_on_the_main_held_out_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run in ("a", "b"):
        (tmp_path / run / "evaluation").mkdir(parents=True)
        for name in ("test", "hard"):  # the harder set is the newer one
            folder = make_evaluation(tmp_path / run / "evaluation" / f"{name}-final-greedy", "01")
            settings = json.loads((folder / "settings.json").read_text())
            (folder / "settings.json").write_text(json.dumps({**settings, "name": name}))
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert "b/evaluation/test-final-greedy" in capsys.readouterr().out
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "a")]) == 2
    assert f"{tmp_path / 'a'} is given twice" in capsys.readouterr().err


def test_compare_rejects_different_sampling_and_system_prompts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def settings(folder: Path, **more: Any) -> None:
        settings = json.loads((folder / "settings.json").read_text())
        settings["data"] |= more.pop("data", {})
        (folder / "settings.json").write_text(json.dumps(settings | more))

    a, b = make_evaluation(tmp_path / "a", "0000110000"), make_evaluation(tmp_path / "b", "1111010000")
    settings(a, sampling={"temperature": 1.0, "top_k": 0})
    settings(b, sampling={"temperature": 0.0, "top_k": 0})
    assert main(["compare", str(a), str(b)]) == 1
    assert "sampled differently (temperature 1.0 and 0.0)" in capsys.readouterr().err
    assert main(["compare", str(a), str(b), "--any-sampling"]) == 0
    settings(
        b, sampling={"temperature": 1.0, "top_k": 0}, data={"system_prompt": "Be brief.", "prompts_fingerprint": "x"}
    )
    assert main(["compare", str(a), str(b)]) == 1
    assert "the system prompt (none and “Be brief.”) differ." in capsys.readouterr().err


def with_modes(folder: Path, found: list[list[str | None]]) -> Path:
    """An evaluation of countdown problems with the answers 1+2+3, 1*2*3 and 2*3/1, by the modes of the completions."""
    make_evaluation(folder, "0" * len(found))
    answer = json.dumps({"numbers": [1, 2, 3], "target": 6})
    rows = [
        {"problem": problem, "answer": answer, "outcome": "wrong" if mode is None else "right", "mode": mode}
        for problem, modes in enumerate(found)
        for mode in modes
    ]
    (folder / "completions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = json.loads((folder / "settings.json").read_text()) | {"grader": "countdown", "num_samples": 4}
    (folder / "settings.json").write_text(json.dumps(settings))
    names = ("accuracy", "pass@2", "pass@4", "distinct@2", "distinct@4", "coverage@4", "maj@4")
    metrics = {name: {"value": 0.5, "low": 0.25, "high": 0.75} for name in (*names, "distinct_if_solved@4")}
    metrics |= {f"chance/{name}": {"value": 0.125} for name in ("accuracy", "coverage@4", "distinct_if_solved@4")}
    (folder / "summary.json").write_text(json.dumps({"format": 1, "metrics": metrics}))
    return folder


def test_the_figures_of_several_right_answers_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = "1+2+3", "1*2*3"
    a = with_modes(tmp_path / "a", [[one, one, None, None], [None] * 4, [one] * 4, [None] * 4])
    b = with_modes(tmp_path / "b", [[one, two, None, None], [None] * 4, [one, one, two, two], [one, None, None, None]])
    assert main(["compare", str(a), str(b)]) == 0
    out = capsys.readouterr().out
    assert "distinct@4: 0.50, 1.25" in out  # (1 + 0 + 1 + 0) / 4 and (2 + 0 + 2 + 1) / 4
    assert "B - A: +0.75 (95% interval" in out
    assert "coverage@4: 16.7%, 41.7%" in out
    assert "(95% intervals 25.0% – 75.0%, 25.0% – 75.0%; random answers 12.5%)" in out
    assert "B - A: +25.0 points" in out
    assert "accuracy (grader: countdown); random answers 12.5%" in out
    assert "distinct_if_solved@4: 0.50, 0.50 (95% intervals 0.25 – 0.75, 0.25 – 0.75; random answers 0.12)" in out
    assert main(["compare", str(a), str(b), "--metric", "distinct@2"]) == 0
    out = capsys.readouterr().out
    # A: 1 - C(2,2)/C(4,2) and 1; B: 2 (1 - C(3,2)/C(4,2)), 2 (1 - C(2,2)/C(4,2)) and 1 - C(3,2)/C(4,2)
    assert f"A  {a}: {(5 / 6 + 1) / 4:.2f}" in out
    assert f"B  {b}: {(2 * 0.5 + 2 * 5 / 6 + 0.5) / 4:.2f}" in out
    assert main(["compare", str(a), str(b), "--metric", "maj@4"]) == 1
    shared = "accuracy, pass@2, pass@4, distinct@2, distinct@4, coverage@4."
    assert f"compared; those are {shared}" in capsys.readouterr().err


def test_modes_that_are_no_texts_are_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = (with_modes(tmp_path / name, [["1+2+3"] * 4] * 4) for name in "ab")
    completions = b / "completions.jsonl"
    completions.write_text(completions.read_text().replace('"mode": "1+2+3"', '"mode": ["1+2+3"]'))
    assert main(["compare", str(a), str(b)]) == 1
    assert "has completions whose answers or modes are no texts" in capsys.readouterr().err


def test_compare_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = make_evaluation(tmp_path / "a", "0000110000"), make_evaluation(tmp_path / "b", "1111010000")
    c = make_evaluation(tmp_path / "c", "0000110001")
    assert main(["compare", "--json", str(a), str(b), str(c)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["letter"], one["path"], one["grader"]) for one in found["evaluations"]] == [
        (letter, str(folder), "accuracy") for letter, folder in zip("ABC", (a, b, c), strict=True)
    ]
    assert all(one["metrics"]["accuracy"].keys() == {"value", "low", "high"} for one in found["evaluations"])
    first, second = found["differences"]
    assert (first["metric"], first["of"], first["to"], first["problems"]) == ("accuracy", "B", "A", 10)
    assert (first["difference"], first["p_value"], first["p_value_corrected"]) == pytest.approx((0.3, 0.375, 0.75))
    assert (first["gained"], first["lost"]) == ([0, 1, 2, 3], [4])
    assert first["plan"]["samples"]["value"] is None  # NaN: one sample of each
    assert (second["of"], second["p_value_corrected"]) == ("C", 1)
    (tmp_path / "run" / "evaluation").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").touch()
    a.rename(tmp_path / "run" / "evaluation" / "a")
    assert main(["compare", str(tmp_path / "run"), "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert one["settings"]["num_samples"] == 1
    assert one["metrics"] == {"accuracy": {"value": None, "low": None, "high": None}}

"""What is compared and what is refused, the same for `covey compare` and the pages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from covey.cli.main import main
from covey.errors import RunDirectoryError
from covey.evaluation.comparison import (
    NotComparableError,
    PairedResult,
    compare_evaluations,
    compare_runs,
    compare_steps,
    correct,
    scores,
)
from covey.evaluation.estimators import Estimate, t_estimate
from covey.evaluation.figures import change_ends_text, change_text, ends_text, estimate_text, paired_text, value_text
from covey.evaluation.paired import compare
from covey.evaluation.stored import read_stored
from covey.importing import code_hashes
from covey.runlog.directory import RunDirectory
from covey.runlog.files import json_line
from made_run import write_evaluation

CONFIG = "seed: 0\ndataset: {task: arithmetic}\nrewards: {funcs: [%s]}\n"
RIGHT = [1.0, 1.0, 0.0, 1.0]


def _run(root: Path, config: str = CONFIG % "exact_match", scores: list[float] = RIGHT) -> Path:
    root.mkdir()
    (root / "config.yaml").write_text(config)
    write_evaluation(root, 20, scores)
    return root


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (CONFIG % "accuracy", "the grader (“exact_match” and “accuracy”) differ"),
        (
            CONFIG % "exact_match" + "evaluation: {temperature: 0}\n",
            "sampled differently (temperature 1.0 and 0)",
        ),
        (
            "dataset: {task: arithmetic, system_prompt: Think.}\nrewards: {funcs: [exact_match]}\n",
            "the system prompt (none and “Think.”) differ",
        ),
        (
            CONFIG % "exact_match" + "model: {chat_template: qwen}\n",
            "the chat template (none and “qwen”) differ",
        ),
        (
            CONFIG % "exact_match" + "training: {chat_template_kwargs: {enable_thinking: false}}\n",
            "the arguments of the chat template (none and {'enable_thinking': False}) differ",
        ),
        (
            CONFIG % "exact_match" + "environment: {tools: [calculator], max_turns: 3}\n",
            "the environment and tools (none and “calculator, at most 3 turns”) differ",
        ),
    ],
)
def test_identical_completions_measured_differently_are_refused_everywhere(
    config: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = _run(tmp_path / "one"), _run(tmp_path / "other", config)
    assert main(["compare", str(one), str(other)]) == 1
    assert reason in capsys.readouterr().err
    (result,) = compare_runs(one, other)
    assert (result.found, result.reason) == (None, reason)


def test_a_grader_whose_file_has_changed_is_another_one(tmp_path: Path) -> None:
    """By name it is the same; an older run, which has no hash, is compared."""
    file = tmp_path / "mine.py"
    grader = f"{file}:half"
    config = f"dataset: {{task: arithmetic}}\nevaluation: {{grader: '{grader}'}}\n"
    runs = [tmp_path / name for name in ("one", "other", "old")]
    for number, run in enumerate(runs):
        _run(run, config)
        file.write_text(f"def half(completions, **kwargs):\n    return [{number}]\n")
        if run.name != "old":
            RunDirectory(run).write_environment(code_hashes([grader, "exact_match"]))
    assert RunDirectory(runs[0]).code_hashes().keys() == {grader}
    assert compare_runs(runs[0], runs[1])[0].reason == f"the contents of {file} differ"
    assert compare_runs(runs[0], runs[2])[0].found is not None


def test_other_problems_are_refused_with_the_reason(tmp_path: Path) -> None:
    one, other = _run(tmp_path / "one"), _run(tmp_path / "other", scores=[1.0, 0.0])
    assert compare_runs(one, other)[0].reason == "the problems (4 and 2) differ"
    (other / "config.yaml").unlink()
    assert "config.yaml" in compare_runs(one, other)[0].reason  # how it was measured is unknown
    (other / "evaluation" / "test-step-000020.jsonl").write_text('{"problem": 0}\n{}\n')
    (other / "config.yaml").write_text(CONFIG % "exact_match")
    assert "holds completions without 'problem'" in compare_runs(one, other)[0].reason


def test_the_newest_evaluations_of_each_set_are_compared(tmp_path: Path) -> None:
    one, other = _run(tmp_path / "one"), _run(tmp_path / "other", scores=[1.0, 0.0, 1.0, 1.0])
    write_evaluation(other, 5, [0.0] * 4)
    write_evaluation(one, 20, [0.0], "hard")
    write_evaluation(other, 20, [1.0], "hard")
    main_set, hard = compare_runs(one, other)
    assert (main_set.name, main_set.steps, main_set.metric, main_set.grader) == (
        *("test", (20, 20), "accuracy", "exact_match"),
    )
    assert main_set.found is not None
    assert (main_set.found.difference, main_set.found.gained, main_set.found.lost) == (0.0, (2,), (1,))
    assert (hard.name, hard.verdict) == ("hard", 0)  # one problem shows nothing


def test_steps_of_one_run_and_what_is_missing(tmp_path: Path) -> None:
    run = _run(tmp_path / "run", scores=[1.0] * 8)
    write_evaluation(run, 0, [0.0] * 8)
    rose = compare_steps(run, "test", 0, 20, "accuracy")
    assert rose.found is not None
    assert (rose.verdict, rose.found.p_value) == (1, 2 / 2**8)
    assert compare_steps(run, "test", 20, 0, "accuracy").verdict == -1
    missing = compare_steps(run, "test", 0, 10, "accuracy")
    assert (missing.found, missing.reason, missing.verdict) == (None, "the completions of step 10 are not there", 0)


def test_rewards_are_compared_as_numbers(tmp_path: Path) -> None:
    run = _run(tmp_path / "run", scores=[2.0, 4.0, 3.0])
    write_evaluation(run, 0, [1.0, 1.0, 1.0])
    found = compare_steps(run, "test", 0, 20, "reward").found
    assert found is not None
    # Differences 1, 3, 2: mean 2, standard error 1 / √3, t(2) = 4.302653; of the 8 signs 2 reach a sum of 6.
    assert (found.difference, found.p_value) == (2.0, 0.25)
    assert (found.low, found.high) == (pytest.approx(2 - 4.302653 / 3**0.5), pytest.approx(2 + 4.302653 / 3**0.5))
    by_function = compare_steps(run, "test", 0, 20, "reward/exact_match").found
    assert by_function is not None
    assert by_function.difference == 2.0


def test_an_environment_s_rewards_are_compared_as_accuracy(tmp_path: Path) -> None:
    """Rewards of four problems: the differences are 0.5, -0.5, 0.25 and 0."""
    config = "seed: 0\ndataset: {task: null}\nrewards: {funcs: []}\nenvironment: {factory: number_guess}\n"
    runs = []
    for name, values in (("one", [0.0, 1.0, 0.5, 0.5]), ("other", [0.5, 0.5, 0.75, 0.5])):
        run = _run(tmp_path / name, config, [1.0] * 4)
        file = run / "evaluation" / "test-step-000020.jsonl"
        items = [json.loads(line) for line in file.read_text().splitlines()]
        for item, value in zip(items, values, strict=True):
            of_episode = {"score": value, "turns": 1, "tool_calls": 0, "tool_failures": 0, "row": {"seed": 2}}
            item |= {"outcome": "right", **of_episode, "environment_seconds": 0.0, "episode": "answered"}
        file.write_text("".join(map(json_line, items)))
        runs.append(run)
    (result,) = compare_runs(*runs)
    assert result.found is not None
    assert result.grader == "environment"
    assert (result.found.first, result.found.second) == (0.5, 0.5625)
    assert result.found.difference == 0.0625
    stored = read_stored(runs[1] / "evaluation" / "test-step-000020.jsonl")
    assert stored.summary["accuracy"]["value"] == 0.5625
    assert stored.summary["episode/answered"]["value"] == 1.0
    assert scores(stored) == [[0.5], [0.5], [0.75], [0.5]]


def test_a_missing_reward_is_left_out_on_both_sides(tmp_path: Path) -> None:
    first = write_evaluation(_run(tmp_path / "run"), 0, [1.0, 1.0, 1.0])
    second = write_evaluation(tmp_path / "run", 20, [5.0, 2.0, 3.0])
    second.write_text(second.read_text().replace('"reward": 5.0', '"reward": null'))
    ones, others = read_stored(first), read_stored(second)
    assert scores(others, "reward") == [[], [2.0], [3.0]]
    found = compare_evaluations(ones, others, metric="reward")
    assert (found.problems, found.difference, found.gained) == (2, 1.5, (1, 2))


def test_evaluations_without_scores_are_not_compared(tmp_path: Path) -> None:
    run = _run(tmp_path / "run")
    for step in (0, 9):
        file = write_evaluation(run, step, [1.0])
        file.write_text(file.read_text().replace('"reward": 1.0', '"reward": null'))
    assert compare_steps(run, "test", 0, 9, "reward").reason == "no problem has a score in both"


def test_rewards_of_other_functions_are_refused(tmp_path: Path) -> None:
    one, other = _run(tmp_path / "one"), _run(tmp_path / "other", CONFIG % "exact_match, format")
    pair = [read_stored(run / "evaluation" / "test-step-000020.jsonl") for run in (one, other)]
    assert compare_evaluations(*pair).difference == 0  # the accuracy does not depend on them
    with pytest.raises(NotComparableError, match="the rewards"):
        compare_evaluations(*pair, metric="reward")


def test_holm_over_the_comparisons_of_each_set() -> None:
    def result(name: str, gained: int) -> PairedResult:
        return PairedResult(name, found=compare([[0.0]] * 10, [[1.0]] * gained + [[0.0]] * (10 - gained)))

    results = correct([result("test", 7), result("test", 6), result("hard", 6), PairedResult("test", reason="no")])
    # McNemar: 2 / 2^7 and 2 / 2^6; the smaller counts twice.
    assert [one.corrected for one in results] == [2 * 2 / 2**7, 2 / 2**6, None, None]


def test_damaged_completions_are_named(tmp_path: Path) -> None:
    stored = read_stored(write_evaluation(_run(tmp_path / "run"), 0, [1.0, 1.0]))
    stored.folder.write_text(stored.folder.read_text().replace('"problem": 1', '"problem": null'))
    with pytest.raises(RunDirectoryError, match=r"Completion 2 of .* has no problem or no outcome"):
        scores(stored)


def test_figures_as_text() -> None:
    estimate = Estimate(0.6321, 0.6012, 0.6618)
    assert estimate_text(estimate) == "63.2% [60.1 to 66.2]"
    assert ends_text(estimate) == "60.1% – 66.2%"
    assert estimate_text(estimate, "reward") == "0.632 [0.601 to 0.662]"
    assert estimate_text(Estimate(31.46, float("nan"), float("nan")), "completion_length") == "31.5"
    assert (value_text(float("nan")), ends_text(Estimate(*[float("nan")] * 3))) == ("n/a", "n/a")
    assert (change_text(-0.08), change_text(0.08, "reward/own")) == ("-8.0", "+0.080")
    assert change_ends_text(-0.05, 0.11) == "-5.0 to +11.0"
    found = compare([[0.0]] * 10, [[1.0]] * 5 + [[0.0]] * 5)
    assert paired_text(found).startswith("+50.0 points (95% interval ")
    assert paired_text(found).endswith("), p = 0.0625")  # 2 / 2^5


def test_the_t_interval_of_a_mean_by_hand() -> None:
    found = t_estimate([1.0, 2.0, 3.0, 6.0])  # mean 3, variance (4 + 1 + 0 + 9) / 3, t(3) = 3.182446
    half = 3.182446 * (14 / 3 / 4) ** 0.5
    assert (found.value, found.low, found.high) == (3.0, pytest.approx(3 - half), pytest.approx(3 + half))


GAME = "dataset: {task: null%s}\nrewards: {funcs: []}\nenvironment: {factory: number_guess}\n"


def test_runs_of_other_seeds_are_paired_and_other_held_out_problems_are_not(tmp_path: Path) -> None:
    """Of an environment the start belongs to the problem. An older run's config means its `seed`."""
    configs = {
        "one": "defaults: []\nseed: 1\n" + GAME % ", seed: 0",
        "two": "defaults: []\nseed: 2\n" + GAME % ", seed: 0",
        "other": "defaults: []\nseed: 1\n" + GAME % ", seed: 2",
        "older": "defaults: []\nseed: 2\n" + GAME % "",
    }
    runs = {name: _run(tmp_path / name, config) for name, config in configs.items()}
    assert compare_runs(runs["one"], runs["two"])[0].found is not None
    assert compare_runs(runs["other"], runs["older"])[0].found is not None
    for name in ("other", "older"):
        (result,) = compare_runs(runs["two"], runs[name])
        assert result.found is None
        assert result.reason.startswith("the problems differ. Their seeds differ (dataset.seed=0 and 2): give ")


def test_the_hint_of_an_older_evaluation_has_its_seed(tmp_path: Path) -> None:
    pair = [tmp_path / name for name in ("new", "older")]
    for folder, data in zip(pair, ({"seed": 0}, {}), strict=True):
        folder.mkdir()
        known = {"problems": 1, "problems_fingerprint": folder.name, **data}
        settings = {"format": 1, "name": "test", "seed": 7919 + 3, "num_samples": 1, "data": known}
        (folder / "settings.json").write_text(json.dumps(settings))
        (folder / "summary.json").write_text('{"format": 1, "metrics": {"reward": {}}}')
        (folder / "completions.jsonl").write_text(json.dumps({"problem": 0, "prompt": folder.name}) + "\n")
    hint = r"Their seeds differ \(dataset\.seed=0 and 3\): give `covey eval` one dataset\.seed=N for both"
    with pytest.raises(NotComparableError, match=hint):
        compare_evaluations(*map(read_stored, pair))

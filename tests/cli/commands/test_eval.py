"""`covey eval` and `covey compare` on a tiny model."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from covey.cli.main import main
from covey.errors import RunDirectoryError
from covey.evaluation.job import named
from covey.rollout import Completion
from covey.runlog.evaluations import list_evaluations, read_evaluation
from covey.runlog.metrics import read_metrics
from fake_engine import FakeEngine

SMALL = ("dataset=arithmetic", "dataset.test_size=6", "dataset.hard_size=0", "dataset.train_size=12")
Evaluate = Callable[..., tuple[int, str]]


@pytest.fixture
def evaluate(tiny_model: str, capsys: pytest.CaptureFixture[str]) -> Evaluate:
    def call(out: Path, *words: str, model: str | None = None) -> tuple[int, str]:
        more = ("evaluation.batch_size=4", "training.max_completion_length=6")
        code = main(["eval", model or tiny_model, *SMALL, *more, *words, "--out", str(out)])
        captured = capsys.readouterr()
        return code, " ".join((captured.out + captured.err).split())

    return call


def test_a_stopped_evaluation_resumes_to_the_same_result(evaluate: Evaluate, tmp_path: Path) -> None:
    assert evaluate(tmp_path / "whole", "evaluation.num_passes=2")[0] == 0
    whole = read_evaluation(tmp_path / "whole")
    assert [(c["problem"], c["sample"]) for c in whole.completions()] == [(p, s) for p in range(6) for s in range(2)]
    assert {"accuracy", "partial_accuracy", "format", "avg@2", "pass@1", "pass@2", "maj@2"} <= whole.summary.keys()
    evaluate(tmp_path / "cut", "evaluation.num_samples=2")
    file = tmp_path / "cut" / "completions.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:6]) + lines[6][:20])  # in the middle of a batch, and of a line
    (tmp_path / "cut" / "summary.json").unlink()
    assert evaluate(tmp_path / "cut", "evaluation.num_samples=2")[0] == 0
    assert file.read_bytes() == (tmp_path / "whole" / "completions.jsonl").read_bytes()
    assert read_evaluation(tmp_path / "cut").summary == whole.summary
    file.write_text(json.dumps({"problem": 0, "text": "of another program"}) + "\n")
    code, output = evaluate(tmp_path / "cut", "evaluation.num_samples=2")
    assert code == 1
    assert "holds a completion that `covey eval` did not write" in output
    code, output = evaluate(tmp_path / "cut", "evaluation=greedy")
    assert code == 1
    assert "num_samples: 2 there, 1 here; sampling.temperature: 1.0 there, 0.0 here" in output


def test_an_evaluation_on_fewer_problems_is_extended(evaluate: Evaluate, tmp_path: Path) -> None:
    """6 problems in batches of 4, two completions each: of the 6 completions of 3 problems, one batch is kept."""
    samples = "evaluation.num_samples=2"
    assert evaluate(tmp_path / "whole", samples)[0] == 0
    assert evaluate(tmp_path / "out", samples, "evaluation.max_problems=3")[0] == 0
    file = tmp_path / "out" / "completions.jsonl"
    few = file.read_bytes()
    assert len(few.splitlines()) == 6
    assert evaluate(tmp_path / "out", samples)[0] == 0
    assert file.read_bytes() == (tmp_path / "whole" / "completions.jsonl").read_bytes()
    extended, whole = (read_evaluation(tmp_path / name) for name in ("out", "whole"))
    assert extended.summary == whole.summary
    assert extended.settings["data"] == whole.settings["data"]
    code, output = evaluate(tmp_path / "out", samples, "evaluation.max_problems=3")
    assert code == 1
    assert "data.problems: 6 there, 3 here" in output
    assert "--overwrite" in output
    assert len(file.read_bytes().splitlines()) == 12
    assert evaluate(tmp_path / "out", samples, "evaluation.max_problems=3", "--overwrite")[0] == 0
    assert file.read_bytes() == few
    written = file.stat().st_mtime_ns
    code, output = evaluate(tmp_path / "out", samples, "seed=5")  # more problems, and other ones
    assert code == 1
    assert "other problems" in output
    assert file.stat().st_mtime_ns == written


def test_progress_into_a_pipe_is_lines(evaluate: Evaluate, tmp_path: Path) -> None:
    """12 completions in batches of 4."""
    code, output = evaluate(tmp_path / "out", "evaluation.num_samples=2")
    assert code == 0
    assert re.findall(r"held-out: (\d+) of (\d+) completions", output) == [(str(done), "12") for done in (0, 4, 8, 12)]
    _, output = evaluate(tmp_path / "json", "evaluation.num_samples=2", "--json")
    found, _ = json.JSONDecoder().raw_decode(output[output.index("[ {") :])  # on stdout, and the lines on stderr
    assert found[0]["metrics"]["accuracy"]["value"] >= 0


def test_overwriting_replaces_other_settings_only(evaluate: Evaluate, tmp_path: Path) -> None:
    assert evaluate(tmp_path / "out")[0] == 0
    file = tmp_path / "out" / "completions.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:4]))
    (tmp_path / "out" / "summary.json").unlink()
    assert evaluate(tmp_path / "out", "--overwrite")[0] == 0  # resumes: the settings are the same
    assert file.read_text() == "".join(lines)
    assert evaluate(tmp_path / "out", "evaluation=greedy", "--overwrite")[0] == 0
    assert read_evaluation(tmp_path / "out").settings["sampling"]["temperature"] == 0


def test_k_is_chosen_and_changed_without_sampling_again(evaluate: Evaluate, tmp_path: Path) -> None:
    assert evaluate(tmp_path / "out", "evaluation.num_samples=4", "evaluation.k=[3,1]")[0] == 0
    first = read_evaluation(tmp_path / "out")
    of_k = {name for name in first.summary if "@" in name}
    assert of_k == {"avg@4", "pass@1", "pass@3", "maj@3"}
    written = (tmp_path / "out" / "completions.jsonl").read_bytes()
    assert evaluate(tmp_path / "out", "evaluation.num_samples=4", "evaluation.k=[2]")[0] == 0
    second = read_evaluation(tmp_path / "out")
    assert {name for name in second.summary if "@" in name} == {"avg@4", "pass@2", "maj@2"}
    assert (tmp_path / "out" / "completions.jsonl").read_bytes() == written
    code, output = evaluate(tmp_path / "more", "evaluation.num_samples=4", "evaluation.k=[1,8]")
    assert code != 0
    assert "evaluation.k=[1, 8] is not possible with evaluation.num_samples=4" in output
    assert not (tmp_path / "more").exists()


def test_a_checkpoint_gives_what_training_logged(
    evaluate: Evaluate, tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = (
        *("training.per_device_train_batch_size=8", "training.gradient_accumulation_steps=1"),
        *("training.num_generations=4", "training.max_completion_length=6", "training.max_steps=2"),
        *("training.save_steps=2", "evaluation.every_steps=2", "evaluation.batch_size=4"),
    )
    words = ("model=starter", f"model.name={tiny_model}", f"output_dir={tmp_path}", "run_name=run")
    assert main(["train", *words, *SMALL, *settings]) == 0
    run = tmp_path / "run"
    logged = read_metrics(run / "metrics.jsonl")[-1]
    assert main(["eval", str(run / "checkpoint-2")]) == 0
    assert main(["eval", str(run)]) == 0
    capsys.readouterr()
    checkpoint, final = list_evaluations(run)
    assert (checkpoint.name, final.name) == ("test-checkpoint-2-sampled", "test-final-sampled")
    for name in ("accuracy", "format", "completion_length", "truncated"):
        assert checkpoint.summary[name]["value"] == final.summary[name]["value"] == logged[f"eval/{name}"]
    trained = [json.loads(line) for line in (run / "evaluation" / "test-step-000002.jsonl").read_text().splitlines()]
    assert [c["completion"] for c in checkpoint.completions()] == [c["completion"] for c in trained]


@pytest.mark.parametrize(("name", "file"), [("gsm8k", "gsm8k_test"), ("math500", "math500_test"), ("aime24", "aime24")])
def test_benchmarks_from_local_files(
    evaluate: Evaluate, tmp_path: Path, shared_data: Path, name: str, file: str
) -> None:
    alias = {"math500": "math_500"}.get(name, name)  # found under either name
    words = (f"benchmarks=[{alias}]", "evaluation.max_problems=3", "--path", f"{name}={shared_data / file}.jsonl")
    code, output = evaluate(tmp_path / "out", *words)
    assert code == 0, output
    first = (shared_data / f"{file}.jsonl").read_text(encoding="utf-8").splitlines()[0]
    question = json.loads(first).get("question") or json.loads(first)["problem"]
    assert next(read_evaluation(tmp_path / "out").completions())["prompt"] == question.strip()


@pytest.mark.parametrize(
    ("theirs", "ours"), [("math_500", "math500"), ("MATH-500", "math500"), ("aime_2024", "aime24"), ("gpqa", "gpqa")]
)
def test_benchmark_names_of_other_tools(theirs: str, ours: str) -> None:
    assert named(theirs) == ours


def test_an_unknown_benchmark_names_the_nearest(evaluate: Evaluate, tmp_path: Path) -> None:
    code, output = evaluate(tmp_path / "out", "benchmarks=[math50]")
    assert code == 2
    assert "no benchmark math50" in output
    assert "Did you mean math500?" in output


def test_two_evaluations_do_not_write_into_one_folder(tmp_path: Path) -> None:
    from covey.runlog.evaluations import begin_evaluation, writing_evaluation

    folder = tmp_path / "out"
    with writing_evaluation(folder):
        assert begin_evaluation(folder, {"seed": 1}) == []
        with pytest.raises(RunDirectoryError, match=r"written by another process.*--out"), writing_evaluation(folder):
            pytest.fail("two at once")
    (folder / ".settings.json.17.tmp").write_text("cut off")
    with writing_evaluation(folder):
        assert sorted(path.name for path in folder.glob(".*.tmp")) == []
        assert begin_evaluation(folder, {"seed": 1}) == []


def test_evaluations_of_training_are_listed_and_compared(
    tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert training(tiny_model, tmp_path) == 0
    run = tmp_path / "run"
    before, after = (run / "evaluation" / f"test-step-00000{step}.jsonl" for step in (0, 2))
    capsys.readouterr()
    assert main(["compare", str(run)]) == 0
    listed = capsys.readouterr().out
    assert "test-step-000000.jsonl" in listed
    assert "test-step-000002.jsonl" in listed
    assert main(["compare", str(before), str(after)]) == 0
    assert "B - A on 6 problems" in capsys.readouterr().out
    (tmp_path / "other").mkdir()
    for name in ("evaluation", "config.yaml"):
        (tmp_path / "other" / name).symlink_to(run / name)
    assert main(["compare", str(run), str(tmp_path / "other")]) == 0
    assert "test-step-000002.jsonl: " in capsys.readouterr().out  # the newest of both
    assert main(["eval", str(run / "checkpoint-2")]) == 0
    assert main(["compare", str(after), str(run / "evaluation" / "test-checkpoint-2-sampled")]) == 0
    assert "+0.0 points" in capsys.readouterr().out
    assert main(["eval", str(run), "dataset.test_size=5"]) == 0
    assert main(["compare", str(after), str(run / "evaluation" / "test-final-sampled")]) == 1
    assert "the problems (6 and 5) differ" in capsys.readouterr().err
    stray = tmp_path / "stray.jsonl"
    stray.write_text("{}\n")
    assert main(["compare", str(stray), str(after)]) == 1
    assert "not an evaluation of a training run" in capsys.readouterr().err


GSM8K = ("What is 2 plus 3?\tadd them #### 5", "What is 7 minus 3?\tsubtract #### 4", "And 9 plus 9?\tadd #### 18")


def test_all_takes_every_row_of_a_file(evaluate: Evaluate, tmp_path: Path, gsm8k: Path) -> None:
    words = ("dataset=gsm8k", f"dataset.path={gsm8k}")
    assert evaluate(tmp_path / "all", *words, "--all")[0] == 0
    asked = [item["prompt"] for item in read_evaluation(tmp_path / "all").completions()]
    assert asked == [line.split("\t")[0] for line in GSM8K]
    code, output = evaluate(tmp_path / "out", "--all")
    assert (code, "every row of a file" in output) == (2, True)


@pytest.fixture
def gsm8k(tmp_path: Path) -> Path:
    rows = [dict(zip(("question", "answer"), line.split("\t"), strict=True)) for line in GSM8K]
    file = tmp_path / "gsm8k.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def training(model: str, out: Path, *words: str) -> int:
    settings = (
        *("model=starter", f"model.name={model}", f"output_dir={out}", "run_name=run", *SMALL),
        *("training.per_device_train_batch_size=8", "training.gradient_accumulation_steps=1"),
        *("training.num_generations=4", "training.max_completion_length=6", "training.max_steps=2"),
        *("training.save_steps=2", "evaluation.every_steps=2", "evaluation.batch_size=4"),
    )
    return main(["train", *settings, *words])


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """The TensorBoard scalars of a run: step and value by name, over all of its files."""
    found: dict[str, list[tuple[int, float]]] = {}
    for file in sorted(run.rglob("events.out.tfevents.*")):
        events = EventAccumulator(str(file)).Reload()
        for tag in events.Tags()["scalars"]:
            found.setdefault(tag, []).extend((event.step, event.value) for event in events.Scalars(tag))
    return found


def test_benchmarks_run_after_training_by_the_code_of_the_command(
    tiny_model: str, tmp_path: Path, gsm8k: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        *("benchmarks=[gsm8k]", "evaluation.num_samples=2", "dataset.system_prompt=Answer briefly."),
        "logging=tensorboard",
    )
    assert training(tiny_model, tmp_path, *words, f"evaluation.benchmark_paths.gsm8k={gsm8k}") == 0
    output = capsys.readouterr().out
    run = tmp_path / "run"
    (stored,) = list_evaluations(run)
    assert stored.name == "gsm8k-final-sampled-x2"
    accuracy = stored.summary["accuracy"]["value"]
    assert f"gsm8k (final, 3 problems, temperature 1): {accuracy:.1%}" in output
    assert json.loads((run / "summary.json").read_text())["evaluations"][0]["accuracy"] == accuracy
    logged = scalars(run)
    for name, key in (("accuracy", "accuracy"), ("pass_at_2", "pass@2"), ("completion_length", "completion_length")):
        for ending, part in (("", "value"), ("_low", "low"), ("_high", "high")):
            assert logged[f"eval/gsm8k/{name}{ending}"] == [(2, pytest.approx(stored.summary[key][part], rel=1e-6))]
    page = (run / "report.html").read_text(encoding="utf-8")
    assert f"<td>gsm8k</td><td>accuracy {accuracy:.1%} [" in page
    assert "</td><td>final</td><td>3 × 2</td><td>temperature 1</td>" in page
    assert main(["eval", str(run), "--out", str(tmp_path / "again")]) == 0  # its config names the benchmark
    again = read_evaluation(tmp_path / "again")
    assert list(again.completions()) == list(stored.completions())
    assert {"data", "sampling", "model"} <= {
        k for k, v in again.settings.items() if v == stored.settings[k] or k == "model"
    }
    usual = ("eval", tiny_model, "benchmarks=[gsm8k]", "--path", f"gsm8k={gsm8k}", "training.max_completion_length=6")
    assert main([*usual, "--out", str(tmp_path / "usual")]) == 0
    asked = [read_evaluation(tmp_path / name).settings["data"] for name in ("again", "usual")]
    assert asked[0]["problems_fingerprint"] == asked[1]["problems_fingerprint"]
    assert asked[0]["system_prompt"] == "Answer briefly."
    assert "between <answer> and </answer>" in asked[1]["system_prompt"]
    assert asked[0]["prompts_fingerprint"] != asked[1]["prompts_fingerprint"]


def test_a_missing_benchmark_is_reported_before_training(
    tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone.jsonl"
    assert training(tiny_model, tmp_path, "benchmarks=[gsm8k]", f"evaluation.benchmark_paths.gsm8k={gone}") == 1
    assert "gone.jsonl" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert training(tiny_model, tmp_path, "benchmarks=[gsm9k]") == 2
    assert "no benchmark gsm9k" in capsys.readouterr().err


@pytest.mark.parametrize("merge", [False, True])
def test_adapters_give_what_training_logged(tiny_model: str, tmp_path: Path, merge: bool) -> None:
    lora = ("model.lora.rank=4", "model.lora.target_modules=all-linear", f"model.lora.merge={str(merge).lower()}")
    reward = tmp_path / "reward.py"
    reward.write_text(
        "def variety(completions, **_):\n    return [float(len(set(c[-1]['content']))) for c in completions]\n"
    )
    more = (f"rewards.funcs=[{reward}:variety]", "~training.reward_weights", "training.learning_rate=0.05")
    assert training(tiny_model, tmp_path, *lora, *more) == 0
    run = tmp_path / "run"
    last = read_metrics(run / "metrics.jsonl")[-1]
    assert (run / "final_model" / "adapter_config.json").is_file() is not merge
    assert main(["eval", str(run / "checkpoint-2")]) == 0
    assert main(["eval", str(run)]) == 0
    for stored in list_evaluations(run):
        assert stored.summary["completion_length"]["value"] == last["eval/completion_length"]
        trained = (run / "evaluation" / "test-step-000002.jsonl").read_text().splitlines()
        assert [c["completion"] for c in stored.completions()] == [json.loads(line)["completion"] for line in trained]
    start = (run / "evaluation" / "test-step-000000.jsonl").read_text().splitlines()
    assert start != trained  # or the adapters might have been left out


def test_evaluations_follow_shared_prefill(evaluate: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("sampled with a shared prefill")

    monkeypatch.setattr(sys.modules["covey.rollout.local.engine"], "sample", refuse)
    assert evaluate(tmp_path / "plain", "speed.shared_prefill=false")[0] == 0
    with pytest.raises(AssertionError, match="shared prefill"):
        evaluate(tmp_path / "shared")


def test_evaluation_with_vllm(
    evaluate: Evaluate, tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a fake vLLM; the real one is tested where it is installed (`make test-vllm`)."""
    asked: list[tuple[Any, ...]] = []

    class Writer(FakeEngine):
        def __init__(self, model_name: str, tokenizer: Any, **options: Any) -> None:
            super().__init__(model_name, tokenizer, **options)
            asked.append((model_name, options["batch_size"]))

        def generate(self, prompts: Any, sampling: Any, *, seed: int | None = None) -> list[Completion]:
            asked.append((len(prompts), sampling.max_completion_length, seed))
            return [Completion([1, 2, 3], truncated=False, text="<answer>7</answer>") for _ in prompts]

    module = ModuleType("covey.rollout.vllm.engine")
    module.VLLMEngine = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    code, output = evaluate(tmp_path / "out", "evaluation.engine=vllm", "seed=2")
    assert code == 0, output
    first = 2 + 7919
    assert asked == [(tiny_model, 4), (4, 6, first), (2, 6, first + 4)]
    stored = read_evaluation(tmp_path / "out")
    assert stored.settings["engine"] == "vllm"
    assert {item["extracted"] for item in stored.completions()} == {"7"}

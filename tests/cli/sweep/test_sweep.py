"""Sweeps: the jobs, what a failed or stopped job does to the others, and the numbers in the tables.

Jobs are fakes of `covey train` that write a run directory in milliseconds, except in the last test, which trains four
times.
"""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from completed import completed
from covey.advice import install
from covey.cli import config_arguments
from covey.cli.main import main, parse
from covey.cli.sweep import run_sweep
from covey.cli.sweep.expand import expand
from covey.cli.sweep.plan import job_name, make_plan
from covey.config import load, to_yaml
from covey.config.compose.group_files import Roots
from covey.errors import ConfigError, RunDirectoryError
from covey.evaluation.estimators import t_estimate
from covey.report.sweep import pool_seeds, read_figures, read_results, write_tables
from covey.runlog.directory import RunDirectory
from covey.runlog.sweep import FAILED, FINISHED, STOPPED, WAITING, JobState, Sweep, SweepDirectory, SweepJob
from sweep_jobs import JOB, states

SweepCall = Callable[..., int]


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: Path) -> SweepCall:
    """Run a sweep of fake jobs from within tmp_path; returns the exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(root / "src"))
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    (tmp_path / "job.py").write_text(JOB, encoding="utf-8")

    def call(*words: str, as_json: bool = False) -> int:
        return run_sweep(
            request(*words), ["train", *words], (sys.executable, str(tmp_path / "job.py")), as_json=as_json
        )

    return call


def request(*words: str) -> config_arguments.Request:
    return config_arguments.read_request(parse(["train", "--multirun", *words]))


def calls(tmp_path: Path) -> list[str]:
    file = tmp_path / "calls"
    return file.read_text().splitlines() if file.exists() else []


# --- which jobs there are -----------------------------------------------------------------------------------------


def texts(*words: str) -> list[str]:
    return [variant.text for variant in expand(words, Roots.of([]))]


def test_values_are_shown_as_typed():
    assert texts("rewards.funcs=[mine.py:fn],[accuracy]") == ["rewards.funcs=[mine.py:fn]", "rewards.funcs=[accuracy]"]


def test_every_combination_with_the_last_key_fastest():
    assert texts("training.learning_rate=1e-6,1e-5", "training.beta=0", "seed=1,2") == [
        "training.learning_rate=1e-06 seed=1",
        "training.learning_rate=1e-06 seed=2",
        "training.learning_rate=1e-05 seed=1",
        "training.learning_rate=1e-05 seed=2",
    ]
    assert texts("seed=range(1,4)") == ["seed=1", "seed=2", "seed=3"]
    assert texts("seed=choice(4,2)") == ["seed=4", "seed=2"]
    assert texts("model=glob(qwen3*)") == ["model=qwen3_0.6b", "model=qwen3_1.7b"]
    assert texts("+experiment=quick_test,maxent_math") == ["experiment=quick_test", "experiment=maxent_math"]
    assert texts("dataset.system_prompt='a, b','c=d'") == ["dataset.system_prompt=a, b", "dataset.system_prompt=c=d"]
    assert texts("training.max_steps=3", "rewards.funcs=[exact_match,format]") == [""]


def test_a_swept_value_keeps_its_position():
    first, second = expand(["seed=7", "training.beta=0,0.1", "dataset.system_prompt=' '"], Roots.of([]))
    assert first.overrides == ("seed=7", "training.beta=0", "dataset.system_prompt=' '")
    assert second.overrides == ("seed=7", "training.beta=0.1", "dataset.system_prompt=' '")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seed=1,2", "seed=3,4"], "seed is swept twice"),
        (["training.beta=interval(0,1)"], "names an interval"),
        (["model=glob(zebra*)"], "matches none of the options of model: .*starter"),
        (["seed=1,1"], "are the same run: seed=1 and seed=1"),
        (["seed=1,2", "seed=3"], "are the same run"),
        (["run_name=a,b"], "run_name names the folder of the whole sweep"),
        (["seed=1,-2"], r"Job 1 \(seed=-2\): seed=-2 is out of range"),
        (["model=starter,zebra"], r"Job 1 \(model=zebra\): There is no option model=zebra"),
        (["seed=1,2", "hydra/sweeper=optuna"], "hydra/sweeper=optuna.*every combination"),
        (["seed=1,2", "hydra.sweep.dir=x"], "hydra.sweep.dir=x.*output_dir/run_name"),
        (["seed=1,2", "hydra/launcher=zebra"], "Could not find 'hydra/launcher/zebra'"),
        (["seed=1,2", "hydra.launcher.partition=x"], "Could not override 'hydra.launcher.partition'"),
    ],
)
def test_invalid_sweeps_are_rejected_before_anything_is_written(
    sweep: SweepCall, tmp_path: Path, words: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        sweep(*words)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
    assert calls(tmp_path) == []


def test_settings_of_hydra_need_multirun_outside_of_torchrun(sweep: SweepCall, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="add --multirun"):
        config_arguments.read_request(parse(["train", "hydra/launcher=basic"])).compose()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="WORLD_SIZE"):
        sweep("seed=1,2")


def test_run_names_hold_the_swept_values_and_are_folder_names():
    assert job_name(3, {"training.learning_rate": "1e-06", "seed": "2"}) == "3_learning_rate-1e-06_seed-2"
    assert job_name(0, {}) == "0"
    assert job_name(0, {"training.top_p": "0.9", "evaluation.top_p": "1"}) == "0_training.top_p-0.9_evaluation.top_p-1"
    assert job_name(1, {"model.name": "Qwen/Qwen3-0.6B"}) == "1_name-Qwen-Qwen3-0.6B"
    assert job_name(1, {"dataset.system_prompt": "a, 'b' = {c}"}) == "1_system_prompt-a-b-c"
    assert job_name(1, {"training.beta": "-1"}) == "1_beta--1"
    assert len(job_name(0, {f"key{n}": "v" * 50 for n in range(9)})) <= 80


# --- running them -------------------------------------------------------------------------------------------------


def test_each_job_has_its_own_process_config_and_run_directory(
    sweep: SweepCall, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        sweep("training.learning_rate=1e-6,3e-6", "seed=1,2", "run_name=s", "dataset.system_prompt='a=b, ${seed}'") == 0
    )
    names = ["0_learning_rate-1e-06_seed-1", "1_learning_rate-1e-06_seed-2",
             "2_learning_rate-3e-06_seed-1", "3_learning_rate-3e-06_seed-2"]  # fmt: skip
    assert calls(tmp_path) == names
    found = [load(recipe=tmp_path / "out" / "s" / name) for name in names]
    assert [(one.training.learning_rate, one.seed) for one in found] == [(1e-6, 1), (1e-6, 2), (3e-6, 1), (3e-6, 2)]
    assert [one.dataset.system_prompt for one in found] == ["a=b, 1", "a=b, 2", "a=b, 1", "a=b, 2"]
    assert [(one.output_dir, one.run_name) for one in found] == [("out/s", name) for name in names]
    assert set(states(tmp_path / "out" / "s").values()) == {FINISHED}
    out = capsys.readouterr().out
    assert "4 jobs over training.learning_rate, seed · out/s" in out
    assert "Mean over seeds" in out
    assert "To resume" not in out


def test_a_sweep_without_a_name_is_named_like_a_run(sweep: SweepCall, tmp_path: Path) -> None:
    assert sweep("seed=1,2") == 0
    (folder,) = (tmp_path / "out").iterdir()
    assert folder.name.endswith("-starter-arithmetic")
    plan = make_plan(request("model=starter,qwen3_0.6b"))
    assert plan.directory.root.name.endswith("-arithmetic")
    assert "starter" not in plan.directory.root.name


def test_jobs_of_a_sweep_meet_the_same_problems_and_those_of_an_older_one_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("seed=1,2,3", "run_name=s")
    plan = make_plan(request(*words))
    assert [(config.seed, config.dataset.seed) for config in plan.configs.values()] == [(1, 0), (2, 0), (3, 0)]
    older = yaml.safe_load(to_yaml(plan.configs[1]))  # the second job has begun with a version without the key
    del older["dataset"]["seed"]
    run = plan.directory.run(plan.sweep.jobs[1])
    run.root.mkdir(parents=True)
    run.config.write_text(yaml.safe_dump(older), encoding="utf-8")
    plan.directory.write(plan.sweep)
    assert [config.dataset.seed for config in make_plan(request(*words)).configs.values()] == [0, 2, 0]
    with pytest.raises(RunDirectoryError, match=r"Job 1 .*\(dataset\.seed: 2 there, 5 now\)"):
        make_plan(request(*words, "dataset.seed=5"))


def test_the_results_as_json(sweep: SweepCall, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep("seed=3,9", "run_name=s", as_json=True) == 0
    out, err = capsys.readouterr()
    best, other = json.loads(out)
    assert (best["path"], best["job"]["swept"], best["state"]["state"]) == (
        f"out/s/{best['job']['name']}",
        {"seed": "9"},
        "finished",
    )
    assert [one["figures"]["accuracy"]["value"] for one in (best, other)] == pytest.approx([0.29, 0.23])
    assert best["figures"]["before"]["low"] == 0.05
    assert "Written: " in err


def test_one_failing_job_stops_no_other(sweep: SweepCall, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "behaviours").write_text(json.dumps({"1": "fails", "2": "killed"}))
    assert sweep("seed=1,2,3", "run_name=s") == 1
    assert list(states(tmp_path / "out" / "s").values()) == [FAILED, FAILED, FINISHED]
    out = capsys.readouterr().out
    assert "0_seed-1 ended with exit code 1: covey: no such weights." in out
    assert "output: out/s/jobs/0_seed-1.log" in out
    assert "1_seed-2 was killed by SIGKILL: it printed nothing" in out
    assert "covey train seed=1,2,3 run_name=s" in out
    (tmp_path / "behaviours").unlink()
    assert sweep("seed=1,2,3", "run_name=s") == 0
    assert calls(tmp_path) == ["0_seed-1", "1_seed-2", "2_seed-3", "0_seed-1", "1_seed-2"]


def test_a_stopped_sweep_resumes(sweep: SweepCall, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "behaviours").write_text(json.dumps({"2": "stops the sweep"}))
    before = signal.getsignal(signal.SIGTERM)
    assert sweep("seed=1,2,3", "run_name=s") == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
    assert list(states(tmp_path / "out" / "s").values()) == [FINISHED, STOPPED, WAITING]
    assert "To resume the unfinished jobs: covey train seed=1,2,3 run_name=s" in capsys.readouterr().out
    (tmp_path / "behaviours").unlink()
    assert sweep("seed=1,2,3", "run_name=s") == 0
    assert calls(tmp_path) == ["0_seed-1", "1_seed-2", "1_seed-2", "2_seed-3"]
    assert "1 of them finished before" in capsys.readouterr().out


def test_a_sweep_can_grow_but_not_change(sweep: SweepCall, tmp_path: Path) -> None:
    assert sweep("seed=2,3", "run_name=s") == 0
    assert sweep("seed=1,2", "run_name=s") == 0
    assert list(states(tmp_path / "out" / "s")) == ["0_seed-2", "1_seed-3", "2_seed-1"]
    assert calls(tmp_path) == ["0_seed-2", "1_seed-3", "2_seed-1"]
    before = sorted(path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())
    with pytest.raises(RunDirectoryError, match=r"a sweep over seed, and this one is over training\.beta"):
        sweep("training.beta=0,0.1", "run_name=s")
    with pytest.raises(RunDirectoryError, match=r"Job 2 \(seed=1\): .*training.max_steps: 100 there, 50 now"):
        sweep("seed=1,4", "run_name=s", "training.max_steps=50")
    with pytest.raises(RunDirectoryError, match="is not a sweep"):
        sweep("seed=1,2", "output_dir=out/s", "run_name=0_seed-2")
    assert before == sorted(path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())


def test_the_main_process_of_a_sweep_never_loads_torch(sweep: SweepCall, tmp_path: Path, root: Path) -> None:
    script = (
        "import sys\nfrom covey.cli import config_arguments\nfrom covey.cli.main import parse\n"
        "from covey.cli.sweep import run_sweep\nwords = ['seed=1,2', 'run_name=s']\n"
        "request = config_arguments.read_request(parse(['train', '-m', *words]))\n"
        "code = run_sweep(request, words, (sys.executable, 'job.py'))\n"
        "assert code == 0, code\nassert not {'torch', 'transformers', 'trl', 'datasets'} & set(sys.modules)\n"
    )
    done = completed([sys.executable, "-c", script], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert calls(tmp_path) == ["0_seed-1", "1_seed-2"]


@pytest.mark.slow
def test_submitit_runs_the_jobs(sweep: SweepCall, tmp_path: Path) -> None:
    (tmp_path / "behaviours").write_text(json.dumps({"2": "fails"}))
    launcher = tmp_path / "conf" / "hydra" / "launcher"
    launcher.mkdir(parents=True)
    (launcher / "mine.yaml").write_text("defaults: [submitit_local]\ntimeout_min: 3\n")
    assert sweep("seed=1,2", "run_name=s", "--config-dir=conf", "hydra/launcher=mine") == 1
    assert list(states(tmp_path / "out" / "s").values()) == [FINISHED, FAILED]


def test_a_missing_launcher_names_the_extra(tmp_path: Path, root: Path) -> None:
    script = (
        "import sys\nsys.modules['hydra_plugins'] = None  # as if no plug-in were installed\n"
        "from covey.cli.main import main\n"
        "sys.exit(main(['train', '-m', 'seed=1,2', 'hydra/launcher=submitit_slurm', 'hydra.launcher.partition=gpu']))"
    )
    done = completed([sys.executable, "-c", script], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(root / "src")})
    assert done.returncode == 2
    assert install("slurm") in done.stderr
    assert not (tmp_path / "out").exists()


# --- the tables ---------------------------------------------------------------------------------------------------


def test_the_t_interval_of_a_mean():
    estimate = t_estimate([0.30, 0.32, 0.40])
    half = 4.302653 * math.sqrt(0.0028) / math.sqrt(3)  # s² = (0.04² + 0.02² + 0.06²) / 2 = 0.0028
    assert estimate.value == pytest.approx(0.34)
    assert (estimate.low, estimate.high) == pytest.approx((0.34 - half, 0.34 + half), abs=1e-6)
    alone = t_estimate([0.3])
    assert alone.value == 0.3
    assert math.isnan(alone.low)
    assert math.isnan(alone.high)
    assert math.isnan(t_estimate([]).value)


def test_figures_are_those_of_the_last_evaluation(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert math.isnan(read_figures(run).accuracy.value)
    rows = [{"step": step, "train/reward": float(step), "train/completions/mean_length": 40.0} for step in range(1, 13)]
    rows[5] |= {
        "eval/accuracy": 0.5,
        "eval/accuracy_low": 0.4,
        "eval/accuracy_high": 0.6,
        "eval/completion_length": 9.0,
    }
    rows[5] |= {"eval_hard/accuracy": 0.0}
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    figures = read_figures(run)
    assert (figures.step, figures.accuracy.value, figures.accuracy.low, figures.accuracy.high) == (12, 0.5, 0.4, 0.6)
    assert math.isnan(figures.before.value)
    assert (figures.length, figures.reward) == (9.0, sum(range(3, 13)) / 10)
    run.metrics.write_text(json.dumps({"step": 0, "eval/accuracy": 0.25}) + "\n" + json.dumps(rows[0]) + "\n")
    early = read_figures(run)
    assert (early.before.value, early.length) == (0.25, 40.0)
    assert math.isnan(early.accuracy.value)


def test_the_tables_rank_and_pool_by_hand(sweep: SweepCall, tmp_path: Path) -> None:
    (tmp_path / "behaviours").write_text(json.dumps({"9": "fails"}))
    assert sweep("training.beta=0,0.1", "seed=1,3,9", "run_name=s") == 1
    folder = tmp_path / "out" / "s"
    with (folder / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["seed"] for row in rows] == ["3", "3", "1", "1", "9", "9"]
    assert [row["state"] for row in rows] == [FINISHED] * 4 + [FAILED] * 2
    assert float(rows[0]["accuracy"]) == pytest.approx(0.23)
    assert float(rows[0]["accuracy_low"]) == pytest.approx(0.13)
    assert float(rows[0]["reward"]) == pytest.approx((0.23 + 0.73) / 2)
    assert rows[4]["accuracy"] == ""
    text = (folder / "sweep.md").read_text()
    assert "| 1 | 0 | 3 | 23.0% [13.0 to 33.0] | 10.0% [5.0 to 20.0] | 20.0 | 0.48 |" in text
    # Over seeds: 0.21 and 0.23, so s = 0.0141421 and the half width 12.7062 · s / √2 = 0.127062.
    assert "| 0.1 | 2 | 22.0% [9.3 to 34.7] | 20.0 | 0.47 |" in text


def test_seeds_are_pooled_only_where_they_were_swept_and_jobs_have_finished(tmp_path: Path) -> None:
    directory = SweepDirectory(tmp_path)
    jobs = tuple(SweepJob(n, f"{n}", {"seed": f"{n}", "model": "a" if n < 2 else "b"}) for n in range(3))
    sweep = Sweep(("seed", "model"), jobs, str(tmp_path))
    for job, state in zip(jobs, (FINISHED, STOPPED, FINISHED), strict=True):
        directory.write_state(job, JobState(state, seconds=60.0))
        directory.run(job).root.mkdir()
        row = {"step": 1, "eval/accuracy": 0.1 * (job.number + 1)}
        directory.run(job).metrics.write_text(json.dumps(row) + "\n")
    results = read_results(directory, sweep)
    assert [one.job.number for one in results] == [2, 0, 1]
    pooled = pool_seeds(sweep, results)
    assert [(one.swept, one.seeds) for one in pooled] == [({"model": "b"}, 1), ({"model": "a"}, 1)]
    assert pooled[1].accuracy.value == pytest.approx(0.1)
    assert math.isnan(pooled[1].accuracy.low)
    assert pool_seeds(Sweep(("model",), jobs, ""), results) == []
    directory.write_state(jobs[1], JobState(FINISHED, seconds=60.0))  # 0.1 and 0.2: t alone would reach below nothing
    both = pool_seeds(sweep, read_results(directory, sweep))[1].accuracy
    assert (both.value, both.low, both.high) == pytest.approx((0.15, 0.0, 0.15 + 12.7062 * 0.05), abs=1e-5)


def test_jobs_that_cannot_be_compared_are_named_with_the_reason(tmp_path: Path) -> None:
    directory = SweepDirectory(tmp_path)
    funcs = ["exact_match", "exact_match", "accuracy", "countdown"]
    jobs = tuple(SweepJob(n, f"{n}", {"rewards.funcs": name}) for n, name in enumerate(funcs))
    sweep = Sweep(("rewards.funcs",), jobs, str(tmp_path))
    for job, name in zip(jobs, funcs, strict=True):
        directory.write_state(job, JobState(FINISHED, seconds=60.0))
        directory.run(job).root.mkdir()
        figure = {"eval/reward": 9.0} if name == "countdown" else {"eval/accuracy": 0.5 - 0.1 * job.number}
        directory.run(job).metrics.write_text(json.dumps({"step": 1, **figure}) + "\n")
        sampling = "evaluation: {temperature: 0}\n" if job.number == 1 else ""
        directory.config(job).write_text(f"dataset: {{task: arithmetic}}\nrewards: {{funcs: [{name}]}}\n{sampling}")
    (sheet,) = write_tables(directory, sweep, read_results(directory, sweep))
    assert sheet.title == "Jobs: held-out accuracy (grader: exact_match), in brackets its 95% interval"
    assert sheet.notes == (
        "Job 1 cannot be compared with job 0: temperature 1.0 and 0.",
        "Job 2 cannot be compared with job 0: the grader (“exact_match” and “accuracy”).",
        "Job 3 cannot be compared with job 0: it has no accuracy.",
    )
    assert [row[2] for row in sheet.rows] == ["50.0%", "40.0%", "30.0%", "—"]
    assert sheet.notes[0] in (tmp_path / "sweep.md").read_text()


# --- for real -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.long
def test_a_sweep_of_four_real_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(root / "src"))
    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    tiny = [
        *("+experiment=quick_test", "training.max_steps=1", "training.max_completion_length=4"),
        *(
            "dataset.train_size=64",
            "dataset.test_size=4",
            "evaluation.every_steps=1",
            "evaluation.before_training=false",
        ),
    ]
    words = ["training.learning_rate=1e-6,1e-5", "seed=1,2", *tiny, "run_name=four"]
    assert main(["train", "--multirun", *words]) == 0
    folder = tmp_path / "out" / "four"
    runs = sorted(path.parent for path in folder.glob("*/metrics.jsonl"))
    configs = [yaml.safe_load((run / "config.yaml").read_text()) for run in runs]
    wanted = [(rate, seed) for rate in (1e-6, 1e-5) for seed in (1, 2)]
    assert [(float(one["training"]["learning_rate"]), one["seed"]) for one in configs] == wanted
    assert all((run / "final_model" / "model.safetensors").is_file() for run in runs)
    with (folder / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["state"] for row in rows} == {FINISHED}
    accuracies = [float(row["accuracy"]) for row in rows]
    assert accuracies == sorted(accuracies, reverse=True)
    assert len((folder / "sweep.md").read_text().split("Mean over seeds")[1].strip().splitlines()) == 1 + 1 + 2 + 2

"""`covey launch --plan`: the split of the GPUs in words, and what measured times promise of it, by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from completed import completed
from covey.errors import CoveyError
from covey.launch.overview import Measured, Split, as_table, as_values, split_of, suggested
from covey.runlog.overlap import Round
from plans import SERVE, config, plan

IN_A_SERVER = {"use_vllm": True, "vllm_mode": "server"}


def make_run(folder: Path, generation: float, learning: float, processes: int | None, **training: object) -> Path:
    """A run with four equal steps on GPUs, or on the CPU without a number of processes."""
    folder.mkdir()
    row = {"time/generation": generation, "time/forward": learning / 2, "time/backward": learning / 2}
    row |= {"memory/device": 1e9} if processes else {}
    (folder / "metrics.jsonl").write_text("".join(json.dumps({"step": n + 1, **row}) + "\n" for n in range(4)))
    (folder / "environment.json").write_text(json.dumps({"processes": processes}))
    (folder / "config.yaml").write_text(json.dumps({"training": training}))  # JSON is YAML
    return folder


def rows(text: str) -> list[list[str]]:
    """The rows of the second table, by words."""
    lines = text.split("\n")
    start = next(n for n, line in enumerate(lines) if line.startswith("sampling GPUs"))
    return [line.split() for line in lines[start + 1 : lines.index("", start)]]


def test_the_split_with_the_shortest_rounds_is_suggested(tmp_path: Path) -> None:
    """8 s and 2 s on one and seven GPUs: side by side 8 s; on two and six, 4 s; on four each, 3.5 s (2 · 7/4)."""
    run = make_run(tmp_path / "run", 8.0, 2.0, 7, **IN_A_SERVER)
    made, settings = plan(8, *SERVE), config(*SERVE)
    text = as_table(made, settings, run, 16)
    assert rows(text) == [
        ["1", "7", "0", "10", "1.00", "80%", "20%"],
        ["1", "7", "1", "8", "1.25", "100%", "25%"],
        ["1", "7", "2", "8", "1.25", "100%", "25%"],
        ["1", "7", "4", "8", "1.25", "100%", "25%"],
        ["4", "4", "1", "3.5", "2.86", "57%", "100%", "suggested"],
        ["4", "4", "2", "3.5", "2.86", "57%", "100%"],
        ["4", "4", "4", "3.5", "2.86", "57%", "100%"],
    ]
    assert "Suggested: training.staleness=1 training.vllm_tensor_parallel_size=4." in text
    (best,) = (one for one in as_values(made, settings, run)["expected"] if one.suggested)
    assert (best.split, best.staleness, best.expected.seconds) == (Split(4, 4), 1, 3.5)
    assert best.speed == pytest.approx(10 / 3.5)
    assert "node 0  [T][T][T][T][T][T][T][S]" in text


def test_times_of_another_split_are_scaled(tmp_path: Path) -> None:
    """The run had 4 GPUs that did both, 3 s and 3 s. This plan's server has 2 of 8, and 6 learn: 6 s and 2 s."""
    run = make_run(tmp_path / "run", 3.0, 3.0, 4)
    words = (*SERVE, "training.vllm_tensor_parallel_size=2", "training.staleness=3")
    found = rows(as_table(plan(8, *words), config(*words), run, 16))
    assert found[:5] == [
        ["2", "6", "0", "8", "1.00", "75%", "25%"],
        *(["2", "6", str(n), "6", "1.33", "100%", "33%"] for n in (1, 2, 3, 4)),
    ]
    assert [row for row in found if "suggested" in row] == [["4", "4", "3", "3", "2.67", "100%", "100%", "suggested"]]


def test_a_shared_plan_is_compared_with_a_server(tmp_path: Path) -> None:
    """In turns on 4 GPUs: 2 s + 2 s. Split in two halves, 4 s: no faster, as long as both scale with their GPUs."""
    run = make_run(tmp_path / "run", 2.0, 2.0, 4)
    text = as_table(plan(4), config(), run, 16)
    assert rows(text)[:2] == [
        ["4", "(shared)", "4", "0", "4", "1.00", "50%", "50%"],
        ["2", "2", "1", "4", "1.00", "100%", "100%", "suggested"],
    ]
    assert "training.use_vllm=true training.vllm_mode=server training.vllm_tensor_parallel_size=2" in text


def test_on_several_nodes_the_last_one_samples() -> None:
    """16 GPUs learn, whatever the serving node does: 8 s and 3 s need 3 s, which four of its GPUs reach."""
    words = (*SERVE, "launch.nodes=3")
    made, settings = plan(8, *words), config(*words)
    own = split_of(made, settings)
    assert own == Split(1, 16)
    assert suggested(Measured(Path(), [Round(8.0, 3.0)], own, True), made, settings, own) == Split(4, 16)


def test_a_run_with_a_rollout_process_had_one_gpu_for_it(tmp_path: Path) -> None:
    """Its 8 s on one GPU and 2 s on seven are those of this plan; a server of four would bring 3.5 s."""
    run = make_run(tmp_path / "run", 8.0, 2.0, 7, staleness=1)
    text = as_table(plan(8, "training.staleness=1"), config("training.staleness=1"), run, 16)
    assert rows(text)[:2] == [["1", "7", "0", "10", "1.00", "80%", "20%"], ["1", "7", "1", "8", "1.25", "100%", "25%"]]
    assert ["4", "4", "1", "3.5", "2.86", "57%", "100%", "suggested"] in rows(text)
    assert "learns; its rollout process samples on 7" in text
    assert "training.use_vllm=true training.vllm_mode=server training.vllm_tensor_parallel_size=4" in text


def test_a_server_of_somebody_else_keeps_its_gpus() -> None:
    words = (*SERVE, "training.vllm_server_base_url=http://far:8000")
    made, settings = plan(8, *words), config(*words)
    own = split_of(made, settings)
    assert own == Split(1, 8)
    assert suggested(Measured(Path(), [Round(8.0, 1.0)], own, True), made, settings, own) == own


def test_on_a_cpu_both_sides_share_the_cores(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 2.0, 3.0, None)
    text = as_table(plan(0), config(), run, 2)
    assert [row[3:] for row in rows(text)][:2] == [["5", "1.00", "40%", "60%"], ["3", "1.67", "67%", "100%"]]
    assert "suggested" not in text.lower()
    assert "share the 2 cores" in text
    assert "keep training.staleness=0" in text


def test_times_of_a_cpu_say_nothing_about_gpus(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 2.0, 3.0, None)
    assert "its times say nothing about it" in as_table(plan(8), config(), run, 2)


def test_a_run_without_a_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CoveyError, match="does not exist"):
        as_table(plan(8), config(), tmp_path, 2)
    run = make_run(tmp_path / "run", 0.0, 3.0, 4)
    with pytest.raises(CoveyError, match="no step with time/generation yet"):
        as_table(plan(8), config(), run, 2)


def test_the_command_loads_nothing_heavy_and_finds_the_run_that_is_its_recipe(root: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from covey.cli.main import main; code = main(sys.argv[1:]);"
        "print(sorted({'torch', 'transformers', 'trl', 'accelerate'} & set(sys.modules)), file=sys.stderr);"
        "sys.exit(code)"
    )

    def covey(*words: str) -> subprocess.CompletedProcess[str]:
        return completed(
            [sys.executable, "-c", script, "launch", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(root / "src")},
        )

    make_run(tmp_path / "run", 8.0, 2.0, 7, **IN_A_SERVER)
    done = covey("run", "--plan", "launch.gpus=8")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"
    assert rows(done.stdout)[0] == ["1", "7", "0", "10", "1.00", "80%", "20%"]
    assert rows(covey("launch.gpus=8", *SERVE, "--plan", "--times", "run").stdout) == rows(done.stdout)
    assert "--times RUN takes the times of a run" in covey("--plan", "launch.gpus=8").stdout
    refused = covey("--times", "run")
    assert refused.returncode == 2
    assert "--times goes with --plan" in refused.stderr

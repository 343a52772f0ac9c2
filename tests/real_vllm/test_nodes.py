"""Three nodes of a real Slurm, all on this machine: two train (gloo), and the third serves real vLLM to them.

The server is killed in the middle: its launcher starts it again, and the requests that were lost are repeated.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import covey
from completed import completed
from covey.runlog import read_completions, read_metrics
from real_slurm import missing, running

pytestmark = [pytest.mark.vllm, pytest.mark.slurm]

SECONDS = 900.0
STEPS, ROWS = 6, 16
REWARD = '''
def variety(completions, **columns):
    """The number of different characters."""
    return [float(len(set(c[-1]["content"]))) for c in completions]
'''


def words(folder: Path) -> list[str]:
    reward = folder / "reward.py"
    reward.write_text(REWARD, encoding="utf-8")
    return [
        *("training.use_vllm=true", "training.vllm_mode=server", "training.vllm_max_model_length=192"),
        *("training.staleness=1", f"training.max_steps={STEPS}", "training.per_device_train_batch_size=8"),
        *("training.gradient_accumulation_steps=1", "training.num_generations=4", "evaluation.every_steps=0"),
        *("evaluation.before_training=false", f"rewards.funcs=[{reward}:variety]", "launch.nodes=3", "launch.gpus=0"),
        *("launch.slurm.cpus=1", "launch.slurm.mem='0'", "launch.slurm.exclusive=false", "logging=none"),
        *(
            "run_name=r",
            f"output_dir={folder}",
            f"launch.log_dir={folder / 'logs'}",
            "logging.completions_every_steps=1",
        ),
    ]


def test_one_node_samples_and_two_train(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    why_not = missing()
    if why_not is not None:
        pytest.skip(f"there can be no Slurm here: {why_not}")

    def steps() -> list[int]:
        file = tmp_path / "r" / "metrics.jsonl"
        return [row["step"] for row in read_metrics(file) if "train/loss" in row] if file.exists() else []

    def output() -> str:
        files = [*(tmp_path / "logs").rglob("*.log"), *(tmp_path / "logs").rglob("*.out")]
        return "\n".join(f"--- {file.name}\n{file.read_text(errors='replace')[-4000:]}" for file in files)

    with running(tmp_path_factory.mktemp("s") / "c", nodes=3) as cluster:
        done = completed(
            [sys.executable, "-m", "covey", "launch", *words(tmp_path), "--slurm"],
            cwd=tmp_path,
            env={**cluster.environment, "PYTHONPATH": str(Path(covey.__file__).parents[1]), "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr
        job = done.stdout.split()[2].rstrip(":")

        def ended() -> bool:
            return cluster.state(job)["JobState"] not in ("PENDING", "RUNNING")

        cluster.wait_for(lambda: len(steps()) >= 2 or ended(), SECONDS, output)
        assert not ended(), output()
        (server,) = _guarded("covey.rollout.vllm.serve", job).children()  # it has its own process title
        server.kill()
        cluster.wait_for(ended, SECONDS, output)
        state = cluster.state(job)
        assert (state["JobState"], state["NumNodes"], state["Restarts"]) == ("COMPLETED", "3", "0"), output()
    text = (tmp_path / "logs" / "r" / "launcher.log").read_text()
    assert text.count("vLLM server started at http://127.0.0.4:") == 2, text
    rows = [row for row in read_metrics(tmp_path / "r" / "metrics.jsonl") if "train/loss" in row]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert [row["staleness/max"] for row in rows] == [0.0, *[1.0] * (STEPS - 1)]
    assert len(read_completions(tmp_path / "r" / "completions")) == STEPS * ROWS
    assert all(row["train/grad_norm"] > 0 for row in rows)


def _guarded(module: str, job: str) -> psutil.Process:
    """The guard of the process of a job that runs a module."""
    for one in psutil.process_iter():
        with suppress(psutil.Error):
            words = one.cmdline()
            guards = module in words and any(word.endswith("guard.py") for word in words)
            if guards and one.environ().get("SLURM_JOB_ID") == job:
                return one
    raise LookupError(f"job {job} has no process with {module}")

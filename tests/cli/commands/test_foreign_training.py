"""Recipes in the style of other tools train: two steps each, with a small model and small data.

Everything else stays as in the recipe: objective, rewards, adapters, optimiser, schedule. What needs a GPU, a server or
the network is switched off, by the keys of the recipe's own tool where possible.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml

from covey.cli.main import main
from covey.runlog.metrics import read_metrics

FOREIGN = Path(__file__).parents[2] / "foreign"

pytestmark = pytest.mark.slow

OURS = (
    *("model=starter", "dataset=arithmetic", "dataset.train_size=64", "dataset.test_size=4", "dataset.hard_size=0"),
    "evaluation.benchmarks=[]",  # they lie on the hub
)
THEIRS = {
    "max_completion_length": 12,
    "max_steps": 2,
    "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 1,
    "save_steps": 100,
    "logging_steps": 1,
    "report_to": "none",
    "use_vllm": "false",
    "push_to_hub": "false",
    "evaluation_strategy": "no",
    "run_name": "two_steps",
}
SMALL = (*OURS, *(word for name, value in THEIRS.items() for word in (f"--{name}", str(value))))
ADAPTERS = ("--use_peft", "--lora_r", "4", "--lora_target_modules", "q_proj", "v_proj")


@pytest.mark.parametrize("file", sorted(FOREIGN.glob("*.yaml")), ids=lambda file: file.stem)
def test_two_steps(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = file.read_text()
    adapters = ADAPTERS if "lora" in text else ()
    code = main(["train", "--config", str(file), *SMALL, *adapters, "--output_dir", str(tmp_path)])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    run = tmp_path / "two_steps"
    rows = read_metrics(run / "metrics.jsonl")
    logged = [row for row in rows if "train/loss" in row]
    assert [row["step"] for row in logged] == [1, 2]
    assert all(math.isfinite(row["train/loss"]) for row in logged)
    resolved = yaml.safe_load((run / "config.yaml").read_text())
    assert resolved["model"]["name"] == "starter"
    assert (run / "final_model" / "adapter_model.safetensors").exists() == bool(adapters)
    if file.stem == "maxent_grpo":
        assert resolved["objective"]["name"] == "maxent"
        assert resolved["objective"]["kl"]["controller"] == "adaptive"
        assert all("train/objective/target_entropy" in row for row in logged)
    if file.stem == "open_r1_grpo":
        assert all("train/rewards/repetition_penalty/mean" in row for row in logged)

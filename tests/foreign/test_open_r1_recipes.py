"""open-r1's GRPO recipes as published: two steps each on the starter, and their geometry with seven processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from covey.cli.main import main
from covey.runlog.metrics import read_metrics

TEST = {"input": "1\n", "output": "2\n"}
SUMS = [(f"What is {n} + {n + 1}?", str(2 * n + 1)) for n in range(1, 49)]
MATH = [{"problem": text, "answer": answer} for text, answer in SUMS]
ROWS: dict[str, tuple[list[dict[str, Any]], set[str]]] = {
    "DeepSeek-R1-Distill-Qwen-1.5B__grpo__config_demo": (MATH, {"accuracy", "format", "tag_count"}),
    "Qwen2.5-1.5B-Instruct__grpo__config_demo": (MATH, {"accuracy", "format", "tag_count"}),
    "Qwen2.5-1.5B-Instruct__grpo__config_demo_code": (
        [
            {"problem_statement": text, "verification_info": {"language": "python", "test_cases": [TEST]}}
            for text, _ in SUMS
        ],
        {"code", "format"},
    ),
    "Qwen2.5-1.5B-Instruct__grpo__config_demo_code_ioi": (
        [{"problem": text, "test_names": ["1"], "test_cases": [["1\n", "2\n"]]} for text, _ in SUMS],
        {"binary_code", "code_format", "format"},
    ),
    "Qwen2.5-Coder-7B-Instruct__grpo__config_codeforces": (
        [
            {"prompt": text, "language": "python", "official_tests": [TEST], "input_mode": "stdio"}
            | {"generated_checker": None}
            for text, _ in SUMS
        ],
        {"cf_code", "code_format"},
    ),
}
"""For each recipe rows of its data's columns, and its rewards."""


@pytest.fixture
def recipes(shared_data: Path) -> Path:
    return shared_data / "open_r1_recipes"


def words(name: str, folder: Path) -> list[str]:
    """The overrides with which a recipe trains here."""
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS[name][0]), encoding="utf-8")
    here = ["model.name=starter", f"dataset.path={rows}", f"output_dir={folder / 'out'}", "run_name=run"]
    off = ["use_vllm=false", "attn_implementation=sdpa", "push_to_hub=false", "report_to=none"]
    group = 14 if "config_demo_code" in name else 16  # as docs/coming_from.md says
    small = [f"per_device_train_batch_size={group}", "max_steps=2", "max_completion_length=16"]
    return [*here, *off, *small]


def outcomes(recipe: Path, more: list[str], capsys: pytest.CaptureFixture[str]) -> Iterator[tuple[int, str]]:
    for command in (["config"], ["doctor", "--quiet"], ["launch", "--dry-run"], ["train"]):
        code = main([*command, str(recipe), *more])
        told = capsys.readouterr()
        errors = [line for line in told.err.splitlines() if line.startswith("covey: ")]
        yield code, "".join(dict.fromkeys(errors))
        if command == ["train"] and code == 0 and "use_liger_kernel: true" in recipe.read_text(encoding="utf-8"):
            assert "in place of bf16=true and use_liger_kernel=true" in " ".join(told.out.split())


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_two_steps(name: str, recipes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = list(outcomes(recipes / f"{name}.yaml", words(name, tmp_path), capsys))
    assert found == [(0, "")] * 4
    rows = [row for row in read_metrics(tmp_path / "out" / "run" / "metrics.jsonl") if "train/loss" in row]
    assert [row["step"] for row in rows] == [1, 2]
    rewards = {key.split("/")[2] for key in rows[0] if key.startswith("train/rewards/")}
    assert rewards == ROWS[name][1]
    if "cf_code" in rewards:
        assert rows[0]["train/rewards/cf_code/mean"] < 0  # -1 where the starter writes no program


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["per_device_train_batch_size=16", "gradient_accumulation_steps=4"], "num_generations=14 does not divide"),
        (["rewards.funcs=[lc_code, format]"], "lc_code is another project's reward for code"),
        (["evaluation.benchmarks=lcb"], "there is no benchmark lcb; there are gsm8k"),
        (["code_eval_scoring_mode=partial"], "partial is the reward code, and pass_fail binary_code"),
    ],
)
def test_all_commands_refuse_alike(
    more: list[str], says: str, recipes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "Qwen2.5-1.5B-Instruct__grpo__config_demo_code"
    found = list(outcomes(recipes / f"{name}.yaml", [*words(name, tmp_path), *more], capsys))
    assert all(code != 0 and says in text for code, text in found), found
    assert len({text for _, text in found}) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ROWS)
def test_the_geometry_of_seven_processes(name: str, recipes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing else is changed: one of eight GPUs was vLLM's, so seven trained."""
    recipe = str(recipes / f"{name}.yaml")
    assert main(["config", recipe, "launch.num_processes=7"]) == 0
    assert main(["config", recipe, "launch.gpus=8", "vllm_mode=server", "num_generations=14"]) == 0
    assert "num_generations: 14" in capsys.readouterr().out
    assert main(["launch", recipe, "--dry-run", "launch.gpus=7", "launch.num_processes=7", "vllm_mode=colocate"]) == 0
    assert main(["config", recipe, "launch.num_processes=6", "num_generations=14"]) == 2
    assert "does not divide the generation batch of" in capsys.readouterr().err

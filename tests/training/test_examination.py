"""`covey doctor` and training make the same checks: what one fails the other refuses, in the same words.

Every broken set-up here ended in an error before the first step, when it was written; doctor has to find each, training
has to refuse it in one paragraph and leave nothing behind. Sound set-ups pass both.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checked_runs import refused, words
from completed import completed
from covey.cli.main import main
from covey.config import load
from covey.training.checks.findings import Mark
from covey.training.doctor import examine

Change = Callable[[Path], Any]
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"


def rewrite(name: str, **changes: Any) -> Change:
    """A change of keys in a JSON file of the model; None removes one."""

    def change(model: Path) -> None:
        content = json.loads((model / name).read_text()) | changes
        (model / name).write_text(json.dumps({key: value for key, value in content.items() if value is not None}))

    return change


def write(name: str, text: str) -> Change:
    return lambda model: (model / name).write_text(text)


def cut(name: str) -> Change:
    return lambda model: (model / name).write_bytes((model / name).read_bytes()[:-500])


def remove(*names: str) -> Change:
    return lambda model: [file.unlink() for name in names for file in model.glob(name)]


def without_template(model: Path) -> None:
    remove("chat_template*")(model)
    rewrite("tokenizer_config.json", chat_template=None)(model)


def two_shards(model: Path) -> None:
    names = {"model.embed_tokens.weight": "model-00001-of-00002.safetensors"}
    (model / "model.safetensors").rename(model / names["model.embed_tokens.weight"])
    names["model.norm.weight"] = "model-00002-of-00002.safetensors"
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


MODELS: dict[str, tuple[Change, str]] = {
    "weights truncated": (cut("model.safetensors"), "model.safetensors is truncated"),
    "weights not fetched": (write("model.safetensors", LFS), "Git LFS pointer"),
    "weights empty": (write("model.safetensors", ""), "is empty"),
    "no weights": (remove("model.safetensors"), "no weights"),
    "a shard is missing": (two_shards, "1 of its 2 files are missing"),
    "index damaged": (
        lambda model: [remove("model.safetensors")(model), write("model.safetensors.index.json", "{")(model)],
        "not an index of shards",
    ),
    "weights of another size": (rewrite("config.json", intermediate_size=17), "not those of its config.json"),
    "embedding of another size": (rewrite("config.json", vocab_size=100_000), "not those of its config.json"),
    "no config": (remove("config.json"), "has no config.json"),
    "config empty": (write("config.json", ""), "cannot be loaded from"),
    "config cut short": (cut("config.json"), "cannot be loaded from"),
    "config not fetched": (write("config.json", LFS), "cannot be loaded from"),
    "config a list": (write("config.json", "[1]"), "cannot be loaded from"),
    "config of an unknown model": (rewrite("config.json", model_type="foo"), "cannot be loaded from"),
    "config with impossible types": (rewrite("config.json", num_attention_heads="x"), "cannot be loaded from"),
    "config with impossible sizes": (rewrite("config.json", num_attention_heads=0), "No model can be made"),
    "no architecture": (rewrite("config.json", architectures=None), "names no architecture"),
    "unknown architecture": (rewrite("config.json", architectures=["FooForCausalLM"]), "FooForCausalLM"),
    "tokenizer cut short": (cut("tokenizer.json"), "tokenizer of model.name"),
    "tokenizer not fetched": (write("tokenizer.json", LFS), "tokenizer of model.name"),
    "tokenizer of another kind": (write("tokenizer.json", '{"version": "1.0"}'), "tokenizer of model.name"),
    "no tokenizer": (remove("tokenizer*"), "makes no tokens of 16 of 16 prompts"),
    "no chat template": (without_template, "no chat template"),
    "only adapters": (
        lambda model: [remove("config.json")(model), write("adapter_config.json", "{")(model)],
        "a folder of adapters",
    ),
    "context shorter than a prompt": (
        rewrite("config.json", max_position_embeddings=16),
        "all 16 prompts fill the model's context of 16 tokens",
    ),
    "context shorter than an answer": (
        rewrite("config.json", max_position_embeddings=26),
        "prompts take more than the model's context of 26 tokens",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_that_cannot_be_trained(
    name: str, tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, message = MODELS[name]
    model = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    change(model)
    assert message in refused(tmp_path, capsys, f"model.name={model}")


SETTINGS: dict[str, tuple[list[str], str]] = {
    "flash-attn": (["model.attn_implementation=flash_attention_2"], "set model.attn_implementation=sdpa"),
    "flash-attn 3": (["model.attn_implementation=flash_attention_3"], "set model.attn_implementation=sdpa"),
    "a kernel of the hub": (["model.attn_implementation=kernels-community/x"], "needs the package kernels"),
    "unknown attention": (["model.attn_implementation=fast"], "is no attention of transformers"),
    "bitsandbytes": (["model.load_in_4bit=true", "model.lora.rank=4"], "needs the package bitsandbytes"),
    "8-bit optimiser": (["training.optim=adamw_8bit"], "bitsandbytes"),
    "galore": (["training.optim=galore_adamw"], "needs the package galore_torch"),
    "deepspeed": (["training.deepspeed={zero_optimization:{stage:2}}"], "needs the package deepspeed"),
    "vLLM": (["training.use_vllm=true"], "vLLM is not installed"),
    "tf32 without a GPU": (["training.tf32=true"], "training.tf32=true"),
    "schedule": (["training.lr_scheduler_kwargs={foo:1}"], "lr_scheduler_kwargs"),
    "compiler": (["training.torch_compile=true", "training.torch_compile_backend=foo"], "torch_compile_backend=foo"),
    "fsdp": (["training.fsdp=foo"], "training.fsdp=foo"),
    "accelerator": (["training.accelerator_config={foo:1}"], "training.accelerator_config"),
    "router loss": (["training.router_aux_loss_coef=0.1"], "mixtures of experts"),
    "layers for adapters": (["model.lora.rank=4", "model.lora.target_modules=[foo]"], "Target modules {'foo'}"),
    "no adapters": (["model.lora.path=/nowhere"], "holds no adapters"),
    "sampling of the model": (["model.use_generation_config=true"], "has no generation_config.json"),
    "chat template": (["model.chat_template='{{ foo() }}'"], "The chat template cannot be applied"),
    "its arguments": (["training.chat_template_kwargs={messages:1}"], "The chat template cannot be applied"),
    "prompt limit": (["dataset.max_prompt_length=2"], "All 16 training prompts are longer"),
    "too few prompts": (["training.per_device_train_batch_size=4096"], "One generation batch takes 1024"),
    "benchmark": (["evaluation.benchmarks=[gsm9k]"], "Did you mean gsm8k?"),
    "benchmark file": (
        ["evaluation.benchmarks=[gsm8k]", "evaluation.benchmark_paths.gsm8k=/nowhere.jsonl"],
        "/nowhere.jsonl",
    ),
    "reward": (["rewards.funcs=[acuracy]"], "Did you mean accuracy?"),
    "reward file": (["rewards.funcs=['/nowhere.py:f']"], "/nowhere.py, which does not exist"),
    "grader": (["evaluation.grader=/nowhere.py:f"], "/nowhere.py, which does not exist"),
    "objective": (["objective.name=/nowhere.py:O"], "/nowhere.py, which does not exist"),
    "engine": (["rollout.engine=/nowhere.py:E"], "/nowhere.py, which does not exist"),
    "callback": (["callbacks=['/nowhere.py:C']"], "/nowhere.py, which does not exist"),
    "reasoning tokens": (["model.reasoning_vocab_size=3"], "cannot be used"),
    "resume": (["resume=/nowhere/checkpoint-1"], "is not a folder"),
    "nothing to resume": (["resume=true"], "needs a checkpoint"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_cannot_be_used(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overrides, message = SETTINGS[name]
    assert message in refused(tmp_path, capsys, *overrides)


ROWS = [{"problem": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(40)]
DATA: dict[str, tuple[list[dict[str, Any]], list[str], str]] = {
    "no rows": ([], [], "the file is empty"),
    "wrong column": (ROWS, ["dataset.answer_column=foo"], "no column 'foo'"),
    "no answers": ([{"problem": row["problem"]} for row in ROWS], [], "which the reward exact_match needs"),
    "some answers": ([*ROWS, {"problem": "What is 1?", "answer": ""}], ["dataset.test_size=0"], "have no answer"),
    "answers that earn nothing": (
        [{**row, "answer": f"{row['answer']}</answer>"} for row in ROWS],
        ["dataset.test_size=0"],
        "40 of 40 gold answers do not score full marks",
    ),
    "a column of a reward": (ROWS, ["rewards.funcs=['REWARD:needs_level']"], "level"),
}


@pytest.mark.parametrize("name", DATA)
def test_data_that_cannot_be_used(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, overrides, message = DATA[name]
    (tmp_path / "reward.py").write_text("def needs_level(completions, level):\n    return [0.0 for _ in level]\n")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    filled = [word.replace("REWARD", str(tmp_path / "reward.py")) for word in overrides]
    assert message in refused(tmp_path, capsys, f"dataset.path={tmp_path / 'rows.jsonl'}", *filled)


def test_places_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert "is a file" in refused(tmp_path, capsys, f"output_dir={tmp_path / 'file'}")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert "is a file" in refused(tmp_path, capsys, f"output_dir={tmp_path / 'link'}")
    (tmp_path / "other" / "run").mkdir(parents=True)
    (tmp_path / "other" / "run" / "thesis.txt").touch()
    assert "is not a run directory" in refused(tmp_path, capsys, f"output_dir={tmp_path / 'other'}")


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path / "closed")
    found = {f.check: f for f in examine(load(words(tmp_path, f"output_dir={tmp_path / 'closed' / 'out'}")))}
    assert found["output"].mark is Mark.WRONG
    assert "no permission" in found["output"].result


SOUND: dict[str, list[str]] = {
    "as it is": [],
    "adapters": ["model.lora.rank=4"],
    "adapters with magnitudes": ["model.lora.rank=4", "model.lora.use_dora=true"],
    "reasoning tokens": ["model.reasoning_vocab_size=16"],
    "attention and dtype": ["model.attn_implementation=eager", "model.dtype=bfloat16"],
    "other optimiser": ["training.optim=adafactor", "training.lr_scheduler_type=linear"],
    "GPU settings": ["training.bf16=true", "training.gradient_checkpointing=true"],
    "own objective": ["objective=maxent"],
    "evaluation": ["evaluation.every_steps=1", "evaluation.grader=accuracy"],
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if SOUND[n] else []) for n in SOUND])
def test_sound_runs_pass(name: str, tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = [f"model.name={tiny_model}", *SOUND[name]]
    assert main(["doctor", "--quiet", *words(tmp_path, *overrides)]) == 0
    assert main(["train", *words(tmp_path, *overrides)]) == 0
    assert capsys.readouterr().err == ""
    assert (tmp_path / "out" / "run" / "final_model").is_dir()


def test_a_judgement_can_be_overridden(tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    rewrite("config.json", max_position_embeddings=26)(model)
    overrides = [f"model.name={model}"]
    assert "'ignore_checks=[lengths]' trains all the same" in refused(tmp_path, capsys, *overrides)
    overrides.append("ignore_checks=[lengths]")
    assert main(["doctor", *words(tmp_path, *overrides)]) == 0
    assert main(["train", *words(tmp_path, *overrides)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "✗ lengths: with training.max_completion_length=8" in out
    assert "ignore_checks=[lengths]: lengths: with" in (tmp_path / "out" / "run" / "train.log").read_text()


def test_what_fails_cannot_be_overridden(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("model.attn_implementation=flash_attention_2", "ignore_checks=[all]")
    assert "set model.attn_implementation=sdpa" in refused(tmp_path, capsys, *words)


def test_python_raises_the_same(tmp_path: Path) -> None:
    import covey
    from covey.errors import PreflightError

    overrides = words(tmp_path, "training.max_completion_length=2040", "dataset.max_prompt_length=null")
    with pytest.raises(PreflightError, match=r"all 16 prompts take more than the model's context of 2048 tokens"):
        covey.train(overrides=overrides)
    assert not (tmp_path / "out").exists()


def test_cheap_mistakes_are_found_without_pytorch(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "out" / "foreign").mkdir(parents=True)
    (tmp_path / "out" / "foreign" / "thesis.txt").touch()
    mistakes = [
        [f"dataset.path={tmp_path / 'rows.jsonl'}", "dataset.answer_column=foo"],
        [f"dataset.path={tmp_path / 'empty.jsonl'}"],
        ["rewards.funcs=['/nowhere.py:f']"],
        ["evaluation.benchmarks=[gsm9k]"],
        ["run_name=foreign"],
        ["model.attn_implementation=flash_attention_2"],
        [f"output_dir={tmp_path / 'rows.jsonl'}"],
    ]
    (tmp_path / "needs_level.py").write_text("def reward(prompts, completions, level, **kwargs):\n    return [0.0]\n")
    own = f"{tmp_path / 'needs_level.py'}:reward"
    rows = f"dataset.path={tmp_path / 'rows.jsonl'}"
    evaluated = [
        [rows, "--all", f"rewards.funcs=['{own}']"],
        [rows, "--all", f"evaluation.grader={own}"],
        [rows, "dataset.answer_column=foo"],
        ["dataset.test_size=0", "dataset.hard_size=0"],
        ["evaluation.best_by=accuracyy"],
    ]
    lines = [["train", *words(tmp_path, *mistake)] for mistake in mistakes]
    lines += [["eval", "starter", *words(tmp_path, *mistake)] for mistake in evaluated]
    script = f"""
import sys
from covey.cli.main import main
for line in {lines!r}:
    assert main(line) in (1, 2), line
    assert "torch" not in sys.modules, line
"""
    done = completed([sys.executable, "-c", script], timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr.count("covey: ") == len(lines)

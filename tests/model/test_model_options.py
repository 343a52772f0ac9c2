"""Model options of recipes: adapters, quantised weights, trackers, users' callbacks.

Pinned here: which weights are trained and saved with LoRA; that merged weights compute what the adapted model does;
and that unsupported options are an error before anything is written.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.cli.main import main
from covey.config import LoraConfig, ModelConfig, build
from covey.errors import ConfigError, ModelError
from covey.model.adapters import lora_config, quantization_config
from covey.model.load import load_tokenizer, own_sampling, resolve_model
from covey.model.prompts import cut_left, prompt_lengths, render
from covey.model.starter import STARTER_PATH
from covey.training.callbacks import load_callbacks
from covey.training.checks.trackers import tracker_environment, trackers
from run_sizes import SMALL

Train = Callable[..., tuple[int, str]]


@pytest.fixture
def train(tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Train:
    """Run two steps of `covey train` into tmp_path/run; returns exit code and what was printed, on one line."""

    (tmp_path / "uneven.py").write_text(  # a random model earns nothing with real rewards, and then nothing moves
        "def uneven(prompts, completions, **kwargs):\n"
        "    return [float(len(c[-1]['content']) % 3) for c in completions]\n"
    )

    def call(*overrides: str) -> tuple[int, str]:
        defaults = (
            *("model=starter", f"model.name={tiny_model}", f"output_dir={tmp_path}", "run_name=run", *SMALL),
            *("training.max_steps=2", "training.learning_rate=0.01", "evaluation.every_steps=0"),
            f"rewards.funcs=['{tmp_path / 'uneven.py'}:uneven']",
        )
        code = main(["train", *defaults, *overrides])
        captured = capsys.readouterr()
        return code, " ".join((captured.out + captured.err).split())

    return call


def config(**groups: object) -> object:
    return build({"dataset": {"task": "arithmetic"}, **groups})


def test_lora_settings_reach_peft() -> None:
    assert lora_config(LoraConfig()) is None
    assert lora_config(LoraConfig(rank=8, enabled=False)) is None
    made = lora_config(LoraConfig(rank=8, alpha=24, dropout=0.1, target_modules=("q_proj", "v_proj"), use_rslora=True))
    assert made is not None
    assert (made.r, made.lora_alpha, made.lora_dropout, made.use_rslora) == (8, 24, 0.1, True)
    assert made.target_modules == {"q_proj", "v_proj"}
    by_default = lora_config(LoraConfig(enabled=True, target_modules=("all-linear",)))
    assert by_default is not None
    assert (by_default.r, by_default.target_modules) == (16, "all-linear")


def test_quantised_weights_are_an_error_where_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert quantization_config(ModelConfig()) is None
    model = ModelConfig(load_in_4bit=True, lora=LoraConfig(rank=8))
    monkeypatch.setattr("covey.model.adapters.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"model\.load_in_4bit=true needs bitsandbytes.*\[quantization\]"):
        quantization_config(model)
    monkeypatch.setattr("covey.model.adapters.find_spec", lambda name: object())
    monkeypatch.setattr("covey.model.adapters.device_kind", lambda: "cpu")
    monkeypatch.setitem(sys.modules, "bitsandbytes", SimpleNamespace(__version__="0.43.0"))
    with pytest.raises(ModelError, match=r"bitsandbytes 0\.43\.0 cannot work on a CPU.*pip install -U"):
        quantization_config(model)
    newer = SimpleNamespace(__version__="0.50.2", supported_torch_devices={"cpu", "cuda"})
    monkeypatch.setitem(sys.modules, "bitsandbytes", newer)
    made = quantization_config(ModelConfig(load_in_8bit=True, lora=LoraConfig(rank=8)))
    assert made is not None
    assert made.load_in_8bit


def test_trackers_are_checked_and_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = config(training={"report_to": ["wandb"]}, logging={"project": "p", "tags": ["a", "b"], "mode": "offline"})
    monkeypatch.setattr("covey.training.checks.trackers.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"report_to=wandb needs the package wandb.*\[wandb\]"):
        trackers(asked)
    monkeypatch.setattr("covey.training.checks.trackers.find_spec", lambda name: object())
    assert trackers(asked) == ["wandb"]
    assert trackers(config(training={"report_to": ["wandb"]}, logging={"mode": "disabled"})) == []
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    monkeypatch.delenv("WANDB_TAGS", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    with tracker_environment(asked):
        assert (os.environ["WANDB_PROJECT"], os.environ["WANDB_TAGS"], os.environ["WANDB_MODE"]) == (
            "mine",
            "a,b",
            "offline",
        )
    assert "WANDB_TAGS" not in os.environ
    assert os.environ["WANDB_PROJECT"] == "mine"


def test_adapters_alone_are_trained_and_saved(train: Train, tiny_model: str, tmp_path: Path) -> None:
    code, out = train("model.lora.rank=4", "model.lora.target_modules=all-linear")
    assert code == 0, out
    final = tmp_path / "run" / "final_model"
    assert (final / "adapter_model.safetensors").is_file()
    assert not (final / "model.safetensors").exists()
    assert json.loads((final / "adapter_config.json").read_text())["r"] == 4
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model), str(final))
    ids = AutoTokenizer.from_pretrained(final)("12 + 34", return_tensors="pt").input_ids
    with torch.no_grad():
        assert not torch.allclose(base(ids).logits, adapted(ids).logits)


def test_adapters_of_a_starter_name_it_and_load_as_the_card_says(train: Train, tmp_path: Path) -> None:
    words = ("model.name=starter", "model.lora.rank=4", "model.lora.target_modules=all-linear")
    words += ("training.save_steps=1",)
    code, out = train(*words, "training.bf16=true", "training.use_cpu=false")
    assert code == 0, out
    run = tmp_path / "run"
    described = [json.loads(file.read_text()) for file in run.rglob("adapter_config.json")]
    assert {one["base_model_name_or_path"] for one in described} == {"starter"}
    assert not any(str(STARTER_PATH) in file.read_text() for file in run.rglob("README.md"))
    card = (run / "final_model" / "README.md").read_text()
    code = card.partition("```python\n")[2].partition("messages =")[0]
    loaded: dict[str, Any] = {}
    exec(code.replace("FOLDER", str(run / "final_model")), loaded)
    assert loaded["model"].peft_config["default"].r == 4
    assert main(["export", str(run), str(tmp_path / "whole")]) == 0
    ids = loaded["tokenizer"]("12 + 34", return_tensors="pt").input_ids
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    with torch.no_grad():
        torch.testing.assert_close(merged(ids).logits, loaded["model"](ids).logits, atol=1e-4, rtol=1e-4)
    # What a CPU uses in place of these keys is recorded; the config stays what was asked for, by which a run resumes.
    assert "in place of use_cpu=false and bf16=true" in out
    used = ["training.bf16=false", "training.use_cpu=true"]
    assert json.loads((run / "environment.json").read_text())["used"] == used
    assert (run / "config.yaml").read_text().splitlines()[-1].endswith(": training.bf16=false, training.use_cpu=true")
    assert "| used instead | training.bf16=false, training.use_cpu=true |" in card
    code, out = train(*words, "training.bf16=true", "training.use_cpu=false")
    assert (code, "nothing is left to do" in out) == (0, True), out


def test_merged_weights_compute_what_the_adapted_model_does(train: Train, tiny_model: str, tmp_path: Path) -> None:
    code, out = train("model.lora.rank=4", "model.lora.merge=true", "training.save_steps=2")
    assert code == 0, out
    run = tmp_path / "run"
    assert not (run / "final_model" / "adapter_model.safetensors").exists()
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model), str(run / "checkpoint-2"))
    merged = AutoModelForCausalLM.from_pretrained(run / "final_model")
    ids = AutoTokenizer.from_pretrained(run / "final_model")("12 + 34", return_tensors="pt").input_ids
    with torch.no_grad():
        torch.testing.assert_close(merged(ids).logits, adapted(ids).logits, rtol=1e-4, atol=1e-5)


def test_users_callbacks(train: Train, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from pathlib import Path\n"
        "from transformers import TrainerCallback\n"
        "class Count(TrainerCallback):\n"
        "    def on_step_end(self, args, state, control, **kwargs):\n"
        f"        Path({str(tmp_path / 'steps')!r}).write_text(str(state.global_step))\n"
        "def plain(): pass\n"
    )
    code, out = train(f"callbacks=['{file}:Count']")
    assert code == 0, out
    assert (tmp_path / "steps").read_text() == "2"
    for name, says in (("Count", "file.py:Class"), (f"{file}:Cuont", "Count"), (f"{file}:plain", "not a transformers")):
        with pytest.raises(ConfigError, match=says):
            load_callbacks([name])


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("model.reasoning_vocab_size=3", "all of these tokens are special ones"),
        ("model.mesh_shape=[[2,2],[fsdp,tp]]", "takes 4 = 4 training processes"),
        ("model.lora.target_modules=[no_such_layer]", "no_such_layer"),
        ("training.use_vllm=true", "vLLM"),
    ],
)
def test_unsupported_options_are_an_error_before_anything_is_written(
    train: Train, tmp_path: Path, override: str, says: str
) -> None:
    code, out = train("model.lora.rank=4", override)
    assert code == 2, out
    assert says in out
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_prompts_are_measured_and_truncated_as_the_model_sees_them(tiny_model: str) -> None:
    tokenizer = load_tokenizer(ModelConfig(name=tiny_model))
    prompt = [{"role": "user", "content": "What is 12 + 34?"}]
    text = render(tokenizer, prompt)
    assert "What is 12 + 34?" in text
    ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert prompt_lengths(tokenizer)([prompt, prompt]) == [len(ids), len(ids)]
    tokenizer.chat_template += "{% if brief %}Be brief.{% endif %}"
    assert render(tokenizer, prompt, {"brief": True}) == text + "Be brief."
    assert prompt_lengths(tokenizer, {"brief": True})([prompt])[0] > len(ids)
    cut = cut_left(tokenizer)
    whole = "seventy – 12 + 34"
    ids = tokenizer(whole, add_special_tokens=False).input_ids
    for count in range(len(ids) + 1):
        assert whole.endswith(cut(whole, count))
    assert cut(whole, 0) == whole
    assert cut(whole, len(ids)) == ""
    assert len(cut(whole, 3)) < len(cut(whole, 1))


def test_long_prompts_are_dropped_and_counted(train: Train) -> None:
    code, out = train("dataset.max_prompt_length=2")
    assert code != 0
    assert "max_prompt_length" in out
    code, out = train("dataset.max_prompt_length=2000")
    assert code == 0, out


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a GPU here")
def test_a_run_without_a_gpu_reports_its_dtype(train: Train) -> None:
    code, out = train("model.dtype=bfloat16", "training.bf16=true")
    assert code == 0, out
    assert "training on the CPU in bfloat16 (use_cpu=true, bf16=false, in place of bf16=true)" in out


@pytest.mark.slow
def test_training_of_adapters_is_continued(train: Train, tiny_model: str, tmp_path: Path) -> None:
    code, out = train("model.lora.rank=4", "model.lora.alpha=64", "run_name=first")
    assert code == 0, out
    before = tmp_path / "first" / "final_model"
    code, out = train(f"model.name={before}")
    assert code == 1
    assert f"model.name={tiny_model} model.lora.path={before}" in out
    settings = (f"model.lora.path={before}", "training.beta=0.1", "training.save_steps=1", "training.max_steps=4")
    for more in (("run_name=straight",), ("stop_after_steps=2",), ()):
        code, out = train(*settings, *more)
        assert code == 0, out
    after = [tmp_path / name / "final_model" for name in ("straight", "run")]
    assert not (after[0] / "ref").exists()  # a copy that only the KL needs
    weights = [load_file(folder / "adapter_model.safetensors") for folder in (before, *after)]
    for name, first in weights[0].items():
        straight, resumed = weights[1][name], weights[2][name]
        torch.testing.assert_close(resumed, straight, rtol=0, atol=0)
        moved, size = (straight - first).abs().max(), first.abs().max()
        assert moved > 0, name
        assert "lora_B" in name or moved < size / 2, name  # from there, and not from new ones, which are random
    # The reference is what the adapters were before: the first step has no divergence from it, the last one has.
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["train/kl"] == pytest.approx(0, abs=1e-6)
    assert rows[-1]["train/kl"] > 1e-6


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("model.lora.path=nowhere", "model.lora.path=nowhere holds no adapters"),
        ("model.use_generation_config=true", "says how to sample"),
        ("model.name=kaggle://google/gemma-3", "kaggle://owner/model/transformers/variation"),
        ("model.name=kaggle://google/gemma-3/flax/gemma3-1b-it", "weights for flax"),
        ("model.name=kaggle://google/gemma-3/transformers/gemma-3-1b-it", r"kagglehub"),
    ],
)
def test_models_that_cannot_be_loaded_are_an_error(train: Train, tmp_path: Path, override: str, says: str) -> None:
    code, out = train(override)
    assert code == 1, out
    assert says in out
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_weights_from_kaggle(tiny_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    fake = ModuleType("kagglehub")
    fake.model_download = lambda handle: asked.append(handle) or tiny_model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kagglehub", fake)
    address = "kaggle://qwen/qwen-3/transformers/tiny/2"
    assert resolve_model(address) == resolve_model(address) == tiny_model
    assert asked == ["qwen/qwen-3/transformers/tiny/2"]
    assert load_tokenizer(ModelConfig(name=address)).pad_token is not None


@pytest.mark.parametrize(
    ("name", "source", "file"),
    [
        ("{here}/m-Q4_1.gguf", "{here}", "m-Q4_1.gguf"),
        ("{here}", "{here}", "m-Q4_1.gguf"),
        ("owner/m/m-Q4_1.gguf", "owner/m", "m-Q4_1.gguf"),
        ("owner/m-GGUF", "owner/m-GGUF", "FILE.gguf"),
    ],
)
def test_gguf_is_refused_with_the_way_to_convert(
    name: str, source: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m-Q4_1.gguf").touch()
    with pytest.raises(ModelError, match=r"is GGUF, .* -m pip install gguf`") as refused:
        resolve_model(name.format(here=tmp_path))
    interpreter, option, code = shlex.split(re.findall("`([^`]+)`", str(refused.value))[1])
    assert (interpreter, option) == (sys.executable, "-c")
    done = []

    class Loaded:
        def __init__(self, source: str, gguf_file: str, **options: object) -> None:
            done.append((source, gguf_file, [getattr(one, "dequantize", None) for one in options.values()]))

        def save_pretrained(self, folder: str) -> None:
            done.append(folder)

    for kind in ("AutoModelForCausalLM", "AutoTokenizer"):
        monkeypatch.setattr(f"transformers.{kind}.from_pretrained", Loaded)
    exec(code, {})
    asked, out = source.format(here=tmp_path), "CONVERTED" if file == "FILE.gguf" else "m-Q4_1"
    assert done == [(asked, file, [True]), out, (asked, file, []), out]
    assert str(refused.value).endswith(f"set model.name={out}.")


def test_the_models_own_sampling_overrides_the_recipes(tiny_model: str, train: Train, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**settings, "temperature": 0.6, "top_k": 20}))
    assert own_sampling(ModelConfig(name=str(folder))) == {"temperature": 0.6, "top_k": 20}
    code, out = train(f"model.name={folder}", "model.use_generation_config=true", "training.max_steps=1")
    assert code == 0, out
    assert "generation config: temperature=0.6, top_k=20." in out
    args = torch.load(next((tmp_path / "run").glob("checkpoint-1/training_args.bin")), weights_only=False)
    assert (args.temperature, args.top_k) == (0.6, 20)


def test_a_tokenizer_without_padding_gets_a_token_that_ends_nothing(tiny_model: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    own, end = tokenizer.pad_token, tokenizer.eos_token
    assert own != end
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("pad_token", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if (folder / "special_tokens_map.json").is_file():
        (folder / "special_tokens_map.json").unlink()
    assert AutoTokenizer.from_pretrained(folder).pad_token is None
    assert load_tokenizer(ModelConfig(name=str(folder))).pad_token == own
    # Where the only candidate ends an answer too, by the model's own word, the end itself is taken.
    generation = json.loads((folder / "generation_config.json").read_text())
    ends = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(own)]
    (folder / "generation_config.json").write_text(json.dumps({**generation, "eos_token_id": ends}))
    assert load_tokenizer(ModelConfig(name=str(folder))).pad_token == end

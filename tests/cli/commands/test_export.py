"""`covey export`: a plain folder with the run's model and its model card.

Merged adapters of every kind give the logits of the adapted model; dtypes; what a folder holds and what it must not; a
folder in use is not overwritten; the model card has the run's figures and no secrets.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.cli.main import main
from covey.report.load import load_run
from covey.report.model_card import model_card
from made_run import make_run

KINDS: dict[str, dict[str, Any]] = {
    "plain": {"r": 4, "lora_alpha": 32},
    "rslora": {"r": 4, "lora_alpha": 8, "use_rslora": True},
    "dora": {"r": 4, "lora_alpha": 8, "use_dora": True},
    "regex": {"r": 2, "target_modules": r".*layers\.1\..*(q|v)_proj"},
    "whole layers too": {"r": 2, "target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
}


def adapters(base: str, folder: Path, settings: dict[str, Any]) -> str:
    """A folder of adapters that change the model's logits."""
    torch.manual_seed(1)
    settings = {"target_modules": "all-linear", **settings}
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(task_type="CAUSAL_LM", **settings))
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.requires_grad and "magnitude" not in name:
                weights.add_(0.2 * torch.randn_like(weights))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return str(folder)


def logits(model: Any, folder: str | Path) -> torch.Tensor:
    ids = AutoTokenizer.from_pretrained(folder)("12 + 34 =", return_tensors="pt").input_ids
    with torch.no_grad():
        return model(ids).logits


@pytest.mark.filterwarnings("ignore:.*tied layer is part of the adapter")  # the last kind is just that
@pytest.mark.filterwarnings("ignore:.*no longer tied after merging")
@pytest.mark.parametrize("kind", KINDS)
def test_merged_adapters_give_the_same_logits(tiny_model: str, tmp_path: Path, kind: str) -> None:
    source = adapters(tiny_model, tmp_path / "adapters", KINDS[kind])
    assert main(["export", source, str(tmp_path / "out")]) == 0
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    plain = logits(base, tiny_model)
    adapted = logits(PeftModel.from_pretrained(base, source), tiny_model)
    exported = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "out"), tmp_path / "out")
    assert (adapted - plain).abs().max() > 0.05
    torch.testing.assert_close(exported, adapted, rtol=1e-4, atol=1e-5)
    assert not list((tmp_path / "out").glob("adapter_*"))


def test_a_folder_is_complete_and_not_overwritten(
    tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "out"
    assert main(["export", tiny_model, str(out), "--dtype", "bfloat16"]) == 0
    model = AutoModelForCausalLM.from_pretrained(out, dtype="auto")
    assert {weights.dtype for weights in model.parameters()} == {torch.bfloat16}
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(tiny_model).chat_template
    generation = json.loads((out / "generation_config.json").read_text())
    assert generation["eos_token_id"] == tokenizer.eos_token_id
    assert generation["pad_token_id"] == tokenizer.pad_token_id != tokenizer.eos_token_id
    assert sorted(path.name for path in out.parent.iterdir()) == ["out"]
    capsys.readouterr()
    assert main(["export", tiny_model, str(out)]) == 1
    assert "is not empty" in capsys.readouterr().err
    assert main(["export", tiny_model, str(out), "--overwrite"]) == 0
    assert AutoModelForCausalLM.from_pretrained(out, dtype="auto").dtype == torch.float32
    for words, says in (
        ([tiny_model, str(tmp_path / "a"), "--adapters"], "no adapters of its own"),
        ([tiny_model, str(tmp_path / "a"), "--fold"], "no reasoning vocabulary"),
        ([str(tmp_path / "nothing" / "here"), str(tmp_path / "a")], "nothing"),
    ):
        assert main(["export", *words]) != 0
        assert says in capsys.readouterr().err
        assert not (tmp_path / "a").exists()


def test_adapters_alone_are_copied_and_load(tiny_model: str, tmp_path: Path) -> None:
    source = Path(adapters(tiny_model, tmp_path / "adapters", KINDS["plain"]))
    (source / "optimizer.pt").write_bytes(b"x")
    assert main(["export", str(source), str(tmp_path / "out"), "--adapters"]) == 0
    assert not (tmp_path / "out" / "optimizer.pt").exists()
    assert json.loads((tmp_path / "out" / "adapter_config.json").read_text())["base_model_name_or_path"] == tiny_model
    loaded = [PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model), str(f)) for f in
              (source, tmp_path / "out")]  # fmt: skip
    torch.testing.assert_close(logits(loaded[0], tiny_model), logits(loaded[1], tiny_model), rtol=0, atol=0)


def test_a_reasoning_vocabulary_is_kept_or_folded(tiny_model: str, tmp_path: Path) -> None:
    wide, copied, folded = (str(tmp_path / name) for name in ("wide", "copied", "folded"))
    assert main(["expand-vocab", tiny_model, wide, "--size", "20"]) == 0
    assert main(["export", wide, copied]) == 0
    assert main(["export", wide, folded, "--fold"]) == 0
    assert (tmp_path / "copied" / "reasoning_token_map.json").is_file()
    assert not (tmp_path / "folded" / "reasoning_token_map.json").exists()
    assert not (tmp_path / "folded.unfolded").exists()
    models = {name: AutoModelForCausalLM.from_pretrained(name) for name in (tiny_model, wide, copied, folded)}
    size = models[tiny_model].get_input_embeddings().weight.shape[0]
    assert models[copied].get_input_embeddings().weight.shape[0] == size + 20
    torch.testing.assert_close(logits(models[copied], tiny_model), logits(models[wide], tiny_model), rtol=0, atol=0)
    torch.testing.assert_close(logits(models[folded], tiny_model), logits(models[tiny_model], tiny_model))
    ids = list(range(size + 20))
    texts = [AutoTokenizer.from_pretrained(name).batch_decode([[i] for i in ids]) for name in (wide, copied)]
    assert texts[0] == texts[1]


def test_the_card_of_a_run_has_its_figures_and_no_secrets(tiny_model: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "made", steps=30)
    shutil.copytree(tiny_model, run / "final_model")
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["training"]["hub_token"] = "hf_secret"
    config["dataset"].update(task=None, path="/home/someone/private/train.jsonl")
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert main(["export", str(run), str(tmp_path / "out")]) == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert "hf_secret" not in card
    assert "/home/someone" not in card
    assert "train.jsonl" in card
    _, front, body = card.split("---\n", 2)
    meta = yaml.safe_load(front)
    assert meta["library_name"] == "transformers"
    record = load_run(run)
    last = [row for row in record.rows if row.get("eval/accuracy") is not None][-1]
    (first, *_) = meta["model-index"][0]["results"]
    assert first["metrics"][0]["value"] == pytest.approx(last["eval/accuracy"], abs=1e-4)
    low, high = (100 * last[f"eval/accuracy_{end}"] for end in ("low", "high"))
    assert f"{100 * last['eval/accuracy']:.1f}% [{low:.1f} to {high:.1f}]" in body
    early = next(row for row in record.rows if row.get("eval/accuracy") is not None)
    at_start = model_card(record, state=f"checkpoint-{early['step']}", hub_id="somebody/model")
    assert f"{100 * early['eval/accuracy']:.1f}% [" in at_start
    assert 'from_pretrained("somebody/model"' in at_start

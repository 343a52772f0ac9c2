"""Arguments of the trainer that cannot work are refused in Python as in a recipe, before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from covey import GRPOTrainer
from covey.errors import ConfigError, ModelError
from covey.training.trl.trainer import prepare_models
from tiny_architectures import make
from trainers import build_trainer


@pytest.mark.parametrize("name", ["neftune_noise_alpha", "label_smoothing_factor"])
def test_settings_that_cannot_work(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{name}=0.5 has no effect in GRPO"):
        build_trainer(GRPOTrainer, "no/such-model", tmp_path, prompts=2, **{name: 0.5})


def test_a_model_of_which_nothing_would_be_trained(tiny_model: str, tmp_path: Path) -> None:
    lora = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), lora).save_pretrained(tmp_path / "adapters")

    def build(model: Any, **more: Any) -> Any:
        return build_trainer(GRPOTrainer, model, tmp_path, prompts=2, more=more)

    def load(**options: Any) -> Any:
        return PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(tiny_model), tmp_path / "adapters", **options
        )

    with pytest.raises(ModelError, match="is_trainable=True"):
        build(load())
    frozen = AutoModelForCausalLM.from_pretrained(tiny_model).requires_grad_(False)
    with pytest.raises(ModelError, match=r"Nothing would be trained: .* peft_config"):
        build(frozen)
    with pytest.raises(ModelError, match="inference_mode"):
        build(tiny_model, peft_config=LoraConfig(target_modules=["q_proj"], inference_mode=True))
    assert build(frozen, peft_config=lora).model.get_nb_trainable_parameters()[0] > 0
    assert build(load(is_trainable=True)).model.get_nb_trainable_parameters()[0] > 0


@pytest.mark.filterwarnings("ignore:.*tied")
def test_what_vllm_cannot_hold() -> None:
    def check(tied: bool, **settings: Any) -> None:
        model = get_peft_model(make("Qwen3", tie_word_embeddings=tied), LoraConfig(r=2, **settings))
        args = SimpleNamespace(use_vllm=True, disable_dropout=False)
        prepare_models(SimpleNamespace(model=model, ref_model=None, args=args))

    attention = ["q_proj"]
    refused: list[dict[str, Any]] = [
        {"target_modules": [*attention, "embed_tokens"]},
        {"target_modules": attention, "modules_to_save": ["embed_tokens"]},
        {"target_modules": attention, "modules_to_save": ["lm_head"]},
    ]
    for settings in refused:
        check(False, **settings)
        with pytest.raises(ConfigError, match="ties the head to the embedding"):
            check(True, **settings)
    check(True, target_modules=attention)
    check(True, target_modules=attention, trainable_token_indices={"embed_tokens": [1, 2]})
    check(True, target_modules=attention, modules_to_save=["embed_tokens"], ensure_weight_tying=True)

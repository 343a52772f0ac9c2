"""What is trained, over architectures: every scoring pass, loss, gradients and the exported model by plain forwards.

Prompts are padded on the left, and dropout is on in the configs and off in training.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    RecurrentGemmaConfig,
    RecurrentGemmaForCausalLM,
    RwkvConfig,
    RwkvForCausalLM,
    Zamba2Config,
    Zamba2ForCausalLM,
)
from transformers.pytorch_utils import Conv1D

from covey import GRPOTrainer
from covey.config import ModelConfig, SpeedConfig
from covey.errors import ModelError
from covey.model.adapters import merge
from covey.model.export import export_model, load_whole
from covey.model.starter.coldstart import make_tokenizer
from tiny_architectures import ARCHITECTURES, SIZES, make, plain_logps, saved
from trainers import build_trainer

PROMPTS = ["1 + 2 =", "12 + 34 + 56 + 78 =", "7 =", "123 + 456 ="]


class Compared(GRPOTrainer):
    """Scores every row by itself as well."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.gaps: list[float] = []
        self.passes = set[tuple[bool, bool]]()
        super().__init__(*args, **kwargs)

    def _get_per_token_logps_and_entropies(self, model: Any, ids: Any, mask: Any, width: int, **more: Any) -> Any:
        scores = super()._get_per_token_logps_and_entropies(model, ids, mask, width, **more)
        with torch.no_grad():
            gap = (scores[0] - plain_logps(model, ids, mask, width)).abs() * mask[:, -width:]
        self.gaps.append(float(gap.max()))
        self.passes.add((torch.is_grad_enabled(), self.model.training))
        assert (mask[:, 0] == 0).any()
        return scores

    def _compute_loss(self, model: Any, inputs: Any) -> torch.Tensor:
        self.batch, loss = inputs, super()._compute_loss(model, inputs)
        self.step_loss = loss.detach()
        return loss

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        found = {name: one.grad.clone() for name, one in self.model.named_parameters() if one.grad is not None}
        self.model.zero_grad()
        expected = plain_loss(self.model, self.batch, self.beta)
        expected.backward()
        self.loss_gap = float((expected.detach() - self.step_loss).abs())
        plain = {name: one.grad for name, one in self.model.named_parameters() if one.grad is not None}
        scale = max(float(one.norm()) for one in plain.values())
        assert found.keys() >= plain.keys()
        self.gradient_gap = max(float((one - plain.get(name, 0)).norm()) / scale for name, one in found.items())
        return super()._get_grad_norm(model, grad_norm)


def plain_loss(model: Any, batch: dict[str, Any], beta: float) -> torch.Tensor:
    """GRPO's first step on new completions, where ratios are 1, with the KL term: the mean over tokens."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    counted = batch["completion_mask"]
    logps = plain_logps(model, ids, mask, counted.shape[1])
    log_ratio = batch["ref_per_token_logps"] - logps
    kl = log_ratio.exp() - log_ratio - 1
    objective = (logps - logps.detach()).exp() * batch["advantages"][:, None] - beta * kl
    return -(objective * counted).sum() / counted.sum()


def compared(source: Any, folder: Path, **more: Any) -> Compared:
    """A trainer after one step and an evaluation, all of whose passes are right."""
    rows = [{"prompt": [{"role": "user", "content": text}]} for text in PROMPTS]
    trainer = build_trainer(
        Compared, source, folder, prompts=rows,
        more={"eval_dataset": Dataset.from_list(rows), "sampler_gap": True, **more},
        max_steps=1, max_grad_norm=0.0, disable_dropout=True, per_device_train_batch_size=16,
        per_device_eval_batch_size=4, num_generations_eval=2, max_completion_length=5, num_iterations=2, beta=0.1,
        loss_type="bnpo", scale_rewards="none", router_aux_loss_coef=0.0,
    )  # fmt: skip
    trainer.train()
    trainer.evaluate()
    assert trainer.passes == {(False, True), (True, True), (False, False)}
    assert max(trainer.gaps) < 1e-5
    assert trainer.loss_gap < 1e-5
    assert trainer.gradient_gap < 1e-4
    assert trainer.state.log_history[0]["sampling/logp_gap"] < 1e-5
    return trainer


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model.eval()(torch.arange(3, 40)[None]).logits


KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "adapters": {"target_modules": ["LINEAR"]},
    "adapters of the embedding": {"target_modules": ["EMBEDDING", "LINEAR"]},
    "the whole embedding": {"target_modules": ["LINEAR"], "modules_to_save": ["EMBEDDING"]},
    "the whole head": {"target_modules": ["LINEAR"], "modules_to_save": ["HEAD"]},
    "rows of the embedding": {"target_modules": ["LINEAR"], "trainable_token_indices": {"EMBEDDING": [3, 20, 21]}},
}
SHOWN = ("full", "adapters of the embedding", "the whole embedding")
FAST = {("GPT2", "full"), ("XGLM", "full"), ("Qwen3", "adapters of the embedding"), ("Qwen3", "the whole embedding")}
CASES = [(name, kind, True) for name in ARCHITECTURES for kind in KINDS if kind in SHOWN]
CASES += [(name, kind, tied) for name in ("GPT2", "Qwen3") for kind in KINDS for tied in (True, False)]


def settings_for(model: Any, kind: str) -> dict[str, Any]:
    """Arguments of a LoraConfig, with the model's own names of its layers."""
    names = {id(module): name.rpartition(".")[2] for name, module in model.named_modules()}
    layers = [(name, one) for name, one in model.named_modules() if isinstance(one, torch.nn.Linear | Conv1D)]
    linear = next(one for name, one in layers if "attn" in name or "attention" in name)
    text = json.dumps(KINDS[kind]).replace("LINEAR", names[id(linear)])
    text = text.replace("HEAD", names[id(model.get_output_embeddings())])
    return dict(json.loads(text.replace("EMBEDDING", names[id(model.get_input_embeddings())])))


@pytest.mark.filterwarnings("ignore:.*tied layer is part of the adapter")
@pytest.mark.filterwarnings("ignore:.*tied_target_modules")
@pytest.mark.filterwarnings("ignore:.*no longer tied after merging")
@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set")
@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`")
@pytest.mark.parametrize(
    ("name", "kind", "tied"),
    [pytest.param(*one, marks=() if one[:2] in FAST and one[2] else pytest.mark.slow) for one in dict.fromkeys(CASES)],
)
def test_all_passes_and_the_exported_model(name: str, kind: str, tied: bool, tmp_path: Path) -> None:
    source, settings = saved(name, tmp_path / "model", tie_word_embeddings=tied), settings_for(make(name), kind)
    more = {"peft_config": LoraConfig(r=2, task_type="CAUSAL_LM", lora_dropout=0.1, **settings)} if settings else {}
    trainer = compared(source, tmp_path / "run", **more)
    with torch.no_grad():
        for weights in (one for one in trainer.model.parameters() if one.requires_grad):
            weights.add_(0.1 * torch.randn_like(weights))
    trainer.save_model(str(tmp_path / "saved"))
    expected = logits(trainer.model)
    adapters = tmp_path / "saved" if settings else None
    whole = load_whole(ModelConfig(name=source), source if settings else str(tmp_path / "saved"), adapters)
    export_model(whole, tmp_path / "exported")
    found = [logits(AutoModelForCausalLM.from_pretrained(tmp_path / "exported"))]
    if settings:  # as at the end of a run with model.lora.merge
        merge(trainer.model).save_pretrained(tmp_path / "merged")
        found.append(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "merged")))
    for one in found:
        torch.testing.assert_close(one, expected, rtol=0, atol=1e-4)
    config = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert [value for key, value in config.items() if "drop" in key and isinstance(value, float)] == [
        value for key, value in make(name).config.to_dict().items() if "drop" in key and isinstance(value, float)
    ]


@pytest.mark.parametrize("name", ["GPT2", "BioGpt", "Qwen3"])
@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set")
@pytest.mark.parametrize("adapts", [False, True])
def test_a_head_in_float32(name: str, adapts: bool, tmp_path: Path) -> None:
    """Of weights and hidden states in bfloat16, with a tied head and adapters too."""
    model = make(name, tie_word_embeddings=True).bfloat16()
    make_tokenizer().save_pretrained(tmp_path / "model")
    model.save_pretrained(tmp_path / "model")
    more: dict[str, Any] = {"peft_config": LoraConfig(r=2, **settings_for(model, "adapters"))} if adapts else {}
    more["speed"] = SpeedConfig(shared_scoring=False)  # another attention would round otherwise
    settings: dict[str, Any] = {"cast_lm_head_to_fp32": True, "disable_dropout": True, "max_steps": 1, "beta": 0.1}
    settings["model_init_kwargs"] = {"dtype": "bfloat16"}
    trainer: Any = build_trainer(GRPOTrainer, str(tmp_path / "model"), tmp_path, prompts=2, more=more, **settings)
    ids = torch.arange(3, 40)[None]
    for one in (trainer.model, trainer.ref_model) if not adapts else (trainer.model,):
        base = one.get_base_model() if adapts else one
        with torch.no_grad():
            states = base.base_model(ids).last_hidden_state
            expected = (states.float() @ model.get_output_embeddings().weight.float().T).log_softmax(-1)
            expected = expected[:, :-1].gather(2, ids[:, 1:, None])[..., 0]
            scores = trainer._get_per_token_logps_and_entropies(one, ids, torch.ones_like(ids), 30)[0]
        assert base.get_input_embeddings()(ids).dtype == states.dtype == torch.bfloat16
        torch.testing.assert_close(scores, expected[:, -30:], rtol=0, atol=1e-4)
    trainer.train()
    assert trainer.state.global_step == 1


def test_a_model_that_is_not_scored_as_it_samples_is_refused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "attention_hidden_size": 32, "num_hidden_layers": 2, "context_length": 64}
    rwkv = RwkvForCausalLM(RwkvConfig(**sizes, vocab_size=len(make_tokenizer())))
    griffin = {**SIZES, "lru_width": 32, "vocab_size": len(make_tokenizer()), "logits_soft_cap": 2.0}
    capped = RecurrentGemmaForCausalLM(RecurrentGemmaConfig(**griffin, block_types=["recurrent", "attention"]))
    for model, says in (
        (rwkv, "reads the padding on the left of a row"),
        (capped, "changes its logits after the head"),
    ):
        with torch.no_grad():
            for weights in (one for one in model.parameters() if one.ndim > 1):
                weights.normal_(std=0.3)
        model.save_pretrained(tmp_path / "model")
        make_tokenizer().save_pretrained(tmp_path / "model")
        with pytest.raises(ModelError, match=says):
            compared(str(tmp_path / "model"), tmp_path / "run")


def test_layers_that_share_weights_are_not_merged_into_another_model() -> None:
    """Zamba2 uses the weights of a block in several places, which may have adapters of their own."""
    config = Zamba2Config(
        **SIZES, vocab_size=64, mamba_d_state=4, n_mamba_heads=8, mamba_headdim=8, mamba_ngroups=1, chunk_size=8,
        attention_head_dim=16, num_mem_blocks=1, layers_block_type=["hybrid", "hybrid"], adapter_rank=4,
    )  # fmt: skip
    model = get_peft_model(Zamba2ForCausalLM(config), LoraConfig(target_modules=["o_proj"], init_lora_weights=False))
    with pytest.raises(ModelError, match="share their weights in this architecture"):
        merge(model)

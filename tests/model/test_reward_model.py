"""Reward models: the numbers of the classifier itself and of TRL's trainer, and bad models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForSequenceClassification
from trl import GRPOTrainer

from covey.config.groups.rewards import RewardModelConfig, RewardsConfig
from covey.errors import ModelError
from covey.model.reward_model import RewardModel, reward_models
from covey.model.starter import STARTER_PATH
from trainers import build_trainer

PROMPTS = [[{"role": "user", "content": text}] for text in ("What is 1 + 1?", "2 + 2?", "a much longer question " * 9)]
COMPLETIONS = [[{"role": "assistant", "content": text}] for text in ("2", "five, six " * 12, "")]

ROLES = (("user", "1 + 1?"), ("assistant", "It is"), ("assistant", " 2."))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of random weights, with the starter's tokenizer."""
    found = tmp_path_factory.mktemp("reward") / "judge"
    tokenizer = AutoTokenizer.from_pretrained(STARTER_PATH)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = Qwen2Config(vocab_size=len(tokenizer), num_key_value_heads=1, num_labels=1, **sizes)
    Qwen2ForSequenceClassification(config).save_pretrained(found)
    tokenizer.save_pretrained(found)
    return found


def reference(folder: Path, texts: list[str]) -> list[float]:
    """One text at a time, without padding: the logit at the last token."""
    model = Qwen2ForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = []
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            hidden = model.model(ids).last_hidden_state[0, -1]
            found.append(float(model.score(hidden)[0]))
    return found


@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_the_logit_at_the_last_token(folder: Path, batch_size: int) -> None:
    judge = RewardModel(str(folder), RewardModelConfig(batch_size=batch_size))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    pairs = list(zip(PROMPTS, COMPLETIONS, strict=True))
    texts = [tokenizer.apply_chat_template([*p, *c], tokenize=False) for p, c in pairs]
    assert judge(PROMPTS, COMPLETIONS, answer=["2"] * 3) == pytest.approx(reference(folder, texts), abs=1e-5)
    assert judge(["a b", "c"], ["d", "e f"]) == pytest.approx(reference(folder, ["a bd", "ce f"]), abs=1e-5)
    assert judge.__name__ == "judge"


def test_a_prefill_and_its_continuation_are_one_message(folder: Path) -> None:
    judge, tokenizer = RewardModel(str(folder), RewardModelConfig()), AutoTokenizer.from_pretrained(folder)
    asked, begun, rest = ({"role": role, "content": text} for role, text in ROLES)
    whole = tokenizer.apply_chat_template([asked, {**begun, "content": "It is 2."}], tokenize=False)
    assert judge([[asked, begun]], [[rest]], answer=["2"]) == pytest.approx(reference(folder, [whole]), abs=1e-5)


def test_the_rewards_are_those_of_trl(folder: Path, tmp_path: Path) -> None:
    rows = [{"prompt": prompt} for prompt in PROMPTS]
    sizes = {"per_device_train_batch_size": 3, "num_generations": 3}
    trainer = build_trainer(GRPOTrainer, str(STARTER_PATH), tmp_path, prompts=rows, reward=str(folder), **sizes)
    theirs = trainer._calculate_rewards(rows, PROMPTS, COMPLETIONS, [[1]] * 3)
    assert RewardModel(str(folder))(PROMPTS, COMPLETIONS) == pytest.approx(theirs[:, 0].tolist(), abs=1e-5)
    assert trainer.reward_func_names == [RewardModel(str(folder)).__name__]


def test_bad_models_are_one_paragraph(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"rewards.funcs: model:.*is no reward model: score.weight are missing"):
        RewardModel(str(STARTER_PATH)).load()
    with pytest.raises(ModelError, match="cannot be loaded as a sequence classifier"):
        RewardModel(str(tmp_path)).load()
    broken = RewardModelConfig(chat_template="{{ messages[9].content }}")
    with pytest.raises(ModelError, match=r"rewards\.model\.chat_template"):
        RewardModel(str(folder), broken)(PROMPTS[:1], COMPLETIONS[:1])


def test_the_models_among_the_rewards() -> None:
    config = RewardsConfig(funcs=("model:a/b", "format", "model:c"), model=RewardModelConfig(name="d/e"))
    assert config.funcs == ("model:d/e", "model:a/b", "format", "model:c")
    assert config.model.name is None
    assert {name: model.__name__ for name, model in reward_models(config).items()} == {
        "model:d/e": "e",
        "model:a/b": "b",
        "model:c": "c",
    }


def test_an_own_template_and_dtype(folder: Path) -> None:
    own = RewardModelConfig(chat_template="{% for m in messages %}{{ m.content }}|{% endfor %}", dtype="bfloat16")
    judge = RewardModel(str(folder), own)
    judge.load()
    assert judge._loaded[0].dtype is torch.bfloat16
    found = judge([[{"role": "user", "content": "2 + 2"}]], [[{"role": "assistant", "content": "4"}]])
    assert found == pytest.approx(reference(folder, ["2 + 2|4|"]), abs=0.05)

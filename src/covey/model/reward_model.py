"""A reward model, which is a sequence classifier of one label, as a reward function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.config.groups.rewards import RewardModelConfig, RewardsConfig
from covey.errors import ModelError, one_line
from covey.hub import check_connection_once
from covey.model.prompts import apply_template
from covey.rewards.registry import MODEL_PREFIX
from covey.rewards.reward import is_prefill

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def reward_models(config: RewardsConfig) -> dict[str, RewardModel]:
    """The reward models among `rewards.funcs`, by their names there; not loaded yet."""
    names = [name for name in config.funcs if name.startswith(MODEL_PREFIX)]
    return {name: RewardModel(name.removeprefix(MODEL_PREFIX), config.model) for name in names}


def load_all(models: Iterable[RewardModel]) -> int:
    """Load models, and return how many; raises as `RewardModel.load`."""
    found = list(models)
    for model in found:
        model.load()
    return len(found)


class RewardModel:
    """Scores conversations by a sequence classifier: its logit at their last token, as TRL scores them.

    Args:
        name: a folder, or a hub id.
        settings: how it is loaded and run.
    """

    def __init__(self, name: str, settings: RewardModelConfig | None = None) -> None:
        self._settings = settings or RewardModelConfig()
        self._name = name
        self.__name__ = name.rstrip("/").rpartition("/")[2]
        """Of its metrics, as TRL names them."""

    def load(self) -> None:
        """Load the model and its tokenizer, unless they are loaded already. Raises a `ModelError` if they cannot be
        loaded, or it is no classifier of one label."""
        self._loaded  # noqa: B018  a property that is computed once

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        """One reward per completion.

        Args:
            prompts: texts or conversations, one per completion.
            completions: of the same kind.
            columns: ignored.

        Raises:
            ModelError: it cannot be loaded, or the chat template fails on a conversation.
        """
        import torch

        model, tokenizer = self._loaded
        texts = [self._render(prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)]
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))  # for little padding
        rewards = [0.0] * len(texts)
        for at in range(0, len(order), self._settings.batch_size):
            chosen = order[at : at + self._settings.batch_size]
            inputs = tokenizer(
                [texts[index] for index in chosen],
                return_tensors="pt",
                padding=True,
                padding_side="right",
                add_special_tokens=False,
            )
            with torch.inference_mode():
                logits_B = model(**inputs.to(model.device)).logits[:, 0]
            for index, reward in zip(chosen, logits_B.float().tolist(), strict=True):
                rewards[index] = reward
        return rewards

    def _render(self, prompt: Any, completion: Any) -> str:
        if isinstance(prompt, str):
            return f"{prompt}{completion}"
        try:
            messages = [*prompt, *completion]
            if is_prefill(prompt):  # and its continuation are one message
                text = f"{prompt[-1]['content']}{completion[0]['content']}"
                messages = [*prompt[:-1], {**completion[0], "content": text}, *completion[1:]]
            return str(apply_template(self._loaded[1], messages, answering=False, tokenize=False))
        except Exception as error:  # a template is a program, and may fail in any way
            raise ModelError(
                f"The chat template of the reward model {self._name} cannot render a conversation: {one_line(error)}. "
                "Give another with rewards.model.chat_template."
            ) from error

    @cached_property
    def _loaded(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        from covey.model.load import chat_template
        from covey.model.weight_files import quiet_weights

        settings = self._settings
        own = {"revision": settings.revision or "main", "trust_remote_code": settings.trust_remote_code}
        where = f"rewards.funcs: {MODEL_PREFIX}{self._name}"
        path = Path(self._name).expanduser()
        if not path.exists() and (path.is_absolute() or self._name.startswith((".", "~")) or self._name.count("/") > 1):
            raise ModelError(
                f"{where} is a path, and there is nothing at {path.absolute()}. Give the folder of a reward model (it "
                "holds config.json and *.safetensors), or its hub id (owner/name)."
            )
        source = str(path) if path.exists() else self._name
        check_connection_once()
        try:
            tokenizer = AutoTokenizer.from_pretrained(source, **own)
            with quiet_weights():
                model, info = AutoModelForSequenceClassification.from_pretrained(
                    source, num_labels=1, dtype=settings.dtype, output_loading_info=True, **own
                )
        except Exception as error:  # every kind of model and tokenizer raises its own
            raise ModelError(f"{where} cannot be loaded as a sequence classifier: {one_line(error)}") from error
        missing = sorted(info["missing_keys"])
        if missing:
            raise ModelError(
                f"{where} is no reward model: {', '.join(missing[:3])} are missing in its weights and would be random. "
                "A reward model is a sequence classifier of one label (AutoModelForSequenceClassification)."
            )
        if settings.chat_template is not None:
            tokenizer.chat_template = chat_template(settings.chat_template, "rewards.model.chat_template")
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        model.config.get_text_config().pad_token_id = tokenizer.pad_token_id  # by which it finds the last token
        device = settings.device
        if device is None:
            device = str(torch.accelerator.current_accelerator()) if torch.accelerator.is_available() else "cpu"
        return model.to(device).eval(), tokenizer

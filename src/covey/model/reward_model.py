"""A reward model, which is a sequence classifier of one label, as a reward function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.errors import ModelError, one_line

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PREFIX = "model:"
"""Of its name among `rewards.funcs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardModelSettings:
    """How reward models are loaded and run."""

    dtype: str = "float32"
    batch_size: int = 32
    """Conversations of one forward pass."""
    device: str | None = None
    """None takes that of training."""
    chat_template: str | None = None
    """Jinja text in place of the reward tokenizer's own template."""
    revision: str = "main"
    trust_remote_code: bool = False


class RewardModel:
    """Scores conversations by a sequence classifier: its logit at their last token, as TRL scores them.

    Args:
        name: a folder, or a hub id.
        settings: see there.

    Raises:
        ModelError: it cannot be loaded, is no classifier of one label, or its tokenizer has no chat template.
    """

    def __init__(self, name: str, settings: RewardModelSettings | None = None) -> None:
        self._settings = settings = settings or RewardModelSettings()
        self._name = name
        self.__name__ = name.rstrip("/").rpartition("/")[2]
        """Of its metrics, as TRL names them."""
        self._model, self._tokenizer = self._load(settings)

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        """One reward per completion.

        Args:
            prompts: texts or conversations, one per completion.
            completions: of the same kind.
            columns: ignored.

        Raises:
            ModelError: the chat template fails on a conversation.
        """
        import torch

        texts = [self._render(prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)]
        ids = self._tokenizer(texts, add_special_tokens=False)["input_ids"]
        longest = self._tokenizer.model_max_length
        order = sorted(range(len(ids)), key=lambda index: len(ids[index]))
        rewards = [0.0] * len(ids)
        for at in range(0, len(order), self._settings.batch_size):
            chosen = order[at : at + self._settings.batch_size]
            rows = [ids[index][-longest:] for index in chosen]
            with torch.inference_mode():
                logits_B = self._model(**self._padded(rows)).logits[:, 0]
            for index, reward in zip(chosen, logits_B.float().tolist(), strict=True):
                rewards[index] = reward
        return rewards

    def _padded(self, rows: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
        import torch

        width = max(map(len, rows))
        pad = self._tokenizer.pad_token_id
        found = {
            "input_ids": [[*row, *[pad] * (width - len(row))] for row in rows],
            "attention_mask": [[1] * len(row) + [0] * (width - len(row)) for row in rows],
        }
        return {name: torch.tensor(values, device=self._model.device) for name, values in found.items()}

    def _render(self, prompt: Any, completion: Any) -> str:
        if isinstance(prompt, str):
            return f"{prompt}{completion}"
        try:
            return str(self._tokenizer.apply_chat_template([*prompt, *completion], tokenize=False))
        except Exception as error:  # a template is a program, and may fail in any way
            raise ModelError(
                f"The chat template of the reward model {self._name} cannot render a conversation: {one_line(error)}. "
                "Give another with rewards.model.chat_template."
            ) from error

    def _load(self, settings: RewardModelSettings) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        from covey.model.loading import quiet_weights

        own = {"revision": settings.revision, "trust_remote_code": settings.trust_remote_code}
        where = f"rewards.funcs: {PREFIX}{self._name}"
        path = Path(self._name).expanduser()
        source = str(path) if path.exists() else self._name
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
            tokenizer.chat_template = settings.chat_template
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        model.config.get_text_config().pad_token_id = tokenizer.pad_token_id  # by which it finds the last token
        device = settings.device
        if device is None:
            device = str(torch.accelerator.current_accelerator()) if torch.accelerator.is_available() else "cpu"
        return model.to(device).eval(), tokenizer

"""A trainer whose completions and rewards are fixed beforehand, so that its gradient can be compared.

Completions depend only on the prompt and the index within the group: the batch is the same however it is split into
micro-batches or over processes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from covey import GRPOTrainer
from covey.model.reasoning_vocab import ReasoningVocabulary
from trainers import build_trainer

TOTAL = 24
MAX_LENGTH = 7


def scripted_completion(prompt_ids: list[int], place: int, eos: int) -> list[int]:
    """One to seven tokens; those of full length are truncated, without an end token."""
    generator = torch.Generator().manual_seed(sum(prompt_ids) * 31 + place)
    length = int(torch.randint(1, MAX_LENGTH + 1, (), generator=generator))
    ids: list[int] = torch.randint(5, 30, (length,), generator=generator).tolist()
    return ids if length == MAX_LENGTH else [*ids[:-1], eos]


def scripted_reward(completion_ids: list[int]) -> float | None:
    """0, 1/2, 1, or None for every seventh sum."""
    total = sum(completion_ids)
    return None if total % 7 == 0 else (total % 3) / 2


def with_thinking(ids: list[int], vocabulary: ReasoningVocabulary, tags: list[list[int]]) -> list[int]:
    """The completion with all but its last two tokens inside of thinking, as reasoning tokens where usable."""
    first = vocabulary.map.base_vocab_size
    copies = [first + token if first + token not in vocabulary.map.unusable else token for token in ids[:-2]]
    return [*tags[0], *copies, *tags[1], *ids[-2:]]


def reward(completion_ids: list[list[int]], **_: Any) -> list[float | None]:
    return [scripted_reward(ids) for ids in completion_ids]


def mode_of(ids: list[int]) -> str | None:
    """Right completions have one of two modes."""
    return str(sum(ids) % 2) if scripted_reward(ids) == 1 else None


def reward_with_modes(completion_ids: list[list[int]], log_extra: Any, **_: Any) -> list[float | None]:
    log_extra("mode", [mode_of(ids) for ids in completion_ids])
    return reward(completion_ids)


class ScriptedTrainer(GRPOTrainer):
    """Records the generation batch (prompt and completion ids, of this process) and the gradient of the first step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.generated: list[tuple[list[int], list[int]]] = []
        self.gradient: dict[str, torch.Tensor] = {}
        self.add_callback(_RecordGradient(self))

    def _generate_single_turn(
        self, prompt_ids: list[list[int]], images: Any, multimodal_fields: Any, num_generations: int, *_: Any
    ) -> tuple[list[list[int]], None]:
        first = self.accelerator.process_index * len(prompt_ids)
        completions = [
            scripted_completion(ids, (first + row) % num_generations, self.eos_token_ids[0])
            for row, ids in enumerate(prompt_ids)
        ]
        if (vocabulary := self._reasoning.vocabulary) is not None:
            tags = [self.processing_class.encode(tag) for tag in (vocabulary.map.open_tag, vocabulary.map.close_tag)]
            completions = [with_thinking(ids, vocabulary, tags) for ids in completions]
        self.generated = list(zip(prompt_ids, completions, strict=True))
        return completions, None


class _RecordGradient(TrainerCallback):
    def __init__(self, trainer: ScriptedTrainer) -> None:
        self.trainer = trainer

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        if not self.trainer.gradient:
            self.trainer.gradient = {
                name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None
            }


ONE_STEP: dict[str, Any] = {
    "per_device_train_batch_size": TOTAL,
    "num_generations": 8,
    "max_completion_length": MAX_LENGTH,
    "max_steps": 1,
    "max_grad_norm": 0.0,  # no clipping
    "learning_rate": 1e-3,
    "save_strategy": "no",
}
"""Over three groups of eight."""


def scripted_trainer(model: str, folder: Path, **settings: Any) -> Any:
    """A trainer of one step whose policy is no longer the reference; for the arguments, see `build_trainer`."""
    trainer = build_trainer(ScriptedTrainer, model, folder, prompts=6, reward=reward, **{**ONE_STEP, **settings})
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return trainer


def trained(model: str, folder: Path, **settings: Any) -> Any:
    """A trainer after its step, which knows the weights that it started from."""
    trainer = scripted_trainer(model, folder, **settings)
    trainer.started_from = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.train()
    return trainer


def keep(trainer: Any, file: Path, **more: Any) -> None:
    """Write what the main process of several knows after a step: the whole gradient, what was logged, and more."""
    gradient = {name: one.full_tensor() if isinstance(one, DTensor) else one for name, one in trainer.gradient.items()}
    if trainer.accelerator.is_main_process:
        row = {key: value for key, value in trainer.state.log_history[0].items() if isinstance(value, float)}
        torch.save({"gradient": gradient, "row": row, **more}, file)


def assert_same_gradient(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    """To 1e-5 of the whole gradient's norm, and to 1e-4 of each parameter's own."""
    assert found.keys() == expected.keys()
    size = math.sqrt(sum(float(g.square().sum()) for g in expected.values()))
    assert size > 1e-4
    difference = math.sqrt(sum(float((found[n] - expected[n]).square().sum()) for n in expected))
    assert difference <= 1e-5 * size
    for name, gradient in expected.items():
        assert float((found[name] - gradient).norm()) <= 1e-4 * float(gradient.norm()) + 1e-6 * size, name

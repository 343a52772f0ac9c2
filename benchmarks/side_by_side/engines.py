"""The two trainers on the same weights, prompts and rewards, with a clock on the parts of a step.

The mixin knows the names of TRL's private methods, because those are the parts to be timed; both trainers subclass
TRL's and so have them.
"""

from __future__ import annotations

import importlib
import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig
from trl import GRPOTrainer as TRLGRPOTrainer

from covey import GRPOTrainer as CoveyGRPOTrainer
from covey import SpeedConfig
from side_by_side.clock import Clock
from side_by_side.lengths import ForcedLengths, force
from side_by_side.settings import SIZES, Engine, Setting

GENERATION, SCORING, BACKWARD, REWARDS = PARTS = ("generation", "scoring", "backward", "rewards")


class Measured:
    """Put before a trainer class: times its parts and counts the tokens it samples and learns from."""

    clock: Clock
    setting: Setting
    forced: ForcedLengths
    accelerator: Any

    def measure(self, setting: Setting, synchronise: Callable[[], None]) -> None:
        """Prepare; called once, before training."""
        self.setting = setting
        self.clock = Clock(synchronise)
        self.batches = 0
        self.lengths: list[int] = []
        self.sampled: list[tuple[int, int]] = []
        self.trained: list[torch.Tensor] = []
        backward = self.accelerator.backward

        def timed_backward(*args: Any, **kwargs: Any) -> Any:
            with self.clock.part(BACKWARD):
                return backward(*args, **kwargs)

        self.accelerator.backward = timed_backward

    def counts(self) -> dict[str, Any]:
        """Tokens since the last call: `(prompt, completion)` lengths of each row sampled, and tokens in losses."""
        found = {"rows": self.sampled, "trained": sum(int(count) for count in self.trained)}
        self.sampled, self.trained = [], []
        return found

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> Any:
        self.lengths = self.setting.lengths(self.batches)
        self.batches += 1
        self.forced.plan(prompt_ids, self.lengths)
        with self.clock.part(GENERATION):
            completion_ids, *more = super()._generate_single_turn(prompt_ids, *args, **kwargs)  # type: ignore[misc]
        if not self.setting.vllm and sorted(map(len, completion_ids)) != sorted(self.lengths):
            raise RuntimeError("The completions did not get the lengths that were asked for, so nothing is comparable.")
        self.sampled += [(len(p), len(c)) for p, c in zip(prompt_ids, completion_ids, strict=True)]
        return completion_ids, *more

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        with self.clock.part(REWARDS):
            return super()._calculate_rewards(*args, **kwargs)  # type: ignore[misc]

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        with self.clock.part(SCORING):
            return super()._get_per_token_logps_and_entropies(*args, **kwargs)  # type: ignore[misc]

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        self.trained.append(inputs["completion_mask"].sum())
        with self.clock.part(SCORING):
            return super()._compute_loss(model, inputs)  # type: ignore[misc]


class MeasuredTRL(Measured, TRLGRPOTrainer):  # type: ignore[misc]
    """Stock TRL's trainer, measured."""


class MeasuredCovey(Measured, CoveyGRPOTrainer):
    """Covey's trainer, measured."""


def coin(completions: list[str], **_: Any) -> list[float]:
    """Right or wrong, by a checksum of the text."""
    return [float(zlib.crc32(text.encode()) & 1) for text in completions]


def brevity(completions: list[str], **_: Any) -> list[float]:
    """More for fewer words, so that the rewards of a group differ and every completion has a gradient."""
    return [1 / (1 + len(text.split())) for text in completions]


def build_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """One token per made-up word."""
    words = ["<pad>", "<eos>", "<unk>", *(f"w{i}" for i in range(vocabulary - 3))]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


def build_model(setting: Setting, eos: int, pad: int, attention: str | None = None) -> Qwen3ForCausalLM:
    """A Qwen3 of random weights, the same for the same seed.

    Args:
        setting: has its size.
        eos: token that ends a completion.
        pad: padding token.
        attention: of transformers; None takes its default.
    """
    size = SIZES[setting.size]
    config = Qwen3Config(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=size.head_dim,
        max_position_embeddings=setting.prompt_length + setting.completion_length,
        tie_word_embeddings=True,
        eos_token_id=eos,
        pad_token_id=pad,
        bos_token_id=None,
        attn_implementation=attention,
    )
    torch.manual_seed(setting.seed)
    return Qwen3ForCausalLM(config).to(torch.bfloat16 if setting.bf16 else torch.float32)


def make_prompts(setting: Setting, vocabulary: int) -> Dataset:
    """Different prompts of one length, enough for every step."""
    rng = random.Random(setting.seed)
    count = setting.prompts * (setting.warmup + setting.steps + 1)
    words = [" ".join(f"w{rng.randrange(vocabulary - 3)}" for _ in range(setting.prompt_length)) for _ in range(count)]
    return Dataset.from_dict({"prompt": words})


def arguments(setting: Setting, folder: Path, rollout: Mapping[str, Any]) -> GRPOConfig:
    """The trainer's settings: equal for both engines, but for how stock TRL samples."""
    # TRL's default micro-batch is 8 rows; the plain setting takes a whole group at a time.
    rows = min(8, setting.rows) if setting.trl_defaults else setting.micro_batch or setting.generations
    values: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": setting.rows // rows,
        "num_generations": setting.generations,
        "max_completion_length": setting.completion_length,
        "max_steps": setting.warmup + setting.steps + 1,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": not torch.cuda.is_available(),
        "seed": setting.seed,
    }
    if not setting.trl_defaults:
        values |= {"gradient_checkpointing": False, "bf16": setting.bf16, "beta": 0.0}
    if setting.vllm:
        values |= {"use_vllm": True, "vllm_mode": "colocate", "generation_kwargs": {"ignore_eos": True}}
    return GRPOConfig(**values, **rollout)


def build(engine: Engine, setting: Setting, folder: Path, rollout: Mapping[str, Any]) -> Measured:
    """The trainer of an engine, ready to train.

    Args:
        engine: whose.
        setting: what is measured.
        folder: where the trainer may write.
        rollout: TRL's settings for how to sample; empty for its default.
    """
    vocabulary = SIZES[setting.size].vocabulary
    tokenizer = build_tokenizer(vocabulary)
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    model = build_model(setting, eos, pad, setting.attention if engine == "trl" else None)
    more: dict[str, Any] = {}
    if engine == "covey":
        more["speed"] = SpeedConfig(**dict.fromkeys(setting.off, False))
    trainer = {"trl": MeasuredTRL, "covey": MeasuredCovey}[engine](
        model=model,
        reward_funcs=[coin, brevity],
        args=arguments(setting, folder, rollout),
        train_dataset=make_prompts(setting, vocabulary),
        processing_class=tokenizer,
        **more,
    )
    trainer.measure(setting, torch.cuda.synchronize if torch.cuda.is_available() else _nothing)
    trainer.forced = ForcedLengths(eos)
    if engine == "covey" and "shared_prefill" not in setting.off:
        force_own_rollout(trainer.forced)  # a model whose `generate` is replaced would be sampled by that
    else:
        force(model, trainer.forced, eos, lambda: trainer.lengths)
    return trainer


def force_own_rollout(forced: ForcedLengths) -> None:
    """Pass the processor to Covey's own sampling too, in this process."""
    module: Any = importlib.import_module("covey.rollout.local.engine")
    sample = module.sample

    def sample_forced(*args: Any, logits_processors: Sequence[Any] = (), **kwargs: Any) -> Any:
        return sample(*args, logits_processors=[*logits_processors, forced], **kwargs)

    module.sample = sample_forced


def _nothing() -> None:
    """A CPU needs no synchronisation."""

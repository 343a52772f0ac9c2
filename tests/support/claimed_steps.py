"""Whole GRPO steps on a claimed GPU: a script, since the claimed device must be there before torch is imported.

    python claimed_steps.py LIBRARY CASE …

Prints one line of JSON for each case, with what the test asserts.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import claimed_guard

claimed_guard.load(Path(sys.argv[1]))

import torch  # noqa: E402  after the guard

torch.set_num_threads(1)

from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback  # noqa: E402
from trl.kernels import chunked_logprob  # noqa: E402
from trl.trainer import utils as trl_utils  # noqa: E402

from claimed_tensors import COUNTS, Claiming, claimed_cuda, move, put  # noqa: E402
from covey import GRPOTrainer, SpeedConfig  # noqa: E402
from covey.model.starter import STARTER_PATH  # noqa: E402
from covey.objective import AdaptiveKL, MaxEnt  # noqa: E402
from covey.rollout import LocalEngine, SamplingSettings  # noqa: E402
from covey.training.device_check.accuracy import sampling_checks, scoring_checks  # noqa: E402
from covey.training.device_check.models import TINY  # noqa: E402
from covey.training.scoring import SharedScoring  # noqa: E402
from flash_kernels import flash_kernels  # noqa: E402
from trainers import build_trainer  # noqa: E402

PROMPTS = ("47 + 35", "812 + 77", "3 + 4", "55 + 6", "7 + 8", "901 + 22")


def _reward(completions: list[Any], **_: Any) -> list[float]:
    return [float(len(completion[0]["content"]) % 5) for completion in completions]


def _lora() -> Any:
    from peft import LoraConfig

    return LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM")


def _wide(folder: Path) -> Path:
    from covey.model.reasoning_vocab.expansion import expand

    expand(STARTER_PATH, folder / "wide", "full")
    return folder / "wide"


def cases(folder: Path) -> dict[str, dict[str, Any]]:
    """What each case passes to `train`."""
    controlled = {"beta": 0.04, "kl_controller": AdaptiveKL(target=0.07)}
    return {
        "plain": {},
        "no_checkpointing": {"gradient_checkpointing": False},
        "float32": {"bf16": False},
        "float32_cpu": {"claimed": False},
        "short": {**_UNENDING, "max_completion_length": 8},
        "long": {**_UNENDING, "max_completion_length": 40},
        "float16": {"bf16": False, "fp16": True},
        "overflow": {"bf16": False, "fp16": True, "speed": SpeedConfig(max_tokens=64), "first_scale": 2.0**120},
        "beta": controlled,
        "maxent": {"objective": MaxEnt(), "beta": 0.04, "loss_type": "grpo"},
        "lora": {"peft_config": _lora},
        "lora_beta": {"peft_config": _lora, "beta": 0.04},
        "bfloat16_weights": {"dtype": torch.bfloat16},
        "max_tokens": {"speed": SpeedConfig(max_tokens=64)},
        "resampling": {"resample_groups": 2},
        "iterations": {"num_iterations": 2, "max_steps": 4},
        "vocabulary": {"source": _wide},
        "vocabulary_short": {"source": _wide, **_UNENDING, "max_completion_length": 8},
        "vocabulary_long": {"source": _wide, **_UNENDING, "max_completion_length": 40},
        "lora_short": {"peft_config": _lora, **_UNENDING, "max_completion_length": 8},
        "lora_long": {"peft_config": _lora, **_UNENDING, "max_completion_length": 40},
        "vocabulary_generate": {"source": _wide, "speed": SpeedConfig(shared_prefill=False)},
        "not_shared": {"speed": SpeedConfig(shared_prefill=False, shared_scoring=False)},
    }


class _Watch(TrainerCallback):
    """Counts forwards, and notes which optimiser steps are skipped and how far the trained weights move."""

    def __init__(self, trainer: Any) -> None:
        self.forwards, self.skipped = 0, list[bool]()
        self._trainer = trainer
        self._start = [getattr(p, "numbers", p).detach().clone() for p in self._trained()]
        trainer.model.register_forward_pre_hook(self._count)

    def _trained(self) -> list[Any]:
        return [p for p in self._trainer.model.parameters() if p.requires_grad]

    def _count(self, *_: Any) -> None:
        self.forwards += 1

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.skipped.append(bool(self._trainer.accelerator.optimizer_step_was_skipped))

    def moved(self) -> float:
        pairs = zip(self._start, self._trained(), strict=True)
        return max(float((getattr(p, "numbers", p) - before).abs().max()) for before, p in pairs)


_UNENDING = {"temperature": 8.0, "max_steps": 1}
"""So hot that hardly a completion ends by itself."""
TURNS: dict[str, Any] = {
    "turn_short": {"length": 8},
    "turn_long": {"length": 40},
    "turn_cpu": {"length": 40, "claimed": False},
}
SUPPORTS: dict[str, Any] = {name.replace("turn", "support"): options for name, options in TURNS.items()}
_TRAINER = ("objective", "kl_controller", "speed", "resample_groups", "peft_config")


def train(
    folder: Path,
    *,
    claimed: bool = True,
    source: Any = STARTER_PATH,
    dtype: Any = torch.float32,
    first_scale: float | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Train for two steps and return what was logged and counted."""
    place = source(folder) if callable(source) else source
    own = {name: settings.pop(name) for name in _TRAINER if name in settings}
    if "peft_config" in own:
        own["peft_config"] = own["peft_config"]()
    values: dict[str, Any] = {
        "gradient_accumulation_steps": 2,
        "gradient_checkpointing": True,
        "learning_rate": 1e-6,
        "max_completion_length": 24,
        "max_steps": 2,
        "save_strategy": "no",
        "optim": "adamw_torch",
        "bf16": claimed,
        "use_cpu": not claimed,
        "dataloader_pin_memory": False,
        "model_init_kwargs": {"device_map": None, "dtype": "float32"},
    }
    torch.manual_seed(0)
    trainer = build_trainer(
        GRPOTrainer,
        AutoModelForCausalLM.from_pretrained(place, dtype=dtype),
        folder / "out",
        prompts=[{"prompt": [{"role": "user", "content": f"What is {one}?"}]} for one in PROMPTS],
        reward=_reward,
        more={"processing_class": AutoTokenizer.from_pretrained(place, padding_side="left"), **own},
        **{**values, **settings},
    )
    if first_scale is not None:
        trainer.accelerator.scaler._init_scale = first_scale
    watch = _Watch(trainer)
    trainer.add_callback(watch)
    COUNTS.clear()
    trainer.train()
    return {
        "forwards": watch.forwards,
        "skipped": watch.skipped,
        "moved": watch.moved(),
        "device": str(trainer.accelerator.device),
        "logs": trainer.state.log_history,
        "waits": dict(COUNTS.waits),
        "kernels": sum(COUNTS.kernels.values()),
        "casts": dict(COUNTS.casts),
    }


def device_checks() -> dict[str, Any]:
    """What `covey doctor --device` finds on the claimed GPU."""
    device = torch.device("cuda", 0)
    found = [*scoring_checks(TINY, 24, 16, device), *sampling_checks(TINY, 24, 16, device)]
    return {"device": "cuda", "checks": [one.as_json() for one in found], "kernels": sum(COUNTS.kernels.values())}


def two_devices() -> dict[str, Any]:
    """Packed scoring of a model whose layers lie on two GPUs: what it raises, and whether it is refused if known."""
    model = move(AutoModelForCausalLM.from_pretrained(STARTER_PATH))
    for layer in model.model.layers[2:]:
        move(layer, "cuda:1")
    ids = put(torch.arange(5, 17).repeat(4, 1))
    mask = put(torch.ones(4, 12, dtype=torch.long))
    raised = ""
    try:
        SharedScoring().score(model, ids, mask, 4, group_size=4)
    except RuntimeError as error:
        raised = str(error)
    model.hf_device_map = {f"model.layers.{layer}": layer // 2 for layer in range(4)}
    refused = SharedScoring().score(model, ids, mask, 4, group_size=4) is None
    return {"device": "cuda", "raised": raised, "refused": refused, "kernels": sum(COUNTS.kernels.values())}


def second_turn(length: int, *, claimed: bool = True) -> dict[str, Any]:
    """Sample a first turn, and count what a second one of some of its rows costs, in another order."""
    engine = LocalEngine(
        AutoModelForCausalLM.from_pretrained(STARTER_PATH, dtype=torch.float32).to("cuda" if claimed else "cpu"),
        AutoTokenizer.from_pretrained(STARTER_PATH),
    )
    prompts = [ids for ids in ([5, 6, 7, 8], list(range(20, 31)), [9, 10]) for _ in range(4)]
    torch.manual_seed(0)
    with engine.conversation():
        first = engine.generate(prompts, SamplingSettings(12, temperature=8.0))
        longer = [
            [*ids, *one.ids, *range(40, 42 + row)] for row, (ids, one) in enumerate(zip(prompts, first, strict=True))
        ]
        COUNTS.clear()
        settings = SamplingSettings(length, temperature=8.0, logprobs=True)
        found = engine.generate(longer[:1:-1], settings, max_lengths=[length - row % 3 for row in range(10)])
    return {
        "ids": [one.ids for one in found],
        "logps": [one.logps for one in found],
        "waits": dict(COUNTS.waits),
        "kernels": sum(COUNTS.kernels.values()),
    }


def supports(length: int, *, claimed: bool = True) -> dict[str, Any]:
    """Sample with supports and a seed for each row; counts what that costs."""
    engine = LocalEngine(
        AutoModelForCausalLM.from_pretrained(STARTER_PATH, dtype=torch.float32).to("cuda" if claimed else "cpu"),
        AutoTokenizer.from_pretrained(STARTER_PATH),
    )
    prompts = [ids for ids in ([5, 6, 7, 8], list(range(20, 31)), [9, 10]) for _ in range(4)]
    settings = SamplingSettings(length, 8.0, min_p=0.2, logprobs=True, support=True, support_top_k=20)
    COUNTS.clear()
    found = engine.generate(prompts, settings, seed=range(12), interrupted=lambda: False, on_ended=lambda *_: None)
    return {
        "ids": [one.ids for one in found],
        "logps": [one.logps for one in found],
        "supports": [one.support.tolist() for one in found if one.support is not None],
        "waits": dict(COUNTS.waits),
        "kernels": sum(COUNTS.kernels.values()),
    }


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="LOG %(name)s %(message)s")
    for module in (chunked_logprob, trl_utils):  # kernels that only a GPU compiles
        module._use_triton = lambda _: False
    chunked_logprob._MM_OUT_DTYPE = False
    with tempfile.TemporaryDirectory() as name, flash_kernels():
        known, alone = cases(Path(name)), {"device_check": device_checks, "two_devices": two_devices}
        for case in sys.argv[2:]:
            found: dict[str, Any] = {"case": case}
            try:
                with claimed_cuda(), Claiming():
                    if case in alone:
                        found |= alone[case]()
                    elif case.startswith("turn_"):
                        found |= second_turn(**TURNS[case])
                    elif case in SUPPORTS:
                        found |= supports(**SUPPORTS[case])
                    else:
                        found |= train(Path(name), **known[case])
            except Exception as error:
                found |= {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc(limit=-8)}
            print(json.dumps(found, default=str), flush=True)


if __name__ == "__main__":
    main()

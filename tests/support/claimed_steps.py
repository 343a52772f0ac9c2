"""Whole GRPO steps on a claimed GPU: a script, since the claimed device must be there before torch is imported.

    python claimed_steps.py LIBRARY CASE …

Prints one line of JSON for each case, with what the test asserts.
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import claimed_guard

claimed_guard.load(Path(sys.argv[1]))

import torch  # noqa: E402  after the guard

torch.set_num_threads(1)

from datasets import Dataset  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402
from trl.kernels import chunked_logprob  # noqa: E402
from trl.trainer import utils as trl_utils  # noqa: E402

from claimed_tensors import COUNTS, Claiming, claimed_cuda  # noqa: E402
from covey import GRPOConfig, GRPOTrainer, SpeedConfig  # noqa: E402
from covey.model.starter import STARTER_PATH  # noqa: E402
from covey.objective import AdaptiveKL, MaxEnt  # noqa: E402

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
        "float16": {"bf16": False, "fp16": True},
        "beta": controlled,
        "maxent": {"objective": MaxEnt(), "beta": 0.04, "loss_type": "grpo"},
        "lora": {"peft_config": _lora},
        "lora_beta": {"peft_config": _lora, "beta": 0.04},
        "bfloat16_weights": {"dtype": torch.bfloat16},
        "max_tokens": {"speed": SpeedConfig(max_tokens=64)},
        "resampling": {"resample_groups": 2},
        "iterations": {"num_iterations": 2, "max_steps": 4},
        "vocabulary": {"source": _wide},
        "vocabulary_generate": {"source": _wide, "speed": SpeedConfig(shared_prefill=False)},
        "not_shared": {"speed": SpeedConfig(shared_prefill=False, shared_scoring=False)},
    }


_TRAINER = ("objective", "kl_controller", "speed", "resample_groups", "peft_config")


def train(
    folder: Path, *, claimed: bool = True, source: Any = STARTER_PATH, dtype: Any = torch.float32, **settings: Any
) -> dict[str, Any]:
    """Train for two steps and return what was logged and counted."""
    place = source(folder) if callable(source) else source
    own = {name: settings.pop(name) for name in _TRAINER if name in settings}
    if "peft_config" in own:
        own["peft_config"] = own["peft_config"]()
    values: dict[str, Any] = {
        "output_dir": str(folder / "out"),
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "num_generations": 4,
        "max_completion_length": 24,
        "max_steps": 2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "optim": "adamw_torch",
        "bf16": claimed,
        "use_cpu": not claimed,
        "dataloader_pin_memory": False,
        "model_init_kwargs": {"device_map": None, "dtype": "float32"},
    }
    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"What is {one}?"}] for one in PROMPTS]})
    torch.manual_seed(0)
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(place, dtype=dtype),
        reward_funcs=[_reward],
        args=GRPOConfig(**{**values, **settings}),
        train_dataset=data,
        processing_class=AutoTokenizer.from_pretrained(place, padding_side="left"),
        **own,
    )
    COUNTS.clear()
    trainer.train()
    return {
        "device": str(trainer.accelerator.device),
        "logs": trainer.state.log_history,
        "waits": dict(COUNTS.waits),
        "kernels": sum(COUNTS.kernels.values()),
        "casts": dict(COUNTS.casts),
    }


def main() -> None:
    for module in (chunked_logprob, trl_utils):  # kernels that only a GPU compiles
        module._use_triton = lambda _: False
    chunked_logprob._MM_OUT_DTYPE = False
    with tempfile.TemporaryDirectory() as name:
        known = cases(Path(name))
        for case in sys.argv[2:]:
            found: dict[str, Any] = {"case": case}
            try:
                with claimed_cuda(), Claiming():
                    found |= train(Path(name), **known[case])
            except Exception as error:
                found |= {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc(limit=-8)}
            print(json.dumps(found, default=str), flush=True)


if __name__ == "__main__":
    main()

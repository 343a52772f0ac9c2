"""One of the processes started by `test_two_process_resume.py`: an adaptive β, an adapter, reused batches with
supports, and MaxEnt or an objective that has a state.

Arguments: the model's folder, the run's folder, the checkpoint to resume from (or -), the objective (maxent or own).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from peft import LoraConfig

from covey import GRPOTrainer
from covey.objective import AdaptiveKL, MaxEnt
from own_objective import RunningBaseline
from stopped_runs import STEPS, logged
from trainers import build_trainer

if __name__ == "__main__":
    model, folder, checkpoint, objective = sys.argv[1:]
    trainer = build_trainer(
        GRPOTrainer,
        model,
        Path(folder),
        prompts=6,
        more={
            "objective": MaxEnt() if objective == "maxent" else RunningBaseline(),
            "kl_controller": AdaptiveKL(target=1e-3, horizon=50),
            "sampler_gap": True,
            "peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
        },
        loss_type="grpo",
        beta=0.05,
        max_steps=STEPS,
        save_steps=1,
        num_iterations=2,
        steps_per_generation=2,
        gradient_accumulation_steps=1,
        lr_scheduler_type="constant",
        top_p=0.9,
        repetition_penalty=1.1,
    )
    trainer.train(resume_from_checkpoint=None if checkpoint == "-" else checkpoint)
    if trainer.accelerator.is_main_process:
        result = {"rows": logged(trainer), "completions": trainer.latest_completions, "beta": trainer.beta}
        (Path(folder) / "seen.json").write_text(json.dumps(result), encoding="utf-8")
    torch.distributed.destroy_process_group()

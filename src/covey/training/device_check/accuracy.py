"""Whether shared-prompt scoring and sampling give, on this device, what plain code gives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch

from covey.errors import one_line
from covey.model.device import has_bfloat16
from covey.rollout.engine import SamplingSettings
from covey.rollout.local.compatibility import unsupported_reason
from covey.rollout.local.sampling import sample
from covey.rollout.local.tokens import row_keys, row_uniform
from covey.runlog import names
from covey.runlog.directory import temporary_folder
from covey.training.device_check.models import Rows, Size, make_model, make_rows
from covey.training.scoring import SharedScoring
from covey.training.trl.trainer import with_fused_head

EXACT = 1e-4
"""Largest error in float32: of log-probs in nats, of gradients relative."""

ALLOWED = 1.5
"""How many times plain code's own error in 16 bits, against float32, that of shared-prompt code may be."""


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison."""

    name: str
    ok: bool
    error: float | None
    """Of what is checked, against the reference; None where it could not be computed."""
    allowed: float
    what: str
    """What is compared, with the unit."""
    switch: str
    """The setting that avoids what is checked, if it fails."""
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def scoring_checks(size: Size, prompt: int, completion: int, device: torch.device) -> Iterator[Check]:
    """Log-probs and gradients of shared-prompt scoring against a plain forward pass over padded rows."""
    for group in (1, 8, 16):
        rows = make_rows(size, group, prompt, completion, device)
        for checkpointing in (False, True):
            model = with_fused_head(make_model(size).to(device)).train()
            if checkpointing:
                model.gradient_checkpointing_enable({"use_reentrant": False})
            name = f"scoring, groups of {group}{', checkpointing' if checkpointing else ''}"
            exact = _plain(model, rows, nullcontext())
            shared = _shared(model, rows, nullcontext())
            yield from _compared(f"{name}, float32", shared, exact, (EXACT, EXACT))
            if _half(device):
                rounding = _errors(_plain(model, rows, _bfloat16()), exact)
                allowed = tuple(ALLOWED * error + EXACT for error in rounding)
                yield from _compared(f"{name}, bfloat16", _shared(model, rows, _bfloat16()), exact, allowed)


def _bfloat16() -> AbstractContextManager[None]:
    return torch.autocast("cuda", dtype=torch.bfloat16)


Scores = tuple[torch.Tensor, dict[str, torch.Tensor]]
"""Log-probs of completion tokens `[B, T]`, zero at padding, and the gradients of a loss on them."""


def _plain(model: Any, rows: Rows, precision: AbstractContextManager[None]) -> Scores:
    positions_BS = (rows.mask.cumsum(1) - 1).clamp(min=0)
    with precision:
        output = model(input_ids=rows.ids, attention_mask=rows.mask, position_ids=positions_BS, use_cache=False)
    logits_BTV = output.logits[:, -rows.length - 1 : -1].float()
    targets_BT1 = rows.ids[:, -rows.length :, None]
    logps_BT = logits_BTV.log_softmax(-1).gather(2, targets_BT1).squeeze(2)
    return _with_gradients(model, logps_BT * rows.mask[:, -rows.length :])


def _shared(model: Any, rows: Rows, precision: AbstractContextManager[None]) -> Scores | None:
    with precision:
        scores = SharedScoring().score(model, rows.ids, rows.mask, rows.length)
    return None if scores is None else _with_gradients(model, scores[0].float())


def _with_gradients(model: Any, logps_BT: torch.Tensor) -> Scores:
    model.zero_grad()
    weights = torch.linspace(-1, 1, logps_BT.numel(), device=logps_BT.device).view_as(logps_BT)
    loss: Any = (logps_BT * weights).sum()
    loss.backward()
    return logps_BT.detach(), {name: p.grad.float() for name, p in model.named_parameters() if p.grad is not None}


def _errors(found: Scores, expected: Scores) -> tuple[float, float]:
    """The root of the mean squared difference of log-probs, and of all gradients together the relative difference."""
    norm = sum(float(g.square().sum()) for g in expected[1].values()) ** 0.5
    apart = sum(float((found[1][name] - g).square().sum()) for name, g in expected[1].items()) ** 0.5
    return float((found[0] - expected[0]).square().mean().sqrt()), apart / norm


def _compared(name: str, found: Scores | None, expected: Scores, allowed: tuple[float, ...]) -> Iterator[Check]:
    switch = "speed.shared_scoring=false"
    if found is None:
        yield Check(name, False, None, allowed[0], "shared-prompt scoring does not apply", switch)
        return
    errors = _errors(found, expected)
    parts = ("log-probs, root mean square difference in nats", "gradients, relative difference")
    for what, error, most in zip(parts, errors, allowed, strict=True):
        yield Check(f"{name}: {what.partition(',')[0]}", error <= most, error, most, what, switch)


def sampling_checks(size: Size, prompt: int, completion: int, device: torch.device) -> Iterator[Check]:
    """Greedy sampling against transformers' `generate`, and the log-probs of sampled tokens against the scorer."""
    model = with_fused_head(make_model(size).to(device)).eval()
    switch = "speed.shared_prefill=false"
    rows = make_rows(size, 1, prompt, 1, device)
    prompts = [ids[mask.bool()].tolist() for ids, mask in zip(rows.ids[:, :-1], rows.mask[:, :-1], strict=True)]
    prompts = [ids for ids in prompts for _ in range(4)]
    reason = unsupported_reason(model)
    if reason is not None:
        yield Check("sampling, greedy", False, None, 0.0, reason, switch)
        return
    greedy = SamplingSettings(completion, temperature=0.0)
    own = [found.ids for found in sample(model, prompts, greedy, eos_token_ids=(1,))]
    theirs = [_greedily(model, ids, completion) for ids in prompts[::4]]
    same = [ids == theirs[place // 4] for place, ids in enumerate(own)]
    share = 1 - sum(same) / len(same)
    yield Check("sampling, greedy, float32", share == 0, share, 0.0, "completions unlike generate's, share", switch)
    keys_B2, places_B = row_keys(range(10_000)), torch.arange(10_000)
    on_host, there = row_uniform(keys_B2, places_B), row_uniform(keys_B2.to(device), places_B.to(device)).cpu()
    share = float((on_host != there).double().mean())
    what = "random numbers unlike the CPU's, share"
    yield Check("sampling, seeds of rows", share == 0, share, 0.0, what, "training.staleness=0")
    for kind, precision in (("float32", nullcontext), *([("bfloat16", _bfloat16)] if _half(device) else [])):
        with precision():
            found = sample(model, prompts, SamplingSettings(completion, logprobs=True), eos_token_ids=(1,))
            gap = _gap(model, prompts, found)
        allowed = EXACT if kind == "float32" else 0.05
        what = "log-probs of sampler and scorer, mean difference in nats"
        yield Check(f"sampling, {kind}: gap to the scorer", gap <= allowed, gap, allowed, what, switch)


def engine_checks(size: Size, device: torch.device) -> Iterator[Check]:
    """A training step with vLLM in this process, whose weights are compared after the sync; with and without sleep.

    Args:
        device: an NVIDIA GPU.
    """
    from datasets import Dataset
    from transformers import AutoTokenizer

    from covey.model.starter import STARTER_PATH
    from covey.training.trl.trainer import GRPOConfig, GRPOTrainer

    tokenizer = AutoTokenizer.from_pretrained(STARTER_PATH, padding_side="left")
    what = "the step's error: log-probs of vLLM and of the trainer, mean difference in nats"
    for sleep in (False, True):
        error: float | None = None
        note = ""
        with temporary_folder("covey-device-") as folder:
            make_model(size, longest=256).save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            try:
                trainer = GRPOTrainer(
                    model=str(folder),
                    reward_funcs=lambda completions, **_: [float(len(text) % 7) for text in completions],
                    args=GRPOConfig(
                        output_dir=f"{folder}/out",
                        **{"per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 16},
                        **{"max_steps": 2, "logging_steps": 1, "save_strategy": "no", "report_to": "none"},
                        **{"use_vllm": True, "vllm_mode": "colocate", "vllm_enable_sleep_mode": sleep},
                        **{"vllm_gpu_memory_utilization": 0.3, "disable_tqdm": True, "bf16": has_bfloat16()},
                    ),
                    train_dataset=Dataset.from_dict({"prompt": ["1 + 2", "3 + 4"] * 8}),
                    processing_class=tokenizer,
                    run_directory=False,
                )
                trainer.train()
                error = max(log[names.ENGINE_GAP.removeprefix("train/")] for log in trainer.state.log_history[:-1])
            except Exception as problem:  # whatever vLLM and CUDA raise is the result
                note = one_line(problem)
        name = f"vLLM, sleep mode {'on' if sleep else 'off'}"
        yield Check(name, error is not None, error, 0.5, what, "training.use_vllm=false", note)


def _half(device: torch.device) -> bool:
    return device.type == "cuda" and has_bfloat16()


def _greedily(model: Any, prompt: list[int], completion: int) -> list[int]:
    ids = torch.tensor([prompt], device=model.device)
    found = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=completion, do_sample=False)
    tokens: list[int] = found[0, len(prompt) :].tolist()
    return tokens[: tokens.index(1) + 1] if 1 in tokens else tokens


def _gap(model: Any, prompts: list[list[int]], completions: Any) -> float:
    """Mean absolute difference between the sampler's log-probs and those of a forward pass."""
    differences = []
    with torch.no_grad():
        for prompt, one in zip(prompts, completions, strict=True):
            ids = torch.tensor([[*prompt, *one.ids]], device=model.device)
            logps = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
            scored = logps.gather(1, ids[0, len(prompt) :, None])[:, 0]
            differences.append((scored - torch.tensor(one.logps, device=model.device)).abs())
    return float(torch.cat(differences).mean())

"""GRPO from scratch: the whole algorithm on one page of plain PyTorch.

It trains the starter model on addition, on a CPU, in a few minutes:

    python examples/grpo_from_scratch.py --steps 60

No TRL and none of Covey's fast paths: every prompt is computed once per completion, and so is padding.
`tests/repository/test_teaching_script.py` compares its gradient with that of `covey.GRPOTrainer`.
"""

from __future__ import annotations

import argparse
import random
import re

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

# --- the algorithm ----------------------------------------------------------------------------------------------------


def advantages(rewards_PG: torch.Tensor) -> torch.Tensor:
    """Rewards normalised by the mean and standard deviation of their group."""
    mean = rewards_PG.mean(dim=1, keepdim=True)
    deviation = rewards_PG.std(dim=1, keepdim=True)
    return (rewards_PG - mean) / (deviation + 1e-4)


def log_probabilities(
    model: torch.nn.Module, prompts: list[list[int]], completions: list[list[int]], temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """The log-prob of every completion token and the completion mask, both `[B, L + T - 1]`."""
    width = max(len(prompt) + len(completion) for prompt, completion in zip(prompts, completions, strict=True))
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    attention, mask = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        length = len(prompt) + len(completion)
        ids[row, :length] = torch.tensor(prompt + completion)
        attention[row, :length] = 1
        mask[row, len(prompt) : length] = 1
    logits = model(input_ids=ids, attention_mask=attention).logits[:, :-1] / temperature  # position t predicts t + 1
    logps = torch.log_softmax(logits.float(), dim=-1).gather(2, ids[:, 1:, None]).squeeze(2)
    return logps, mask[:, 1:].float()


def loss(
    model: torch.nn.Module,
    prompts: list[list[int]],
    completions: list[list[int]],
    advantages_B: torch.Tensor,
    old_logps: torch.Tensor | None = None,
    clip: float = 0.2,
    temperature: float = 1.0,
) -> torch.Tensor:
    """The clipped surrogate: the mean over the tokens of a completion, then over completions.

    On policy the ratio is 1: the value is about zero, and the gradient is that of `-advantage * log-prob`. `old_logps`
    matter when one batch of completions is used for several steps.
    """
    logps, mask = log_probabilities(model, prompts, completions, temperature)
    ratio = torch.exp(logps - (logps.detach() if old_logps is None else old_logps))
    gain = torch.minimum(ratio * advantages_B[:, None], ratio.clamp(1 - clip, 1 + clip) * advantages_B[:, None])
    return -((gain * mask).sum(dim=1) / mask.sum(dim=1)).mean()


@torch.no_grad()
def sample(model: torch.nn.Module, prompts: list[list[int]], ends: int, pad: int, longest: int) -> list[list[int]]:
    """One completion per prompt, sampled from the model's own distribution, EOS included."""
    width = max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
    attention = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    written = model.generate(
        input_ids=ids,
        attention_mask=attention,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        max_new_tokens=longest,
        eos_token_id=ends,
        pad_token_id=pad,
    )[:, width:].tolist()
    return [row[: row.index(ends) + 1] if ends in row else row for row in written]


# --- a task, and a training loop --------------------------------------------------------------------------------------


def problem(random_: random.Random) -> tuple[str, int]:
    a, b = (random_.randrange(10, 1000) for _ in "ab")
    return f"What is {a} + {b}?", a + b


def reward(text: str, answer: int) -> float:
    """1 for the right number in the answer tags, else 0."""
    found = re.search(r"<answer>\s*(-?\d+)\s*</answer>", text)
    return float(found is not None and int(found[1]) == answer)


def train(steps: int, prompts_per_step: int, group: int, learning_rate: float, seed: int) -> list[float]:
    """Train, and return the mean reward of every step."""
    from covey.model.starter import STARTER_PATH

    torch.manual_seed(seed)
    random_ = random.Random(seed)
    tokenizer = AutoTokenizer.from_pretrained(STARTER_PATH)
    model = AutoModelForCausalLM.from_pretrained(STARTER_PATH, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
    rewards = []
    for step in range(1, steps + 1):
        drawn = [problem(random_) for _ in range(prompts_per_step)]
        asked = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=True
            )["input_ids"]
            for question, _ in drawn
        ]
        prompts = [ids for ids in asked for _ in range(group)]
        answers = [answer for _, answer in drawn for _ in range(group)]
        completions = sample(model, prompts, tokenizer.eos_token_id, tokenizer.pad_token_id, longest=64)
        texts = tokenizer.batch_decode(completions, skip_special_tokens=True)
        rewards_B = torch.tensor([reward(text, answer) for text, answer in zip(texts, answers, strict=True)])
        advantages_B = advantages(rewards_B.view(prompts_per_step, group)).view(-1)
        loss(model, prompts, completions, advantages_B).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        rewards.append(rewards_B.mean().item())
        print(f"step {step}/{steps}  reward {rewards[-1]:.2f}", flush=True)
    return rewards


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="GRPO from scratch, on addition.")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--prompts", type=int, default=16, help="prompts per step")
    parser.add_argument("--group", type=int, default=8, help="completions per prompt")
    parser.add_argument("--learning-rate", type=float, default=2.5e-4)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    train(given.steps, given.prompts, given.group, given.learning_rate, given.seed)

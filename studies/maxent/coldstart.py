"""The study's starting point: a small model trained on right answers to countdown problems, many per problem.

    python studies/maxent/coldstart.py [--output out/maxent_study/start]

A Qwen3 of 0.4 million parameters is trained from random weights with the ordinary next-token loss, on the completion
only, over freshly drawn training problems. Every answer comes from how its problem was drawn, so that a repeated
problem has another answer: the model learns a spread over them. Training stops while it is right once in seven times.
"""

from __future__ import annotations

import argparse
import ast
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from task import DIFFICULTY
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from covey.data.sources.countdown import CountdownProblem, problems
from covey.model.starter.coldstart import save_starter
from covey.model.starter.tokenizer import TAGS, build_tokenizer

STEPS = 2500
BATCH = 48
LEARNING_RATE = 3e-3
WARMUP = 100
SEED = 0
OUTPUT = Path("out/maxent_study/start")

_SIGNS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def completion(problem: CountdownProblem) -> str:
    """One operation a line, then the expression: `<think>\n3*8=24\n…\n</think>\n<answer>3*8-5+1</answer>`."""
    lines: list[str] = []
    _walk(ast.parse(problem.solution, mode="eval").body, lines)
    expression = problem.solution.replace(" ", "")
    return "<think>\n" + "\n".join(lines) + f"\n</think>\n<answer>{expression}</answer>"


def _walk(node: ast.expr, lines: list[str]) -> int:
    """The value of a solution's part; its operations join `lines`, inner ones first."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if not isinstance(node, ast.BinOp):
        raise ValueError(f"no solution of a countdown problem: {ast.unparse(node)}")
    left, right = _walk(node.left, lines), _walk(node.right, lines)
    sign = _SIGNS[type(node.op)]
    value = {"+": left + right, "-": left - right, "*": left * right}.get(sign)
    value = left // right if value is None else value
    lines.append(f"{left}{sign}{right}={value}")
    return value


def make_tokenizer() -> PreTrainedTokenizerFast:
    """The starter's kind of tokenizer, with one token for the sentences that end every problem (short prompts)."""
    stream = problems(DIFFICULTY, "train", SEED)
    first = next(stream)
    tail = first.text[first.text.index(". Use") :]
    texts = []
    for problem, _ in zip(stream, range(2000), strict=False):
        text = completion(problem)
        for tag in TAGS:
            text = text.replace(tag, " ")
        texts += [f"user\n{problem.text.removesuffix(tail)}", f"assistant\n{text}"]
    tokenizer = build_tokenizer(texts)
    tokenizer.add_tokens([AddedToken(tail, normalized=False)])
    return tokenizer


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=320,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    return Qwen3ForCausalLM(config)


def batches(tokenizer: PreTrainedTokenizerFast) -> Iterator[dict[str, torch.Tensor]]:
    """Right-padded batches with the loss on the completion and its EOS only."""
    stream = problems(DIFFICULTY, "train", SEED)
    while True:
        rows, labels = [], []
        for _ in range(BATCH):
            problem = next(stream)
            messages = [{"role": "user", "content": problem.text}]
            encoded: Any = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
            prompt = encoded["input_ids"]
            answer = [*tokenizer(completion(problem))["input_ids"], tokenizer.eos_token_id]
            rows.append([*prompt, *answer])
            labels.append([-100] * len(prompt) + answer)
        width = max(map(len, rows))
        yield {
            "input_ids": torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in rows]),
            "attention_mask": torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows]),
            "labels": torch.tensor([row + [-100] * (width - len(row)) for row in labels]),
        }


def train(steps: int = STEPS) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """The trained model and its tokenizer; the same ones every time on one machine."""
    random.seed(SEED)
    torch.manual_seed(SEED)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    model.generation_config.update(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1.0, (step + 1) / WARMUP) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps))),
    )
    model.train()
    for step, batch in zip(range(1, steps + 1), batches(tokenizer), strict=False):
        loss = model(**batch, use_cache=False).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 250 == 0:
            print(f"step {step} of {steps}: loss {loss.item():.4f}", flush=True)
    return model.eval(), tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    model, tokenizer = train(arguments.steps)
    save_starter(model, tokenizer, "The starting point of studies/maxent; see the README there.\n", arguments.output)
    print(f"Written: {arguments.output} ({sum(p.numel() for p in model.parameters()):,} parameters)")


if __name__ == "__main__":
    main()

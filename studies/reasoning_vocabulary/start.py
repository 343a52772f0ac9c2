"""The effect of an initialisation on the text before any training, compared with the starter's own vocabulary.

    python studies/reasoning_vocabulary/start.py [--problems 128] [--size full] [--temperature 1.0]

Texts are sampled from the starter. At every position inside of thinking, the probabilities of a token and of its copies
are added up and compared with the starter's probability of the token.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.model.reasoning_vocab.expansion import expand
from covey.model.starter import STARTER_PATH
from covey.rollout import SamplingSettings, sample

LENGTH = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--problems", type=int, default=128)
    parser.add_argument("--size", default="full")
    parser.add_argument("--temperature", type=float, default=1.0)
    arguments = parser.parse_args()
    size = arguments.size if arguments.size == "full" else int(arguments.size)
    print("| start | thinking tokens | KL of the text, nats per token | P(</think>), relative to the starter's |")
    print("|---|---|---|---|")
    for start in ("copy", "same_text"):
        with tempfile.TemporaryDirectory() as folder:
            vocabulary = expand(STARTER_PATH, Path(folder) / "m", size, start=start)
            figures = measure(Path(folder) / "m", vocabulary, arguments.problems, arguments.temperature)
        print(f"| `{start}` | {figures[0]} | {figures[1]:.2g} | {figures[2]:.3f} |")


@torch.no_grad()
def measure(folder: Path, vocabulary: Any, problems: int, temperature: float) -> tuple[int, float, float]:
    """Thinking tokens, mean KL from the starter's text to the expanded model's, and the ratio of the closing tag."""
    base: Any = AutoModelForCausalLM.from_pretrained(STARTER_PATH).eval()
    expanded: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    (close,) = tokenizer("</think>")["input_ids"]
    bases = torch.tensor([*range(vocabulary.map.base_vocab_size), *vocabulary.map.base_ids])
    bias = vocabulary.bias_table(temperature)[1]
    generator = torch.Generator().manual_seed(0)
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": f"What is {a} + {b}?"}], add_generation_prompt=True, return_dict=False
        )
        for a, b in torch.randint(10, 1000, (problems, 2), generator=generator).tolist()
    ]
    sampling = SamplingSettings(LENGTH, temperature=temperature)
    ends = {"eos_token_ids": [tokenizer.eos_token_id], "pad_token_id": tokenizer.pad_token_id}
    texts = sample(base, prompts, sampling, **ends, generator=generator)
    divergences, closing = [], []
    for prompt, text in zip(prompts, texts, strict=True):
        ids = torch.tensor([[*prompt, *text.ids]])
        inside = vocabulary.inside(vocabulary.states(ids))[0]
        own = (base(ids).logits[0, inside].double() / temperature).log_softmax(-1)
        logps = ((expanded(ids).logits[0, inside].double() + bias) / temperature).softmax(-1)
        merged = torch.zeros_like(own).index_add_(1, bases, logps).log()
        divergences += (own.exp() * (own - merged)).sum(-1).tolist()
        closing += (merged[:, close] - own[:, close]).exp().tolist()
    return len(divergences), sum(divergences) / len(divergences), sum(closing) / len(closing)


if __name__ == "__main__":
    main()

"""What the reasoning vocabulary's mask costs: a step's sampling and scoring with and without it, on the same weights.

    python benchmarks/reasoning_mask.py [--base 150000] [--hidden 512] [--layers 8] [--rounds 5] [--write FILE]

A Qwen3 of random weights with one copy of every ordinary token. Half of the prompts open thinking. Both ways sample as
many tokens and score the same ones; rounds alternate. "Without" is the same expanded model with every row allowed in
sampling and scoring. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from trl.trainer.utils import add_fused_lm_head

from covey.model.reasoning_vocab import ReasoningVocabulary, TokenMap
from covey.model.reasoning_vocab.tokenizer import TokenBytes
from covey.rollout import SamplingSettings, sample
from covey.rollout.thinking import ThinkingMask
from covey.training.scoring import ScoredRows, SharedScoring
from covey.training.trl.restricted_head import RestrictedHead

OPEN, CLOSE, END = 3, 4, 2


def main() -> None:
    arguments = parse()
    torch.manual_seed(0)
    vocabulary = make_vocabulary(arguments.base, arguments.start)
    model = make_model(arguments, vocabulary)
    prompts = [[5 + place % 7] * 31 + [OPEN if place % 2 else 6] for place in range(arguments.prompts)]
    prompts = [prompt for prompt in prompts for _ in range(arguments.group)]
    rows = score_rows(prompts, arguments.tokens, vocabulary)

    def draw(masked: bool) -> None:
        masks = [ThinkingMask(vocabulary)] if masked else []
        sample(model, prompts, SamplingSettings(arguments.tokens), logits_processors=masks)

    def score(masked: bool) -> None:
        head = RestrictedHead(vocabulary if masked else None)
        restricted = partial(head.over, ScoredRows(*rows))
        scores = SharedScoring().score(model, *rows, restricted=restricted)
        assert scores is not None
        scores[0].sum().backward()
        model.zero_grad()

    seconds = {name: alternate(work, arguments.rounds) for name, work in (("sampling", draw), ("scoring", score))}
    text = page(arguments, seconds)
    print(text)
    if arguments.write:
        arguments.write.write_text(text, encoding="utf-8")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--base", type=int, default=150_000, help="ordinary tokens; as many copies come on top")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--group", type=int, default=8, help="completions of each prompt")
    parser.add_argument("--tokens", type=int, default=48, help="of each completion")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--start", choices=("copy", "same_text"), default="copy")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table there too")
    return parser.parse_args()


def make_vocabulary(base: int, start: str) -> ReasoningVocabulary:
    """Ordinary tokens of a few letters each, and one copy of each."""
    texts = [b"<s>", b"</s>", b"<end>", b"<think>", b"</think>", *(b" w%x" % place for place in range(base - 5))]
    token_map = TokenMap(base, tuple(range(base)), frozenset(range(base, base + 5)), start, "<think>", "</think>")
    return ReasoningVocabulary(token_map, TokenBytes(tuple(texts), frozenset({0, 1, END})))


def make_model(arguments: argparse.Namespace, vocabulary: ReasoningVocabulary) -> Any:
    config = Qwen3Config(
        vocab_size=vocabulary.map.vocab_size,
        hidden_size=arguments.hidden,
        intermediate_size=3 * arguments.hidden,
        num_hidden_layers=arguments.layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=arguments.hidden // 8,
        tie_word_embeddings=True,
        max_position_embeddings=1024,
        eos_token_id=END,
        pad_token_id=0,
    )
    model = Qwen3ForCausalLM(config)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    return model


def score_rows(prompts: list[list[int]], tokens: int, vocabulary: ReasoningVocabulary) -> tuple[Any, Any, int]:
    """Prompts and completions of random tokens: reasoning tokens where the prompt has opened thinking."""
    generator = torch.Generator().manual_seed(1)
    base = vocabulary.map.base_vocab_size
    written = torch.randint(5, base, (len(prompts), tokens), generator=generator)
    thinks = torch.tensor([prompt[-1] == OPEN for prompt in prompts])
    copies = (torch.rand(written.shape, generator=generator) < 0.5) & thinks[:, None]
    ids = torch.cat([torch.tensor(prompts), written + base * copies], dim=1)
    return ids, torch.ones_like(ids), tokens


def alternate(work: Callable[[bool], None], rounds: int) -> dict[bool, list[float]]:
    """Seconds of each round, with the mask and without; the first of each is left out."""
    found: dict[bool, list[float]] = {True: [], False: []}
    for place in range(rounds + 1):
        for masked in (False, True) if place % 2 else (True, False):
            began = time.perf_counter()
            work(masked)
            if place:
                found[masked].append(time.perf_counter() - began)
    return found


def page(arguments: argparse.Namespace, seconds: dict[str, dict[bool, list[float]]]) -> str:
    """The table as Markdown."""
    median = {
        name: {masked: statistics.median(times) for masked, times in found.items()} for name, found in seconds.items()
    }
    step = sum(found[False] for found in median.values())
    lines = [
        "# What the reasoning vocabulary's mask costs",
        "",
        "Made by `python benchmarks/reasoning_mask.py`. A Qwen3 of random weights, "
        f"{arguments.base:,} ordinary tokens and as many copies, hidden size {arguments.hidden}, {arguments.layers} "
        f"layers; {arguments.prompts} prompts × {arguments.group} completions × {arguments.tokens} tokens; "
        f"start `{arguments.start}`; {torch.get_num_threads()} threads of {platform.machine()}; medians of "
        f"{arguments.rounds} alternating rounds. A step is sampling plus scoring with its backward pass.",
        "",
        "| part | without | with | added, share of a step |",
        "|---|---|---|---|",
    ]
    for name, found in median.items():
        added = (found[True] - found[False]) / step
        lines.append(f"| {name} | {found[False]:.2f} s | {found[True]:.2f} s | {100 * added:+.1f}% |")
    lines += [
        "",
        "Where scoring is faster with the mask: tokens outside of thinking, half of them here, are scored among the "
        "ordinary rows of the head alone.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()

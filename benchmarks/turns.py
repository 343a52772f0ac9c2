"""Seconds for the turns of a batch of conversations: with kept keys and values, read again, by transformers' generate.

    python benchmarks/turns.py [--times 3] [--width 256] [--layers 6] [--prompts 4] [--group 8]

Random weights and tokens, no end-of-sequence token: the lengths of turns and of tool results are drawn by a seed for
each repetition, the same for all three. The three alternate.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from covey.model.starter import STARTER_PATH
from covey.rollout import LocalEngine, SamplingSettings, conversation

TURNS, PROMPT, LONGEST, RESULT = 4, 200, 40, 60
"""Turns of an episode, tokens of its prompt, most tokens of a turn and of a tool's result."""
KINDS = ("kept", "read again", "generate")
VOCABULARY = 2048


def seconds(engine: LocalEngine, kind: str, prompts: int, group: int, seed: int) -> float:
    """For all turns of one batch."""
    engine.shared_prefill = kind != "generate"
    drawn = random.Random(seed)
    rows = [
        ids
        for ids in ([drawn.randrange(VOCABULARY) for _ in range(PROMPT)] for _ in range(prompts))
        for _ in range(group)
    ]
    taken = 0.0
    with conversation(engine) if kind == "kept" else nullcontext():
        for turn in range(TURNS):
            limits = [drawn.randrange(LONGEST // 2, LONGEST + 1) for _ in rows]
            began = time.perf_counter()
            found = engine.generate(rows, SamplingSettings(LONGEST), seed=turn, max_lengths=limits)
            taken += time.perf_counter() - began
            results = [[drawn.randrange(VOCABULARY) for _ in range(drawn.randrange(RESULT // 2, RESULT))] for _ in rows]
            rows = [[*ids, *one.ids, *result] for ids, one, result in zip(rows, found, results, strict=True)]
    return taken


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, value in {"times": 3, "width": 256, "layers": 6, "prompts": 4, "group": 8}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    asked = parser.parse_args(words)
    torch.manual_seed(0)
    config = Qwen2Config(
        **{"vocab_size": VOCABULARY, "hidden_size": asked.width, "intermediate_size": 3 * asked.width},
        **{"num_hidden_layers": asked.layers, "num_attention_heads": 8, "num_key_value_heads": 2},
        **{"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0},
    )
    model = Qwen2ForCausalLM(config)
    engine = LocalEngine(model, AutoTokenizer.from_pretrained(STARTER_PATH))
    print(
        f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters, "
        f"{asked.prompts * asked.group} conversations of {TURNS} turns"
    )
    seconds(engine, "kept", asked.prompts, asked.group, 0)  # the first use of a model is checked
    rounds = [
        {kind: seconds(engine, kind, asked.prompts, asked.group, at) for kind in KINDS} for at in range(asked.times)
    ]
    for kind in KINDS:
        ratios = [one[kind] / one["kept"] for one in rounds]
        print(
            f"{kind:>10}: {statistics.median(one[kind] for one in rounds):6.2f} s, "
            f"{statistics.median(ratios):.2f} times as long as kept ({min(ratios):.2f} to {max(ratios):.2f})"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""A training step, measured: stock TRL and Covey side by side on the same weights, prompts and completion lengths.

    python benchmarks/step.py --shape math --size 5m --generations 8 --steps 5 [--json FILE]

Each engine runs in its own process; steps alternate, and only one works at a time. Completions are forced to the
same lengths in both, evenly spread up to the longest. Stock TRL samples in the fastest of its own ways, tried first.
`benchmarks/step_report.py` (`make bench`) runs the whole table. Run it with nothing else on the machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from side_by_side.measuring import measure
from side_by_side.settings import ROLLOUTS, SHAPES, SIZES, SWITCHES, Setting


def main() -> None:
    arguments = parse()
    shape = SHAPES[arguments.shape]
    setting = Setting(
        size=arguments.size,
        prompt_length=arguments.prompt_length or shape.prompt,
        completion_length=arguments.completion_length or shape.completion,
        generations=arguments.generations,
        prompts=arguments.prompts,
        steps=arguments.steps,
        warmup=arguments.warmup,
        seed=arguments.seed,
        trl_defaults=arguments.trl_defaults,
        micro_batch=arguments.micro_batch,
        bf16=arguments.bf16,
        attention=arguments.attention,
        vllm=arguments.vllm,
        threads=arguments.threads,
        off=tuple(arguments.off),
    )
    rollout = None if arguments.baseline == "fastest" else arguments.baseline
    found = measure(setting, rollout, say=lambda text: print(text, file=sys.stderr))
    print(table(found))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="math", help="tokens of the prompt and the completions")
    parser.add_argument(
        "--size", choices=SIZES, default="5m", help="parameters of the model, a Qwen3 of random weights"
    )
    parser.add_argument("--generations", type=int, default=8, help="completions per prompt")
    parser.add_argument("--prompts", type=int, default=0, help="per optimiser step; 0 makes 64 completions")
    parser.add_argument("--steps", type=int, default=5, help="steps that count")
    parser.add_argument("--warmup", type=int, default=1, help="steps before those")
    parser.add_argument("--seed", type=int, default=0, help="of weights, prompts, lengths and sampling")
    parser.add_argument("--prompt-length", type=int, help="tokens, instead of the shape's")
    parser.add_argument("--completion-length", type=int, help="tokens of the longest, instead of the shape's")
    parser.add_argument("--baseline", choices=["fastest", *ROLLOUTS], default="fastest", help="how stock TRL samples")
    parser.add_argument("--trl-defaults", action="store_true", help="leave TRL's settings at TRL's own defaults")
    parser.add_argument("--micro-batch", type=int, default=0, help="rows of a micro-batch; 0 takes a group")
    parser.add_argument("--bf16", action="store_true", help="weights in bfloat16, for a GPU")
    parser.add_argument("--attention", help="of stock TRL's model, such as flash_attention_2; SDPA by default")
    parser.add_argument("--vllm", action="store_true", help="both sample with vLLM; all completions are the longest")
    parser.add_argument("--threads", type=int, help="of torch; its own default otherwise")
    parser.add_argument("--off", nargs="*", choices=SWITCHES, default=(), help="Covey's switches to turn off")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args()


def table(found: dict[str, Any]) -> str:
    """The rows, to be read in a terminal."""
    lines = [f"{'':28}{'TRL':>24}{'Covey':>24}{'ratio':>8}"]
    for row in found["rows"]:
        cells = [f"{row['row']:28}"]
        for engine in ("trl", "covey"):
            if f"{engine}_s" in row:
                low, high = row[f"{engine}_range_s"]
                cells.append(f"{row[f'{engine}_s']:.3f} s [{low:.3f}, {high:.3f}]".rjust(24))
            elif f"{engine}_per_s" in row:
                cells.append(f"{row[f'{engine}_per_s']:.0f}".rjust(24))
            else:
                cells.append(f"{row[f'{engine}_bytes'] / 1e6:.0f} MB".rjust(24))
        cells.append("–".rjust(8) if row["ratio"] is None else f"{row['ratio']:.2f}".rjust(8))
        lines.append("".join(cells))
    step = found["rows"][0]
    lines.append(
        f"Of this machine's {found['machine']['flops_per_s'] / 1e9:.0f} GFLOP/s in matrix products, the least work of "
        f"the step takes {100 * step['trl_of_machine']:.0f}% with TRL and {100 * step['covey_of_machine']:.0f}% with "
        "Covey."
    )
    lines += [f"Covey: {note}" for note in found["notes"]]
    return "\n".join(lines)


if __name__ == "__main__":
    main()

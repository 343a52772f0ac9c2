"""What several vLLM servers are worth, simulated: `training.vllm_servers=auto` next to the best split and one server.

Every legal split of a cluster is simulated: heavy-tailed completions, generated group by group by servers that batch
continuously, then learned, with `training.staleness` 0 and 1 (`overlap/ideal.py`). What a step of decoding and a batch
of learning cost is computed from an H100's data sheet and the model's sizes. `auto` sees none of this: it decides by
its own, simpler estimate, whose costs of one side are also made wrong by 30%. No GPU has run any of it.

    python benchmarks/servers.py        writes servers.md next to this file, in a minute
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from overlap.ideal import finished

from covey.config import Config, load
from covey.launch.servers import Serving, fastest, legal_servings, placed_servers, round_size, with_servers

FLOPS, READING, LINK = 989e12, 3.35e12, 50e9
"""Of an H100 SXM: dense bfloat16 operations and bytes of memory a second (NVIDIA's data sheet, 2023); bytes a second of
a 400 Gbit/s network link."""
TRAINS, DECODES, READS = 0.38, 0.45, 0.7
"""Shares of them that are reached: training by FSDP (38% of the operations, as in Llama 3's report, arXiv:2407.21783,
table 4), batched decoding, and reading weights and caches (vLLM's own benchmarks are near these)."""
STEP = 2e-3
"""Seconds of a decoding step beside the GPU's work: scheduling, sampling, launching kernels."""
PROMPT, LONGEST, MEDIAN, SPREAD = 512, 4096, 700, 0.8
"""Tokens: of a prompt; of completions, log-normal with this median and standard deviation of the logarithm, cut off."""
ROUNDS, GROUP = 6, 16
WRONG = tuple((one, side) for one in (0.7, 1.3) for side in ("generation", "learning"))
"""Factors of the estimate's costs, one at a time."""
BOTH = tuple({"generation": one, "learning": other} for one, other in ((0.7, 1.3), (1.3, 0.7)))
FLOOR = 0.85


@dataclass(frozen=True, slots=True)
class Model:
    """A dense decoder, and the least GPUs that serve it."""

    name: str
    parameters: float
    layers: int
    width: int
    heads: int
    shared: int
    inner: int
    size: int

    @property
    def cache(self) -> float:
        """Bytes of keys and values a token."""
        return 2.0 * self.layers * self.width / self.heads * self.shared * 2

    def config(self, folder: Path) -> str:
        """A folder with its `config.json`."""
        made = folder / self.name
        made.mkdir(exist_ok=True)
        sizes = {"num_hidden_layers": self.layers, "hidden_size": self.width, "num_attention_heads": self.heads}
        more = {"num_key_value_heads": self.shared, "intermediate_size": self.inner, "vocab_size": 151936}
        (made / "config.json").write_text(json.dumps({**sizes, **more, "tie_word_embeddings": False}))
        return str(made)


MODELS = (
    Model("1.5B", 1.54e9, 28, 1536, 12, 2, 8960, 1),
    Model("7B", 7.6e9, 28, 3584, 28, 4, 18944, 1),
    Model("14B", 14.8e9, 48, 5120, 40, 8, 13824, 2),
    Model("32B", 32.8e9, 64, 5120, 40, 8, 27648, 4),
)
CLUSTERS = ((1, 8), (4, 8))
ACCUMULATED = (4, 16)
"""Micro-batches a step, of 8 completions in each process."""


def lengths(count: int, seed: int) -> list[int]:
    """Tokens of completions; those of one group are alike, as a hard problem's are."""
    draw = random.Random(seed)
    found = []
    for _ in range(count // GROUP):
        hard = draw.gauss(0.0, SPREAD * 0.7)
        found += [
            min(LONGEST, max(8, round(MEDIAN * 2.718281828 ** (hard + draw.gauss(0.0, SPREAD * 0.7)))))
            for _ in range(GROUP)
        ]
    return found


def decoded(model: Model, rows: Sequence[int]) -> float:
    """Seconds in which one server writes completions of these lengths, all begun at once."""
    rows, size = sorted(rows), model.size
    seconds = 2 * model.parameters * PROMPT * len(rows) / GROUP / (FLOPS * DECODES * size)
    for number, (before, after) in enumerate(pairwise([0, *rows])):
        active, steps = len(rows) - number, after - before
        bytes_read = 2 * model.parameters + active * model.cache * (PROMPT + (before + after) / 2)
        computing = 2 * model.parameters * active / (FLOPS * DECODES * size)
        seconds += steps * (STEP + max(bytes_read / (READING * READS * size), computing))
    return seconds


def throughput(model: Model, config: Config, serving: Serving) -> float:
    """Completions a second of a split."""
    learning_gpus, servers = serving.split.learning, serving.count
    count = round_size(config, learning_gpus)
    sync = 2 * model.parameters / LINK
    generation, learning = [], []
    for number in range(ROUNDS):
        rows = lengths(count, number)
        groups = len(rows) // GROUP
        edges = [groups * server // servers * GROUP for server in range(servers + 1)]
        generation.append(max(decoded(model, rows[first:last]) for first, last in pairwise(edges) if first < last))
        tokens = sum(rows) + PROMPT * count
        shards = 4 * model.parameters / LINK if learning_gpus > 8 else 0.0  # weights and gradients between nodes
        learning.append((6 + 2 * 2) * model.parameters * tokens / (FLOPS * TRAINS * learning_gpus) + shards)
    ends = finished([[one] for one in generation], learning, 1, int(config.training.staleness), sync)
    return count * (ROUNDS - 1) / (ends[-1] - ends[0])


@dataclass(frozen=True, slots=True)
class Row:
    """One case: the best split, today's one server, and what `auto` takes."""

    cluster: str
    model: str
    accumulated: int
    staleness: int
    best: Serving
    speed: float
    one: float
    chosen: Serving
    right: float
    worst: float
    both: float


def cases(folder: Path) -> Iterator[Row]:
    """Every case, with the share of the best split's completions a second."""
    for nodes, gpus in CLUSTERS:
        for model in MODELS:
            for accumulated in ACCUMULATED:
                for staleness in (0, 1):
                    config = load(
                        [
                            *("training.use_vllm=true", "training.vllm_mode=server", f"training.staleness={staleness}"),
                            *(f"model.name={model.config(folder)}", f"launch.nodes={nodes}", f"launch.gpus={gpus}"),
                            f"training.vllm_tensor_parallel_size={model.size}",
                            "training.per_device_train_batch_size=8",
                            f"training.gradient_accumulation_steps={accumulated}",
                            f"training.num_generations={GROUP}",
                            f"training.max_completion_length={LONGEST}",
                            f"dataset.max_prompt_length={PROMPT}",
                            "training.beta=0.01",
                        ]
                    )
                    legal = legal_servings(config, gpus)
                    speeds = {one: throughput(model, config, one) for one in legal}
                    best = max(legal, key=speeds.__getitem__)
                    chosen = fastest(config, legal)
                    wrong = [speeds[fastest(config, legal, costs={side: factor})] for factor, side in WRONG]
                    both = [speeds[fastest(config, legal, costs=costs)] for costs in BOTH]
                    today = placed_servers(with_servers(config, 1), gpus)
                    assert today is not None
                    yield Row(
                        f"{nodes} x {gpus}", model.name, accumulated, staleness, best, speeds[best],
                        throughput(model, config, today) / speeds[best], chosen,
                        speeds[chosen] / speeds[best], min(wrong) / speeds[best], min(both) / speeds[best],
                    )  # fmt: skip


def page(rows: Sequence[Row]) -> str:
    """The results as Markdown."""

    def split(one: Serving) -> str:
        return f"{one.count} ({one.split.sampling} : {one.split.learning})"

    lines = [
        "# Several vLLM servers, simulated",
        "",
        "Made by `python benchmarks/servers.py`: a simulation, from data sheets; **no GPU has run it**.",
        "",
        "Completions a second, as a share of the best legal split's. `auto` is `training.vllm_servers=auto` by its own "
        "estimate, and the worst of it where that takes generation, or learning, to cost 0.7 or 1.3 times as much; "
        "*one server* is what a plan without the key does. Completions of 8 in each process times the micro-batches, "
        f"in groups of {GROUP}, log-normal lengths of up to {LONGEST} tokens (median {MEDIAN}). A split is the number "
        "of servers, and GPUs that sample : learn. N is `training.staleness`.",
        "",
        f"The least share of `auto` is **{min(row.right for row in rows):.0%}**, with a wrong estimate "
        f"**{min(row.worst for row in rows):.0%}** (floor {FLOOR:.0%}; with both sides wrong in opposite directions "
        f"{min(row.both for row in rows):.0%}); on average {statistics.fmean(row.right for row in rows):.0%}, "
        f"{statistics.fmean(row.worst for row in rows):.0%}, and one server "
        f"{statistics.fmean(row.one for row in rows):.0%}.",
        "",
        "| GPUs | model | micro-batches | N | best split | a second | `auto` | its share | wrong by 30% | one server |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row.cluster} | {row.model} | {row.accumulated} | {row.staleness} | {split(row.best)} | "
            f"{row.speed:.1f} | {split(row.chosen)} | {row.right:.0%} | {row.worst:.0%} | {row.one:.0%} |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = list(cases(Path(folder)))
    Path(__file__).with_name("servers.md").write_text(page(rows), encoding="utf-8")
    worst = min(row.worst for row in rows)
    print(f"auto: at least {worst:.0%} of the best split ({len(rows)} cases); written: servers.md")
    assert worst >= FLOOR, f"below the floor of {FLOOR:.0%}"


if __name__ == "__main__":
    main()

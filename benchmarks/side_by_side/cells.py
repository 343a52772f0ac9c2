"""What the report measures: every cell is one setting, named by what it holds, and belongs to one or more tables."""

from __future__ import annotations

import dataclasses

from side_by_side.settings import SHAPES, Setting

MAIN, SIZES, DEFAULTS, CURVES, VOCABULARY, GPU = "main", "sizes", "defaults", "curves", "vocabulary", "gpu"


@dataclasses.dataclass(frozen=True)
class Cell:
    """One measurement of the report."""

    name: str
    setting: Setting
    tables: tuple[str, ...]


def shaped(size: str, shape: str, generations: int, **more: object) -> Setting:
    """A setting of one of the named shapes."""
    lengths = {"prompt_length": SHAPES[shape].prompt, "completion_length": SHAPES[shape].completion}
    return Setting(size=size, generations=generations, **lengths, **more)  # type: ignore[arg-type]


def all_cells(steps: int, seed: int) -> list[Cell]:
    """Every cell once, those of the main table first.

    Args:
        steps: steps that count; the largest model makes do with two, and is there for its memory.
        seed: of weights, prompts, lengths and sampling.
    """
    wanted: list[tuple[str, Setting]] = []
    wanted += [(MAIN, shaped("5m", shape, generations)) for shape in SHAPES for generations in (4, 8, 16, 32)]
    # Sixteen completions: a CPU without instructions for bfloat16, TRL's default, takes minutes for them.
    wanted += [(DEFAULTS, shaped("5m", shape, 8, trl_defaults=True, prompts=2)) for shape in SHAPES]
    wanted += [(CURVES, shaped("5m", "math", generations)) for generations in (4, 8, 16, 32)]
    wanted += [(CURVES, lengths(prompt, 256)) for prompt in (64, 256, 512, 1024)]
    wanted += [(CURVES, lengths(256, completion)) for completion in (64, 128, 256, 512)]
    wanted += [(SIZES, shaped(size, shape, 8)) for size in ("1m", "25m") for shape in SHAPES]
    wanted += [(SIZES, shaped("100m", "short", 8, steps=2)), (SIZES, shaped("100m", "long", 8, steps=2, prompts=1))]
    of_smollm = {"size": "135m", "prompts": 4, "generations": 8, "prompt_length": 40, "threads": 1, "steps": 3}
    wanted += [(VOCABULARY, Setting(**of_smollm, completion_length=most)) for most in (12, 96)]  # type: ignore[arg-type]
    for size in ("0.5b", "1.5b"):
        for rival in (None, "flash_attention_2"):
            wanted += [
                (GPU, shaped(size, shape, 8, bf16=True, prompts=4, attention=rival)) for shape in ("math", "long")
            ]
        wanted += [(GPU, shaped(size, "math", 8, bf16=True, prompts=4, vllm=True))]
    cells: dict[str, Cell] = {}
    for table, setting in wanted:
        setting = dataclasses.replace(setting, steps=min(setting.steps, steps), seed=seed)
        name = name_of(setting)
        tables = cells[name].tables if name in cells else ()
        cells[name] = Cell(name, setting, tables if table in tables else (*tables, table))
    return list(cells.values())


def lengths(prompt: int, completion: int) -> Setting:
    """A setting of the 5 M model with groups of eight."""
    return Setting(size="5m", generations=8, prompt_length=prompt, completion_length=completion)


def name_of(setting: Setting) -> str:
    """What identifies a setting of the report."""
    parts = [setting.size, f"{setting.prompt_length}+{setting.completion_length}", f"G{setting.generations}"]
    parts += ["defaults"] * setting.trl_defaults + ["bf16"] * setting.bf16 + ["vllm"] * setting.vllm
    parts += [setting.attention] if setting.attention else []
    return "-".join(parts)

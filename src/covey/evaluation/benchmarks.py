"""The benchmarks that are known by name: their hub ids and columns."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path

from covey.config import DatasetConfig
from covey.errors import ConfigError

_SYSTEM_PROMPT = (
    "Solve the problem step by step. Put your reasoning between <think> and </think>, and then only the final answer, "
    "in its simplest exact form, between <answer> and </answer>."
)


def _benchmark(id: str, prompt: str, answer: str, split: str, **more: str) -> DatasetConfig:
    return DatasetConfig(
        id=id,
        prompt_column=prompt,
        answer_column=answer,
        train_split=split,
        test_split=None,
        test_size=0,
        system_prompt=_SYSTEM_PROMPT,
        **more,  # type: ignore[arg-type]
    )


BENCHMARKS: Mapping[str, DatasetConfig] = {
    "gsm8k": _benchmark("openai/gsm8k", "question", "answer", "test", config="main", answer_extractor="gsm8k"),
    "math500": _benchmark("HuggingFaceH4/MATH-500", "problem", "answer", "test"),
    "aime24": _benchmark("HuggingFaceH4/aime_2024", "problem", "answer", "train"),
    "amc23": _benchmark("math-ai/amc23", "question", "answer", "test"),
    "minerva": _benchmark("math-ai/minervamath", "question", "answer", "test"),
    "olympiadbench": _benchmark("knoveleng/OlympiadBench", "question", "answer", "train"),
}
"""Each is read as a training split without held-out rows, so that it is complete and in its own order."""


_OTHER_NAMES = {"aime2024": "aime24", "amc2023": "amc23", "minervamath": "minerva"}


def named(name: str) -> str:
    """The canonical name of a benchmark with aliases such as `math_500`, `MATH-500` or `aime_2024`."""
    plain = "".join(letter for letter in name.lower() if letter.isalnum())
    plain = _OTHER_NAMES.get(plain, plain)
    return plain if plain in BENCHMARKS else name


def check_benchmarks(names: Iterable[str], key: str) -> None:
    """Raise a `ConfigError` unless all these benchmarks are known."""
    for name in names:
        if named(name) not in BENCHMARKS:
            near = difflib.get_close_matches(name, BENCHMARKS, n=1)
            guess = f" Did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{key}: there is no benchmark {name}; there are {', '.join(BENCHMARKS)}.{guess}")


def benchmark(name: str, path: str | None, own: DatasetConfig) -> DatasetConfig:
    """The dataset of a benchmark.

    Args:
        name: see `BENCHMARKS`.
        path: a local file in place of the hub.
        own: the run's own dataset; its system prompt and user prompt template, if set, replace the defaults.

    Raises:
        ConfigError: there is no such benchmark.
    """
    check_benchmarks([name], "evaluation.benchmarks")
    found = BENCHMARKS[named(name)]
    if path is not None:  # a single file has one split, whatever the hub calls it
        found = dataclasses.replace(found, path=str(Path(path).expanduser()), train_split="train")
    prompts = {"system_prompt": own.system_prompt, "user_prompt_template": own.user_prompt_template}
    return dataclasses.replace(found, **{key: value for key, value in prompts.items() if value is not None})  # type: ignore[arg-type]

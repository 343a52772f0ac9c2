"""What identifies an evaluation: its problems, and how they are sampled and graded, stored next to its completions."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.evaluation.completions.played import row_columns
from covey.evaluation.grading import SEED_OFFSET, grader_settings
from covey.evaluation.stored import (
    digest,
    environment_seed,
    episode_settings,
    problems_digest,
    reward_settings,
    sampling_settings,
)
from covey.importing import code_hashes
from covey.model.prompts import render
from covey.rewards.reward import last_user_message

if TYPE_CHECKING:
    from datasets import Dataset

    from covey.config import Config
    from covey.config.groups.environment import EnvironmentConfig
    from covey.evaluation.target import Target

_BLOCK = 1 << 20


def prompts_of(rows: Dataset) -> list[Any]:
    """The prompts of the rows; of rows without any, whose environment makes them, the empty one that it adds to."""
    if "prompt" in rows.column_names:
        return list(rows["prompt"])
    return [[{"role": "user", "content": ""}]] * len(rows)


def describe_data(config: Config, environment: EnvironmentConfig, rows: Dataset, tokenizer: Any) -> dict[str, Any]:
    """The problems, and how they are put to the model; arguments as of `describe_method`."""
    template = config.training.chat_template_kwargs or {}
    prompts = prompts_of(rows)
    answers = rows["answer"] if "answer" in rows.column_names else [None] * len(rows)
    problems = list(zip(map(last_user_message, prompts), map(str, answers), strict=True))
    others = map(row_columns, rows) if environment.used else ()
    messages = [] if isinstance(prompts[0], str) else prompts[0]
    return {
        "problems": len(rows),
        "seed": config.dataset.seed,
        "problems_fingerprint": problems_digest(problems, others, environment_seed(config.dataset.seed, environment)),
        "prompts_fingerprint": digest((render(tokenizer, prompt, template),) for prompt in prompts),
        "system_prompt": next((str(one["content"]) for one in messages if one["role"] == "system"), None),
        "chat_template_kwargs": dict(template),
    }


def describe_method(
    config: Config, environment: EnvironmentConfig, grader: str | None, engine: str, *, rewarded: bool, rewarding: bool
) -> dict[str, Any]:
    """How completions are sampled, graded, rewarded and played.

    Args:
        config: of the evaluation.
        environment: its environments and tools, which on a benchmark may be fewer than those of the config.
        grader: see `grader_name`.
        engine: its name.
        rewarded: whether the run's rewards are computed.
        rewarding: whether an environment rewards its episodes.
    """
    own = {*filter(None, [grader]), *(config.rewards.funcs if rewarded else ()), *environment.own_code}
    return {
        "sampling": sampling_settings(config),
        "num_samples": config.evaluation.num_samples,
        "batch_size": config.evaluation.batch_size,
        "seed": config.seed + SEED_OFFSET,
        "engine": engine,
        "shared_prefill": config.speed.shared_prefill,
        **grader_settings(config, grader, rewarding=rewarding),
        **(reward_settings(config) if rewarded else {}),
        **episode_settings(environment),
        "code": code_hashes(own),
    }


def weights_fingerprint(target: Target, model: Any) -> str:
    """A fingerprint of the weights: a hash of the files, or the commit of a hub model."""
    folder = target.adapter or (Path(target.source) if Path(target.source).is_dir() else None)
    if folder is None:
        config = getattr(model, "config", None)  # another engine has no model here
        return str(getattr(config, "_commit_hash", None) or target.source)
    hashed = hashlib.sha256()
    for file in sorted([*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]):
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK):
                hashed.update(block)
    return hashed.hexdigest()

"""Presets: the defaults of the projects that Covey's aliases come from, and which names select them.

A preset is a file of `conf/preset/`, in Covey's keys and the project's own. Its values hold below everything that the
user sets, above Covey's own defaults: `preset=NAME` takes all of them, model and data included. A name that only one
project has takes them without its model, and its data only for a model of its own; a run of Covey's built-in starter
is left as it is, with a note.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from covey.advice import install
from covey.config.aliases.resolve import leaves, resolve_aliases
from covey.config.keys import Choice, Source
from covey.config.values import show

GROUP = "preset"
NONE = "none"
"""The option that switches presets off."""

_WRAPPERS = ("baseline.", "maxent.", "script.")


@dataclass(frozen=True, slots=True)
class Preset:
    """A project, and what is its own."""

    title: str
    names: frozenset[str]
    """Keys that only this project has: neither another one of these, nor TRL, Covey or one of `peers.txt`."""
    prefixes: tuple[str, ...] = ()
    """The same, for all keys that begin so."""
    models: str = "(?!)"
    """Its own models, as a regular expression for their names."""
    recipe: str = ""
    """The recipe that has its defaults."""
    shared: frozenset[str] = frozenset()
    """Keys that other trainers have too: they only bring the note to a run of the starter."""

    def has(self, name: str) -> bool:
        """Whether a key is this project's own, in a group of its or without."""
        bare = name.removeprefix("training.")
        return name in self.names or bare in self.names or bare.startswith(self.prefixes)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "agent_tunix": Preset(
            "Agent-Tunix",
            _names(
                """grpo generation training.micro_batch_size num_batches num_test_batches data_source
                eval_every_n_steps save_interval_steps max_checkpoints_to_keep intermediate_checkpoint_dir
                flush_every_n_steps max_generation_steps model_family model_size model.model_family model.model_size
                lora_module_path model.lora_module_path optimizer.learning_rate optimizer.max_grad_norm"""
            ),
            ("grpo.", "generation.", "scheduler."),
            r"(.*/)?gemma-3-.*",
            "recipes/gemma3_270m/grpo/agent_tunix.yaml",
            _names("micro_batch_size checkpoint_dir train_data_dir test_data_dir wandb_disabled"),
        ),
        "rlvr_vocab": Preset(
            "the RLVR vocabulary project",
            _names(
                """logging.enabled dataset.val_split dataset.max_val_samples
                dataset.ignore_sufficient_disk_space_check model.model_kwargs model.generation_kwargs"""
            ),
            ("model.model_kwargs.", "model.generation_kwargs."),
            r"Qwen/Qwen3-0\.6B",
            "recipes/qwen3_0.6b/grpo/rlvr_vocab.yaml",
            _names("exp_name"),
        ),
        "maxent_grpo": Preset(
            "MaxEnt-GRPO",
            _names(
                """train_grpo_objective kl_ctl_step_size grpo_beta_controller_enabled grpo_loss_type gen_temperature
                gen_top_p gen_top_k gen_best_of vllm_url vllm_return_logprobs vllm_request_logprobs vllm_sync_weights
                vllm_sync_interval_steps vllm_stop_sequences vllm_request_timeout vllm_best_of
                vllm_max_completion_rounds vllm_retry_sleep vllm_backfill_with_model log_like_grpo
                disable_distributed_sampler behavior_logprobs_source policy_entropy_bonus_coef eval_dataset_name
                eval_dataset_split eval_dataset_prompt_column eval_dataset_solution_column maxent baseline script"""
            ),
            ("maxent_", "maxent.", "baseline.", "script.", "info_seed_", "seed_paper_", "seed_grpo_", "controller_"),
            r"Qwen/Qwen2\.5-(0\.5B|1\.5B|7B)(-Instruct)?",
        ),
        "open_r1": Preset(
            "open-r1 (TRL 0.18 and older)",
            _names(
                """hub_model_revision overwrite_hub_revision push_to_hub_revision wandb_run_group system_prompt
                dataset_prompt_column dataset_mixture dataset_configs cosine_min_value_wrong cosine_max_value_wrong
                cosine_min_value_correct cosine_max_value_correct max_completion_len soft_punish_cache code_language
                code_eval_test_batch_size code_eval_scoring_mode code_provider parallel_code_exec_per_proc
                e2b_router_url morph_router_url piston_router_url ioi_provider vllm_device vllm_dtype"""
            ),
        ),
    }
)
"""All presets, by the name of their option."""

GIVES_WAY: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "output_dir": ("run_name",),
        "run_name": ("output_dir",),
        "training.reward_weights": ("rewards.funcs",),
        "model.lora.path": ("model.lora.rank", "model.lora.target_modules"),
    }
)
"""Keys of a preset that a key of the user excludes, besides its own."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A preset for a run."""

    name: str
    by: str
    """The key that selected it; empty where the user did."""

    @property
    def preset(self) -> Preset:
        return PRESETS[self.name]

    def has_model(self, name: str) -> bool:
        """Whether a model is one of the project's own."""
        return re.fullmatch(self.preset.models, name) is not None


def select(chosen: str | None, sources: Iterable[Source], *, starter: bool = False) -> Selection | None:
    """The preset that the user chose, or else the one whose own keys are used most.

    Args:
        chosen: the user's choice; `none` for none.
        sources: what recipes, config groups and the command line set.
        starter: whether the run trains the built-in model, for which a selection is no more than a note.
    """
    if chosen is not None:
        return Selection(chosen, "") if chosen in PRESETS else None
    names = [name for source in sources for name in source.foreign_names]
    own = {key: [name for name in names if preset.has(name)] for key, preset in PRESETS.items()}
    if starter and not any(own.values()):
        own = {key: [name for name in names if name in preset.shared] for key, preset in PRESETS.items()}
    best = max(own, key=lambda key: len(set(own[key])))
    return Selection(best, own[best][0]) if own[best] else None


def source_of(selection: Selection, model: str, folder: Path) -> Source:
    """What a preset implies for a run."""
    written, choices = _content(folder / f"{selection.name}.yaml")
    settings = [replace(setting, implied=True) for setting in resolve_aliases(written, {}, GROUP, strict=True).settings]
    own = selection.has_model(model)
    return Source(
        settings=settings,
        choices=[choice for choice in choices if not selection.by or (own and choice.group == "dataset")],
    )


def without_missing_tracker(source: Source) -> list[str]:
    """Leave out a preset's W&B where it is not installed; returns a note."""
    kept = [setting for setting in source.settings if setting.key not in ("training.report_to", "logging.project")]
    if find_spec("wandb") is not None or len(kept) == len(source.settings):
        return []
    source.settings = kept
    return [f"this preset logs to W&B, which is not installed: no tracker here; {install('wandb')} adds it"]


def applied(selection: Selection, values: Mapping[str, Any]) -> str:
    """The note on what a preset sets.

    Args:
        values: its keys and group choices that hold.
    """
    listed = ", ".join(f"{_short(key)}={show(value)}" for key, value in values.items()) or "all are set already"
    by = f", selected by {selection.by}" if selection.by else ""
    off = " (preset=none takes Covey's own)" if selection.by else ""
    title = selection.preset.title
    return f"preset={selection.name}{by}: the defaults of {title} where nothing else is set{off}: {listed}"


def not_applied(selection: Selection, values: Mapping[str, tuple[Any, Any]], why: str) -> str:
    """The note on a preset that is not taken.

    Args:
        values: the project's and the run's, by key, where they differ.
        why: what selects it, and why it is not taken.
    """
    listed = ", ".join(f"{_short(key)}={show(there)} (here {show(here)})" for key, (there, here) in values.items())
    recipe = f", as {selection.preset.recipe} has them" if selection.preset.recipe else ""
    return (
        f"{why} The defaults of {selection.preset.title} differ: {listed}. +preset={selection.name} "
        f"takes them where nothing else is set{recipe}; preset=none removes this note"
    )


def _short(key: str) -> str:
    return key.removeprefix("training.")


@cache
def _content(file: Path) -> tuple[tuple[Any, ...], tuple[Choice, ...]]:
    """The keys and the group choices of a preset's file."""
    content = yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    choices = [Choice(group, option, implied=True) for group, option in content.pop("takes", {}).items()]
    return tuple(leaves(content, by=GROUP)), tuple(choices)

"""Checks of what is passed to the trainer in Python, and which columns a run wants."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from covey.config import Config
from covey.config.groups.training_live import ASKS_FOR_NOTHING, REFUSED
from covey.data.columns import PROMPT_NAMES
from covey.errors import ConfigError, DataError, ModelError
from covey.rewards import RewardSettings, find
from covey.rewards.custom import GIVEN
from covey.rewards.registry import columns_read
from covey.training.preflight.findings import Mark, PreflightFinding

if TYPE_CHECKING:
    from covey.environments.runner import EnvironmentRunner


def check_arguments(trainer: Any, *args: Any, **kwargs: Any) -> Any:
    """Check what a trainer of this class is made with, before anything is loaded: rows have a `prompt` column, if the
    columns are known and no environment makes prompts, something is trained, and every setting works.

    Returns:
        Its GRPOConfig; None if it is not given.

    Raises:
        DataError: with the argument, its columns, and a fix.
        ConfigError: a setting cannot work.
        ModelError: nothing of the model would be trained.
    """
    arguments = signature(trainer).bind_partial(*args, **kwargs).arguments
    _check_prompts(arguments)
    config, adapters = arguments.get("args"), arguments.get("peft_config")
    model: Any = arguments.get("model")
    for name, why in REFUSED.items():
        if getattr(config, name, None) not in ASKS_FOR_NOTHING:
            raise ConfigError(f"{name}={getattr(config, name)} has no effect in GRPO: {why}. Leave it out.")
    if getattr(adapters, "inference_mode", False):
        raise ModelError("peft_config has inference_mode=True, so that nothing would be trained. Set it to False.")
    frozen = hasattr(model, "parameters") and not any(one.requires_grad for one in model.parameters())
    if frozen and adapters is None:
        advice = (
            "Load its adapters by PeftModel.from_pretrained(model, folder, is_trainable=True): peft's default is False."
            if hasattr(model, "peft_config")
            else "Unfreeze what is to be trained (requires_grad_), or pass a peft_config."
        )
        raise ModelError(f"Nothing would be trained: all weights of the model have requires_grad=False. {advice}")
    return config


def _check_prompts(arguments: Mapping[str, Any]) -> None:
    if arguments.get("environment_factory") is not None:
        return
    for argument in ("train_dataset", "eval_dataset"):
        given = arguments.get(argument)
        parts = {f"{argument}[{key!r}]": part for key, part in given.items()} if isinstance(given, Mapping) else {}
        for name, dataset in (parts or {argument: given}).items():
            columns = getattr(dataset, "column_names", None)
            computed = (getattr(dataset, "format", None) or {}).get("type") == "custom"  # by set_transform, per row
            if not isinstance(columns, list) or "prompt" in columns or computed:
                continue
            near = next((column for column in PROMPT_NAMES if column in columns), None)
            advice = (
                f'Rename the column: {name}.rename_column("{near}", "prompt").'
                if near
                else f'Add one: {name}.map(lambda row: {{"prompt": …}}), with a text or a list of messages.'
            )
            raise DataError(
                f"The rows of {name} have no column `prompt`; they have "
                f"{', '.join(map(str, columns)) or 'no columns at all'}. {advice}"
            )


def columns_wanted(config: Config, runner: EnvironmentRunner | None, columns: Sequence[str]) -> PreflightFinding:
    """Which columns of the data each reward and each environment reads; in brackets what it can do without."""
    told = []
    settings = RewardSettings.of(config.rewards, config.training.max_completion_length)
    for name in config.rewards.funcs:
        own = _taken(find(name, settings).batch, without=GIVEN) if ":" in name else []
        told.append((name, own if ":" in name else list(columns_read(name)[:1])))
    if runner is not None:
        for chosen, (factory, _) in config.environment.factories.items():
            told.append((factory, _taken(runner.instances([chosen])[0].reset)))
    wanted = "; ".join(f"{name} reads {', '.join(names)}" for name, names in told if names)
    there = f"the rows have {', '.join(columns)}"
    return PreflightFinding(Mark.FINE, "columns", f"{wanted or 'no reward or environment names any'}; {there}")


def _taken(function: Callable[..., Any], without: Collection[str] = ()) -> list[str]:
    """The names of what a function takes by keyword."""
    kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    found = [p for p in signature(function).parameters.values() if p.kind in kinds and p.name not in without]
    return [p.name if p.default is p.empty else f"[{p.name}]" for p in found]

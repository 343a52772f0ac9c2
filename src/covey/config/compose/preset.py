"""Taking another project's defaults into a run: where they apply, and what the user is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from covey.config.aliases import presets
from covey.config.aliases.presets import Selection
from covey.config.compose.group_files import CONF
from covey.config.compose.merging import Merging
from covey.config.compose.values_tree import value_of
from covey.config.groups.model import ModelConfig
from covey.config.groups.training import training_fields

_ITS_NAMES = frozenset({"full_training", "quick_test"})
"""Experiments of Covey that Agent-Tunix has too, with other contents."""
_PLACE = ("output_dir", "run_name")


def with_preset(merging: Merging, values: dict[str, Any]) -> tuple[Merging, dict[str, Any]]:
    """Merge again with the preset that the user chose or that other tools' names select, if there is one."""
    option = _chosen(merging)
    if merging.files.complete and option is None:
        return merging, values
    model = str((values.get("model") or {}).get("name") or ModelConfig().name)
    selection = presets.select(option, merging.users, starter=model == ModelConfig().name)
    refused = ""
    if selection is None and option is None:
        selection, refused = _same_name(merging, model)
    elif selection is not None and selection.by and model == ModelConfig().name:
        refused = f"{selection.by} is a key of {selection.preset.title}, and this run trains Covey's built-in model."
    if selection is None:
        return merging, values
    preset = presets.source_of(selection, model, CONF / presets.GROUP)
    notes = [] if refused else presets.without_missing_tracker(preset)
    found = merging.with_preset(preset)
    new = found.values()
    choices, settings = found.of_preset()
    holding = {setting.key: _value(new, setting.key) for setting in settings}
    if refused:
        here = {key: _value(values, key) for key in holding if key not in _PLACE}
        differing = {key: (holding[key], value) for key, value in here.items() if value != holding[key]}
        merging.notes += [presets.not_applied(selection, differing, refused)] if differing else []
        return merging, values
    groups = {choice.group: choice.option for choice in choices}
    tracked = "wandb" in str(_value(new, "training.report_to"))  # asked for by the user as well
    found.notes += [presets.applied(selection, {**groups, **holding}), *([] if tracked else notes)]
    return found, new


def _chosen(merging: Merging) -> str | None:
    """The option of a preset that the user chooses: Covey's own, or none; None without a choice."""
    composition = merging.composition
    if presets.GROUP not in composition.chosen:
        return None
    part = composition.option(presets.GROUP)
    return part.file.path.stem if part is not None and part.builtin else presets.NONE


def _same_name(merging: Merging, model: str) -> tuple[Selection | None, str]:
    """Agent-Tunix, where its model is trained with an experiment of Covey that has the name of one of its own."""
    own = [part for part in merging.composition.parts if part.group == "experiment" and part.builtin]
    names = [part.file.path.stem for part in own if part.file.path.stem in _ITS_NAMES]
    selection = Selection("agent_tunix", "experiment")
    if not names or not selection.has_model(model):
        return None, ""
    return selection, f"+experiment={names[-1]} is Covey's own, and {selection.preset.title} has one of this name."


def _value(values: Mapping[str, Any], key: str) -> Any:
    """The value of a key, by default TRL's."""
    found, (group, _, name) = value_of(values, key), key.partition(".")
    return training_fields()[name].default if found is None and group == "training" else found

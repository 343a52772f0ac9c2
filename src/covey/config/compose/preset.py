"""Taking another project's defaults into a run: where they apply, and what the user is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from covey.config.aliases import presets
from covey.config.aliases.presets import Selection
from covey.config.compose.group_files import CONF, Roots
from covey.config.compose.merging import Merging
from covey.config.groups import snapshot
from covey.config.groups.model import ModelConfig
from covey.config.settings import Choice, Source

_ITS_NAMES = frozenset({"full_training", "quick_test"})
"""Experiments of Covey that Agent-Tunix has too, with other contents."""
_PLACE = ("output_dir", "run_name")


def take_preset(sources: Sequence[Source], roots: Roots) -> Choice | None:
    """The last choice of a preset, taken out of the sources: Hydra would merge it above Covey's groups.

    Raises:
        ConfigError: there is no such preset.
    """
    taken: Choice | None = None
    for source in sources:
        for choice in source.choices:
            file = None if choice.group != presets.GROUP or choice.option is None else roots.file(choice)
            if choice.group == presets.GROUP and (file is None or roots.is_builtin(file)):
                taken = choice
        source.choices = [choice for choice in source.choices if choice.group != presets.GROUP]
    return taken


def with_preset(chosen: Choice | None, merging: Merging, values: dict[str, Any]) -> tuple[Merging, dict[str, Any]]:
    """Merge again with the preset that the user chose or that other tools' names select, if there is one.

    Args:
        chosen: the user's choice; one of no option means none.
        merging: the run without a preset.
        values: its values.
    """
    option = None if chosen is None else chosen.option or presets.NONE
    selection = presets.select(option, (merging.groups, *merging.recipes, merging.line))
    model = str((values.get("model") or {}).get("name") or ModelConfig().name)
    refused = ""
    if selection is None and option is None:
        selection, refused = _same_name(merging, model)
    elif selection is not None and selection.by and model == ModelConfig().name:
        refused = f"{selection.by} is a key of {selection.preset.title}, and this run trains Covey's built-in model."
    if selection is None:
        return merging, values
    preset = presets.source_of(selection, model, CONF / presets.GROUP)
    notes = [] if refused else presets.without_missing_tracker(preset)
    found = Merging(merging.roots, merging.recipes, merging.line, complete=merging.complete, preset=preset)
    new = found.values()
    holding = {setting.key: _value(new, setting.key) for setting in found.of_preset()}
    if refused:
        here = {key: _value(values, key) for key in holding if key not in _PLACE}
        differing = {key: (holding[key], value) for key, value in here.items() if value != holding[key]}
        merging.notes.append(presets.not_applied(selection, differing, refused))
        return merging, values
    groups = {choice.group: choice.option for choice in found.preset_choices()}
    found.notes += [presets.applied(selection, {**groups, **holding}), *notes]
    return found, new


def _same_name(merging: Merging, model: str) -> tuple[Selection | None, str]:
    """Agent-Tunix, where its model is trained with an experiment of Covey that has the name of one of its own."""
    names = [choice.option for choice in merging.choices if choice.group == "experiment"]
    selection = Selection("agent_tunix", "experiment")
    if not set(names) & _ITS_NAMES or not selection.has_model(model):
        return None, ""
    return selection, f"+experiment={names[-1]} is Covey's own, and {selection.preset.title} has one of this name."


def _value(values: Mapping[str, Any], key: str) -> Any:
    found: Any = values
    for name in key.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    group, _, name = key.partition(".")
    return snapshot.fields()[name].default if found is None and group == "training" else found

"""What follows from the user's settings together: whose settings count, reward weights, the run's folder."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.config.compose.recipe import read_yaml
from covey.config.groups.model import SHIPPED, is_starter
from covey.config.groups.objectives import SETTINGS
from covey.config.groups.rewards import RewardsConfig
from covey.config.keys import Setting, Source
from covey.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

_OWNERS = {f"objective.{name}_{item.name}": name for name, kind in SETTINGS.items() for item in fields(kind)}
"""The built-in objective that each setting belongs to."""


def leave_out_other_objectives(sources: Sequence[Source], group: tuple[int, Any] | None) -> list[str]:
    """Leave out the settings of other objectives than the one that is chosen last, by a key or by its group.

    That holds for settings of earlier sources, and among the keys of another tool in the same one. Returns a note.

    Args:
        sources: what the user sets, in the order of merging.
        group: the number of the source that chooses the group's option, and the objective of that option.
    """
    settings = [(number, s) for number, part in enumerate(sources) for s in part.settings if not s.implied]
    at, foreign, name = -1, False, None
    for number, setting in settings:
        if setting.key == "objective.name":
            at, foreign, name = number, setting.written.name != setting.key, setting.value
    by_group = group is not None and group[0] > at
    if group is not None and by_group:
        (at, name), foreign = group, False
    if at < 0:
        return []
    gone = {}
    for key, (number, last) in {s.key: (number, s) for number, s in settings}.items():
        own_class = f"{key}.".startswith("objective.settings.") and name in SETTINGS
        other = own_class or _OWNERS.get(key, name) != name or (by_group and key == "objective.name")
        if other and (number < at or (number == at and foreign and not last.native)):
            gone[key] = last.written.name
    for part in sources:
        part.settings = [setting for setting in part.settings if setting.key not in gone]
    return [f"objective={name} was asked for, so these are left out: {', '.join(gone.values())}"] * bool(gone)


def drop_stale_weights(values: dict[str, Any], named: Collection[str], *, own: bool) -> None:
    """Drop the default reward weights where the user chose other rewards.

    An experiment's weights stay with the rewards it names.

    Args:
        values: the merged values, which are changed.
        named: the keys that recipes and the command line set.
        own: whether an option that the user chooses sets the weights.
    """
    funcs, training = (values.get("rewards") or {}).get("funcs"), values.get("training") or {}
    if "training.reward_weights" in named or not isinstance(funcs, str | list):  # another type is rejected later
        return
    asked = (funcs,) if isinstance(funcs, str) else tuple(funcs)
    weights = training.get("reward_weights")
    fits = isinstance(weights, list) and len(weights) == len(asked)
    if asked != RewardsConfig().funcs and not (own and fits and "rewards.funcs" not in named):
        training.pop("reward_weights", None)


_BATCH = ("per_device_train_batch_size", "generation_batch_size", "steps_per_generation")
_ACCUMULATION, _RATE = "training.gradient_accumulation_steps", "training.learning_rate"
_RATE_OF_ADAPTERS = 3e-4  # that of all weights is in config.yaml; benchmarks/first_defaults.md measures both
_BEFORE = {"dataset.system_prompt": None, _RATE: 1e-6, _ACCUMULATION: 1}  # defaults of a pretrained model, once


def fit_to_model(
    tree: DictConfig, taken: Collection[str], named: Collection[str], *, starter: bool, defaults: bool
) -> None:
    """Fit merged values that only Covey's defaults set to the model: the learning rate to adapters, the accumulation to
    a batch that is set, and the prompt of `dataset=arithmetic` to a starter, which knows the form without.

    Args:
        taken: the keys that something else sets; `named`: of which the user does.
        starter: whether the model is trained as a starter is.
        defaults: whether the run has Covey's defaults.
    """
    from omegaconf import OmegaConf

    name, lora = OmegaConf.select(tree, "model.name"), OmegaConf.select(tree, "model.lora")
    rank, path, enabled = (lora.get(key) if OmegaConf.is_dict(lora) else None for key in ("rank", "path", "enabled"))
    adapters = enabled if enabled is not None else rank or path
    if defaults and adapters and _RATE not in taken:
        OmegaConf.update(tree, _RATE, _RATE_OF_ADAPTERS)
    if defaults and _ACCUMULATION not in taken and any(f"training.{size}" in taken for size in _BATCH):
        OmegaConf.update(tree, _ACCUMULATION, 1)
    of_task = OmegaConf.select(tree, "dataset.task") == "arithmetic" and "dataset.system_prompt" not in named
    if of_task and (starter or name in (None, *SHIPPED) or is_starter(str(name))):
        OmegaConf.update(tree, "dataset.system_prompt", None)


def name_by_folder(values: dict[str, Any], settings: Sequence[Setting], recipe: str, *, foreign: bool) -> list[str]:
    """Name a run of another tool's recipe by its folder, so that the same command resumes it. Returns notes.

    Their `output_dir` is the run's own folder, and `--run_name` only its name in trackers, unless both are typed: then
    the run lies in `output_dir/run_name`, as everywhere. `output_dir=DIR` over such a
    recipe is Covey's folder of runs, in which the run takes the name of the recipe's own folder.

    Args:
        values: the merged values, which are changed.
        settings: what the user sets.
        recipe: the recipe's name; empty without one.
        foreign: whether the recipe has any key of another tool.
    """
    folders = [found for found in settings if found.key == "output_dir"]
    folder, name = values.get("output_dir"), values.get("run_name")
    if not folders or not isinstance(folder, str) or not folder:
        return []
    word = folders[-1].written
    native = word.name == "output_dir" and word.by != "flag"
    below = native and word.typed
    naming = next((found.written for found in reversed(settings) if found.key == "run_name"), None)
    in_trackers = naming is not None and naming.by == "flag" and not word.typed and isinstance(name, str)
    if not word.typed and naming is not None and naming.name == "exp_name" and Path(folder).name == name:
        values["output_dir"] = str(Path(folder).parent)  # `output_dir: ./out/${exp_name}` is the run's own folder
        return []
    if (native and not foreign) or (name is not None and not in_trackers):
        return []
    path = Path(folder) if Path(folder).name not in ("", "..") else Path(folder).absolute().resolve()
    if below and recipe:
        names = [Path(str(found.value)).name for found in folders[:1] if not found.written.typed]
        path = Path(folder) / next((name for name in names if name and "$" not in name), recipe)
    if not path.name:
        return []
    values["output_dir"], values["run_name"] = str(path.parent), path.name
    notes = [f"{word.name}={folder}: the run lies in {path}, where the same command resumes it"]
    if in_trackers:
        logging = values.setdefault("logging", {})
        logging["run_name"] = logging.get("run_name") or name
        notes.append(f"--run_name {name}: its name in trackers only, as in TRL; run_name={name} names a folder")
    return notes


def with_held_out_seed(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a stored run's config; one that was written before `dataset.seed` existed means its `seed`."""
    data = stored.get("dataset") or {}
    if "seed" not in stored or "dataset.seed" in stored or not isinstance(data, Mapping) or "seed" in data:
        return {**stored}
    return {**stored, "dataset": {**data, "seed": stored["seed"]}}


def keep_of_run(values: dict[str, Any], typed: Collection[str]) -> list[str]:
    """Give a run that may be resumed the `dataset.seed` that it has, as another one would hold out rows that it has
    been trained on, and older defaults, where the user sets none. Returns notes; changes the merged values."""
    folder, name, resume = (values.get(key) for key in ("output_dir", "run_name", "resume"))
    if values.get("overwrite") or resume is False or not isinstance(values.get("dataset"), dict):
        return []
    named = isinstance(resume, str) and resume != "auto"
    run = Path(str(resume)).expanduser().parent if named else Path(str(folder or "out")) / str(name)
    try:
        stored = with_held_out_seed(read_yaml(run / "config.yaml")) if named or name else {}
    except ConfigError:  # missing, or damaged, of which the user is told when the run is resumed
        return []
    notes = []
    for key in ("dataset.seed", *_BEFORE):
        group, _, last = key.partition(".")
        there, here = stored.get(group), values.get(group)
        if key in typed or not isinstance(there, dict) or not isinstance(here, dict) or last not in there:
            continue
        found, seed = there[last], last == "seed"
        if found != here.get(last, 0 if seed else None) and (isinstance(found, int) if seed else found == _BEFORE[key]):
            here[last] = found
            notes.append(f"{key}={found}, as the run in {run} has it")
    return notes

"""Random trees of config files and command lines, and what plain `hydra.compose` makes of them."""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from covey.config.compose.group_files import CONF

BASE: list[Any] = yaml.safe_load((CONF / "config.yaml").read_text(encoding="utf-8"))["defaults"]

KEYS: dict[str, list[Any]] = {
    "seed": [1, 2, 3],
    "model.revision": ["r1", "r2", None],
    "model.lora.alpha": [4, 8, "${training.save_steps}"],
    "training.max_steps": [5, 6, 7],
    "training.weight_decay": [0.1, 0.2, "${training.learning_rate}"],
    "training.adam_beta1": [0.5, 0.6],
    "training.model_init_kwargs": [{"a": 1}, {"b": [1, 2], "c": 3}, {"a": {"d": 4}}],
    "training.save_steps": [11, 12],
    "evaluation.batch_size": [8, 9, "${training.save_steps}"],
    "evaluation.temperature": [0.25, 0.5],
    "logging.project": ["p1", "p2"],
    "logging.tags": [["x"], ["y", "z"], []],
    "dataset.system_prompt": ["short", "save ${training.save_steps}"],
    "rewards.timeout": [7, 8],
}
"""Keys of Covey's own, with values. None of them makes Covey choose or drop a group."""
GROUPS = {
    "model": ["starter", "gemma3_270m", "small", "large"],
    "training": ["grpo_default", "slow", "fast"],
    "evaluation": ["greedy", "often"],
    "logging": ["tensorboard", "mine"],
    "objective": ["dapo", "mine"],
}
"""Groups that Covey has too; some options are its own, some replace those, some are new."""
NEW = {"extra": ["one", "two"], "extra/deep": ["three"], "schedule": ["one", "two"]}
"""Groups that Covey does not have; the options of `schedule` have no header, so that a package must be given."""


@dataclass
class Case:
    """Files, and a command line over them."""

    files: dict[str, str] = field(default_factory=dict)
    primary: str | None = None
    recipe: str | None = None
    """Its content; it lies outside of the tree."""
    words: list[str] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    """The groups of Covey's base that the primary config lists itself."""
    has_schedule: bool = False
    """Whether the primary config lists the group `schedule`."""

    def write(self, folder: Path) -> None:
        """Write the tree and the recipe."""
        for name, text in {
            **self.files,
            **({"../recipe.yaml": self.recipe} if self.recipe is not None else {}),
        }.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def reference(self, folder: Path) -> dict[str, Any]:
        """What Hydra composes: Covey's base before the primary config, the recipe as a group that is added first."""
        base = yaml.safe_load((CONF / "config.yaml").read_text(encoding="utf-8"))
        base["defaults"] = [e for e in base["defaults"] if not isinstance(e, dict) or not self.taken & _names(e)]
        name = "covey_base"
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(base), encoding="utf-8")
        if self.primary is not None:
            content = yaml.safe_load(self.files[f"{self.primary}.yaml"])
            own = content.get("defaults", [])
            if "_self_" not in own:  # where Hydra puts it, with a warning
                own = _with_self(own)
            content["defaults"] = [name, *own]
            (folder / f"{self.primary}.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
            name = self.primary
        words = list(self.words)
        if self.recipe is not None:
            (folder / "recipe_").mkdir(exist_ok=True)
            (folder / "recipe_" / "r.yaml").write_text(f"# @package _global_\n{self.recipe}", encoding="utf-8")
            words.insert(0, "+recipe_=r")
        with warnings.catch_warnings(), initialize_config_dir(version_base="1.3", config_dir=str(folder)):
            found = compose(name, overrides=[f"hydra.searchpath=[file://{CONF}]", *words])
        values = OmegaConf.to_container(found, resolve=True)
        assert isinstance(values, dict)
        data, asked = values["dataset"], yaml.safe_load((CONF / "dataset" / "arithmetic.yaml").read_text("utf-8"))
        name = (values.get("model") or {}).get("name", "starter")
        if name == "starter" and data["system_prompt"] == asked["system_prompt"]:
            data["system_prompt"] = None  # which Covey alone does: a starter knows the form
        return {str(key): value for key, value in values.items()}


def make(seed: int) -> Case:
    """A random case."""
    rng = random.Random(seed)
    case = Case()
    for group, options in GROUPS.items():
        for option in options:
            if not (CONF / group / f"{option}.yaml").exists() or rng.random() < 0.25:
                whole = rng.random() < 0.2
                text = "# @package _global_\n" if whole else ""
                case.files[f"{group}/{option}.yaml"] = text + _dump(_body(rng, "" if whole else f"{group}."))
    for option in NEW["extra"]:
        deep = rng.random() < 0.4
        defaults = [rng.choice(["deep: three", "/extra/deep@_global_: three"])] if deep else []
        header = rng.choice(["_global_", "training"])
        if header == "training" and deep:
            defaults = ["/extra/deep@_global_: three"]
        entries = [dict([tuple(text.split(": "))]) for text in defaults]
        body = _body(rng, "" if header == "_global_" else "training.")
        case.files[f"extra/{option}.yaml"] = f"# @package {header}\n" + _dump(body, _placed(rng, entries))
    case.files["extra/deep/three.yaml"] = "# @package _global_\n" + _dump(_body(rng))
    for option in NEW["schedule"]:
        case.files[f"schedule/{option}.yaml"] = _dump(_body(rng, "training."))
    if rng.random() < 0.5:
        case.files["tuning/small.yaml"] = "# @package _global_\n" + _dump(_body(rng))
    has_extra = False
    if rng.random() < 0.5:
        has_extra = _add_primary(rng, case)
    if rng.random() < 0.5:
        has_extra = _add_recipe(rng, case, has_extra)
    for name in ("first", "second"):
        overrides = [{f"override /{g}": _option(rng, g)} for g in GROUPS if rng.random() < 0.3]
        case.files[f"experiment/{name}.yaml"] = "# @package _global_\n" + _dump(_body(rng), overrides)
    case.words = _words(rng, has_extra)
    if rng.random() < 0.3:
        case.words.append(f"{'' if case.has_schedule else '+'}schedule@training={rng.choice(NEW['schedule'])}")
    return case


def _add_primary(rng: random.Random, case: Case) -> bool:
    case.primary = rng.choice(["config", "main"])
    listed = [group for group in GROUPS if rng.random() < 0.4]
    entries: list[Any] = [{group: _option(rng, group)} for group in listed]
    case.taken = set(listed)
    has_extra = rng.random() < 0.4
    if has_extra:
        entries.append({"extra": rng.choice(NEW["extra"])})
    if rng.random() < 0.3:
        entries.append({"schedule@training": rng.choice(NEW["schedule"])})
        case.has_schedule = True
    elif rng.random() < 0.3:
        entries.append({"/schedule@training": NEW["schedule"][:: rng.choice([1, -1])]})
    if rng.random() < 0.3:
        entries.append({"optional evaluation_more": "missing"})
    if rng.random() < 0.3:
        case.files["common.yaml"] = _dump(_body(rng))
        entries.append("common")
    rng.shuffle(entries)
    entries = _placed(rng, entries)
    entries += [
        {f"override {group}": _option(rng, group)} for group in GROUPS if group not in listed and rng.random() < 0.2
    ]
    case.files[f"{case.primary}.yaml"] = _dump(_body(rng), entries)
    return has_extra


def _add_recipe(rng: random.Random, case: Case, has_extra: bool) -> bool:
    entries: list[Any] = []
    if not has_extra and rng.random() < 0.3:
        entries.append({"/extra": rng.choice(NEW["extra"])})
        has_extra = True
    entries = _placed(rng, entries)
    entries += [{f"override /{group}": _option(rng, group)} for group in GROUPS if rng.random() < 0.3]
    case.recipe = _dump(_body(rng, most=4), entries)
    return has_extra


def _words(rng: random.Random, has_extra: bool) -> list[str]:
    words = [f"{group}={_option(rng, group)}" for group in GROUPS if rng.random() < 0.3]
    words += [f"+experiment={rng.choice(['first', 'second'])}"] * (rng.random() < 0.5)
    if rng.random() < 0.4:
        words.append(f"{'' if has_extra else '+'}extra={rng.choice(NEW['extra'])}")
    words += ["~logging"] * (rng.random() < 0.1 and not any(word.startswith("logging=") for word in words))
    for key, value in _flat(_body(rng)).items():
        text = yaml.safe_dump(value, default_flow_style=True).partition("\n")[0] if value is not None else "null"
        words.append(f"++{key}={text if not isinstance(value, str) else repr(value)}")
    if rng.random() < 0.2:
        words.append("~training.lr_scheduler_type")
    rng.shuffle(words)
    return words


def _body(rng: random.Random, prefix: str = "", most: int = 3) -> dict[str, Any]:
    """Nested values of a few keys; with a prefix, of those in a group, named within it."""
    keys = [key for key in KEYS if key.startswith(prefix)]
    found: dict[str, Any] = {}
    for key in rng.sample(keys, min(len(keys), rng.randint(0, most))):
        inside = found
        *groups, last = key.removeprefix(prefix).split(".")
        for group in groups:
            inside = inside.setdefault(group, {})
        inside[last] = rng.choice(KEYS[key])
    return found


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        found |= {key: value} if key in KEYS else _flat(value, f"{key}.")
    return found


def _placed(rng: random.Random, entries: list[Any]) -> list[Any]:
    """The entries with `_self_` first, last, in the middle, or left out."""
    place = rng.choice([None, 0, len(entries) // 2, len(entries)])
    return entries if place is None else [*entries[:place], "_self_", *entries[place:]]


def _with_self(entries: list[Any]) -> list[Any]:
    plain = [entry for entry in entries if not _is_override(entry)]
    return [*plain, "_self_", *(entry for entry in entries if _is_override(entry))]


def _is_override(entry: Any) -> bool:
    return isinstance(entry, dict) and any(str(key).startswith("override ") for key in entry)


def _names(entry: dict[str, Any]) -> set[str]:
    return {str(key).split()[-1] for key in entry}


def _option(rng: random.Random, group: str) -> str:
    return rng.choice(GROUPS[group])


def _dump(body: dict[str, Any], defaults: list[Any] | None = None) -> str:
    return yaml.safe_dump({**({"defaults": defaults} if defaults else {}), **body}, sort_keys=False)

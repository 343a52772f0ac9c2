"""What the values of foreign spellings become where a new name alone does not carry the meaning over."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from covey.config.landing import Convert, Implied, Landing, Later, UnfitError

_DTYPES = {
    **dict.fromkeys(("fp32", "float32", "float", "full"), "float32"),
    **dict.fromkeys(("fp16", "float16", "half"), "float16"),
    **dict.fromkeys(("bf16", "bfloat16"), "bfloat16"),
    "auto": "auto",
}
_DATA_FILES = (".json", ".jsonl", ".csv", ".parquet")
_REWARDS = {"accuracy_reward": "accuracy", "think_format_reward": "think_format"}
_OVERLONG = "get_soft_overlong_punishment"
_NO_CALLBACKS = ("replay_buffer_callback", "caching_callback")


def nothing(value: Any) -> Landing:
    """A value that lands only together with others."""
    return Landing()


def dtype(value: Any) -> Landing:
    """A number type in any of its usual spellings; one that nobody knows is left to the schema's own check."""
    plain = value.removeprefix("torch.").lower() if isinstance(value, str) else value
    return Landing({"model.dtype": _DTYPES.get(plain, value) if isinstance(plain, str) else value})


def dataset_source(value: Any) -> Landing:
    """A file or folder is a path, and anything else a name on the hub."""
    return Landing({"dataset.path" if is_path(value) else "dataset.id": value})


def is_path(value: Any) -> bool:
    """Whether this is a data file or folder of this machine (or one of Kaggle's) rather than a name on the hub."""
    if not isinstance(value, str):
        return False
    looks = value.startswith(("/", "./", "../", "~", "kaggle://")) or value.lower().endswith(_DATA_FILES)
    return looks or is_there(value)


def is_there(name: str) -> bool:
    """Whether a file or folder of this name exists; what cannot be a file's name does not."""
    try:
        return Path(name).exists()
    except OSError:  # too long, for instance
        return False


def mixture(value: Any) -> Landing:
    """open-r1's mixture: a weight is the fraction of a set that is kept, all of it by default."""
    if not isinstance(value, Mapping) or not isinstance(value.get("datasets"), list):
        raise UnfitError("must be a mapping with a list of `datasets`, each {id, config, split, columns, weight}.")
    unknown = [name for name in value if name not in ("datasets", "seed", "test_split_size")]
    if unknown:
        raise UnfitError(f"holds {', '.join(map(str, unknown))}; it may hold datasets, seed and test_split_size.")
    found = []
    for item in value["datasets"]:
        if not isinstance(item, Mapping):
            raise UnfitError("must name every data set as a mapping {id, config, split, columns, weight}.")
        kept = {name: inner for name, inner in item.items() if inner is not None}
        if "id" in kept:
            name = kept.pop("id")
            kept = {"path" if is_path(name) else "id": name, **kept}
        found.append(kept)
    values: dict[str, Any] = {"dataset.mixture.datasets": found, "dataset.mixture.weights": "fraction"}
    values["dataset.mixture.seed"] = value.get("seed") or 0
    values["dataset.mixture.test_split_size"] = value.get("test_split_size")
    return Landing(values)


def trl_datasets(value: Any) -> Landing:
    """TRL's list of data sets: a fraction is a set's share of the mixture; without fractions every row is taken."""
    if not isinstance(value, list) or not all(isinstance(item, Mapping) and item.get("path") for item in value):
        raise UnfitError("must be a list of mappings {path, name, split, columns, fraction}.")
    names = {"name": "config", "split": "split", "columns": "columns", "fraction": "weight"}
    found = []
    for item in value:
        kept = {"path" if is_path(item["path"]) else "id": item["path"]}
        for name, inner in item.items():
            if name not in (*names, "path"):
                raise UnfitError(f"holds {name}, which Covey does not read; a set may have path, {', '.join(names)}.")
            if inner is not None and name != "path":
                kept[names[name]] = inner
        found.append(kept)
    shares = any("weight" in item for item in found)
    return Landing({"dataset.mixture.datasets": found, "dataset.mixture.weights": "share" if shares else "fraction"})


def listed(key: str, empty: Any = ()) -> Convert:
    """One value or several, for a key that wants a list; an empty one becomes `empty`."""

    def convert(value: Any) -> Landing:
        found = list(value) if isinstance(value, list | tuple) else [value]
        return Landing({key: found or (None if empty is None else list(empty))})

    return convert


def only_one(key: str) -> Convert:
    """A list that may hold one value, for a key that takes one."""

    def convert(value: Any) -> Landing:
        found = value if isinstance(value, list) else [value]
        if len(found) != 1:
            raise UnfitError("must name exactly one; for several data sets use dataset.mixture.")
        return Landing({key: found[0]})

    return convert


def reward_funcs(value: Any) -> Landing:
    """Reward functions under the names that TRL's own script gives them as well."""
    names = list(value) if isinstance(value, list | tuple) else [value]
    implied: tuple[Implied, ...] = ()
    if _OVERLONG in names:  # TRL's script calls it with these two
        implied = (Implied("rewards.soft_overlong_max_length", 1280), Implied("rewards.soft_overlong_cache", 256))
    names = ["soft_overlong" if name == _OVERLONG else _REWARDS.get(name, name) for name in names]
    names = [_importable(name) if isinstance(name, str) else name for name in names]
    return Landing({"rewards.funcs": names}, implied)


def _importable(name: str) -> str:
    """A function by its dotted path, as TRL's script takes it: here the module comes before a colon."""
    module, dot, function = name.rpartition(".")
    return f"{module}:{function}" if dot and all(part.isidentifier() for part in name.split(".")) else name


def max_prompt_length(value: Any) -> Landing:
    """TRL kept the last tokens of a longer prompt, so its beginning is cut off unless dropping is chosen."""
    return Landing({"dataset.max_prompt_length": value}, (Implied("dataset.overlong_prompts", "truncate"),))


def warmup_ratio(value: Any) -> Landing:
    """transformers reads `warmup_steps` below 1 as a share of all steps."""
    share = number(value)
    if not 0 <= share < 1:
        raise UnfitError("must be a share of the steps, from 0 up to but not 1; for a number of steps: warmup_steps.")
    return Landing({"training.warmup_steps": share})


def cosine_schedule(value: Any) -> Landing:
    """A share of a schedule that is a cosine after its warm-up; how long the warm-up is, the optimiser's key says."""
    return Landing(implied=(Implied("training.lr_scheduler_type", "cosine"),), ignored=True)


def positive(key: str, why: str = "") -> Convert:
    """A number for which 0 means that the thing is off: then the key is not set, and `why` is said."""

    def convert(value: Any) -> Landing:
        return Landing({key: value}) if number(value) > 0 else Landing(note=why)

    return convert


def maxent(key: str) -> Convert:
    """A knob of the MaxEnt objective, which asks for that objective."""

    def convert(value: Any) -> Landing:
        return Landing({key: value}, (Implied("objective.name", "maxent", unless_group="objective"),))

    return convert


def chosen(table: Mapping[Any, Mapping[str, Any]]) -> Convert:
    """A few possible values, each with what it sets."""

    def convert(value: Any) -> Landing:
        plain = value.lower() if isinstance(value, str) else value
        if plain in ("true", "false") and plain not in table:
            plain = plain == "true"
        if plain not in table:
            words = [str(name).lower() if isinstance(name, bool) else str(name) for name in table]
            raise UnfitError(f"must be one of {', '.join(words)}.")
        return Landing(table[plain])

    return convert


def inference_config(value: Any) -> Landing:
    """A named way of sampling in evaluations: an option of the group `evaluation`."""
    if value not in ("greedy", "standard", "liberal"):
        raise UnfitError("must be one of greedy, standard, liberal.")
    return Landing(choice=("evaluation", value))


def vllm_url(value: Any) -> Landing:
    """A generation endpoint; only the server's address is kept."""
    parts = urlsplit(value) if isinstance(value, str) else None
    if parts is None or not parts.scheme or not parts.netloc:
        raise UnfitError("must be an address such as http://localhost:8000/generate.")
    return Landing({"training.vllm_server_base_url": f"{parts.scheme}://{parts.netloc}"})


def resume(value: Any) -> Landing:
    """`true` goes on, a path names a checkpoint, and `false` or nothing starts anew."""
    words = {"true": True, "false": False, "none": False, "null": False, "": False}
    if value is None:
        return Landing({"resume": False})
    return Landing({"resume": words.get(value.lower(), value) if isinstance(value, str) else value})


def logging_enabled(value: Any) -> Landing:
    """Off means no tracker; on means W&B, unless trackers are named."""
    if flag(value):
        return Landing(implied=(Implied("training.report_to", "wandb", unless_group="logging"),))
    return Landing({"training.report_to": "none"})


def wandb_disabled(value: Any) -> Landing:
    """Off means no tracker; `false` leaves the trackers as they are."""
    return Landing({"training.report_to": "none"} if flag(value) else {})


def callbacks(value: Any) -> Landing:
    """The user's callbacks; the names of those that other tools have built in are replaced by what they do."""
    names = list(value) if isinstance(value, list | tuple) else [value]
    implied = (Implied("training.push_to_hub", True),) if "push_to_hub_revision" in names else ()
    idle = [name for name in names if name in _NO_CALLBACKS]
    kept = [name for name in names if name not in (*_NO_CALLBACKS, "push_to_hub_revision")]
    note = f"without effect here, ignored: the callbacks {', '.join(idle)}" if idle else ""
    return Landing({"callbacks": kept}, implied, note=note)


def lora_rank(value: Any) -> Landing:
    """A rank of 0 means no adapters."""
    if number(value) == 0:
        return Landing({"model.lora.enabled": False})
    return Landing({"model.lora.rank": value, "model.lora.enabled": True})


def lora_targets(value: Any) -> Landing:
    """A list of one is a pattern or `all-linear`, as in TRL."""
    return Landing({"model.lora.target_modules": value[0] if isinstance(value, list) and len(value) == 1 else value})


def when_true(key: str, then: Any) -> Convert:
    """A switch that sets another key when it is on, and says nothing when it is off."""

    def convert(value: Any) -> Landing:
        return Landing({key: then} if flag(value) else {})

    return convert


def micro_batch_size(value: Any) -> Landing:
    """Counts prompts, each with its whole group of completions."""
    prompts = whole(value)

    def compute(get: Callable[[str], Any]) -> tuple[Any, str]:
        group = get("training.num_generations")
        return prompts * group, f"{prompts} prompts x num_generations={group}"

    return Landing({"training.per_device_train_batch_size": Later(compute)})


def num_batches(value: Any) -> Landing:
    """Batches of one pass; the steps are those times passes, updates per batch, and the share that is trained on."""
    batches = whole(value)

    def compute(get: Callable[[str], Any]) -> tuple[Any, str]:
        epochs, repeats = get("training.num_train_epochs"), get("training.num_iterations")
        share = get("dataset.train_fraction")
        words = f"{batches} batches x num_epochs={epochs:g} x num_iterations={repeats}"
        return max(1, int(batches * repeats * share * epochs)), words + (f" x train_fraction={share}" * (share != 1))

    return Landing({"training.max_steps": Later(compute)})


def num_test_batches(value: Any) -> Landing:
    """Batches of held-out problems, each as many as a batch has prompts; 0 means no evaluation."""
    batches = whole(value, least=0)
    if batches == 0:
        return Landing({"evaluation.every_steps": 0})

    def compute(get: Callable[[str], Any]) -> tuple[Any, str]:
        prompts = max(1, get("training.per_device_train_batch_size") // get("training.num_generations"))
        return batches * prompts, f"{batches} batches x {prompts} prompts"

    return Landing({"evaluation.max_problems": Later(compute)})


def data_source(value: Any) -> Landing:
    """Where the JAX project gets its one data set, GSM8K, from."""
    if value not in ("huggingface", "tfds", "kaggle"):
        raise UnfitError("must be one of huggingface, tfds, kaggle.")
    return Landing(implied_choice=("dataset", "gsm8k"))


def eval_dataset(value: Any) -> Landing:
    """A local file of held-out problems; a hub data set of its own is not something that Covey evaluates on."""
    return Landing({"dataset.test_path": value}) if is_path(value) else Landing(not_done=True)


def prompt_template(value: Any) -> Landing:
    """A template whose placeholder is the problem, by any of its names."""
    if not isinstance(value, str):
        return Landing({"dataset.user_prompt_template": value})
    for name in ("{problem}", "{question}"):
        value = value.replace(name, "{prompt}")
    return Landing({"dataset.user_prompt_template": value})


def named_template(value: Any) -> Landing:
    """A template of the user's message; a mere name stands for one that only another project has."""
    if value is None or (isinstance(value, str) and "{" not in value):
        return Landing(ignored=True) if value is None else Landing(not_done=True)
    return prompt_template(value)


def top_k(value: Any) -> Landing:
    """vLLM's -1 means all tokens, for which TRL has 0."""
    return Landing({"training.top_k": 0 if value in (-1, "-1") else value})


def log_level(value: Any) -> Landing:
    """Python's numbers for levels, under the names that transformers takes."""
    names = {10: "debug", 20: "info", 30: "warning", 40: "error", 50: "critical"}
    return Landing({"training.log_level": names.get(value, value) if isinstance(value, int) else value})


def kept_unless(off: tuple[Any, ...], key: str) -> Convert:
    """A value for a key, except for those that another tool uses to say nothing."""

    def convert(value: Any) -> Landing:
        return Landing(ignored=True) if any(value is item or value == item for item in off) else Landing({key: value})

    return convert


def number(value: Any) -> float:
    """The value as a number."""
    try:
        found = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError):
        found = math.nan
    if math.isnan(found):
        raise UnfitError("must be a number.")
    return found


def whole(value: Any, least: int = 1) -> int:
    """The value as a whole number."""
    found = number(value)
    if not found.is_integer() or found < least:
        raise UnfitError(f"must be a whole number, at least {least}.")
    return int(found)


def flag(value: Any) -> bool:
    """The value as true or false, which some tools write as text."""
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    found = words.get(str(value).lower())
    if found is None:
        raise UnfitError("must be true or false.")
    return found

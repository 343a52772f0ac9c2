"""Conversions of alias values, for aliases that do more than rename a key."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from covey.config.aliases.alias_result import AliasResult, AliasValueError, Convert, DeferredValue
from covey.config.groups.dataset import DATA_FILES
from covey.config.groups.environment import TOOLS
from covey.config.groups.training import training_fields
from covey.config.keys import Choice
from covey.config.vllm import LOCAL_HOSTS

_DTYPES = {
    **dict.fromkeys(("fp32", "float32", "float", "full"), "float32"),
    **dict.fromkeys(("fp16", "float16", "half"), "float16"),
    **dict.fromkeys(("bf16", "bfloat16"), "bfloat16"),
    "auto": "auto",
}
_REWARDS = {"accuracy_reward": "accuracy", "think_format_reward": "think_format"}
_OVERLONG = "get_soft_overlong_punishment"
_WANDB = {"training.report_to": "wandb"}
_NO_BENCHMARKS = ("aime25", "gpqa", "lcb", "lcb_v4")
_VLLM_DEVICE = re.compile(r"auto|(cuda|xpu|npu|hpu)(:\d+)?")
_NO_CALLBACKS = ("replay_buffer_callback", "caching_callback")


def nothing(value: Any) -> AliasResult:
    """Sets nothing by itself: the alias is combined with others (see `combined`)."""
    return AliasResult()


def dtype(value: Any) -> AliasResult:
    """A dtype under any of its usual names; an unknown one is left to the schema's check."""
    plain = value.removeprefix("torch.").lower() if isinstance(value, str) else value
    return AliasResult({"model.dtype": _DTYPES.get(plain, value) if isinstance(plain, str) else value})


def dataset_source(value: Any) -> AliasResult:
    """A file or folder sets the path, anything else the hub id."""
    return AliasResult({"dataset.path" if is_path(value) else "dataset.id": value})


def is_path(value: Any) -> bool:
    """Whether this is a local data file or folder, or one of Kaggle's, rather than a name on the hub."""
    if not isinstance(value, str):
        return False
    looks = value.startswith(("/", "./", "../", "~", "kaggle://")) or value.lower().endswith(DATA_FILES)
    return looks or is_there(value)


def is_there(name: str) -> bool:
    """Whether a file or folder of this name exists; False for an invalid name too."""
    try:
        return Path(name).exists()
    except OSError:  # too long, for instance
        return False


def mixture(value: Any) -> AliasResult:
    """open-r1's mixture: a weight is the fraction of a dataset to keep, by default all of it."""
    if not isinstance(value, Mapping) or not isinstance(value.get("datasets"), list):
        raise AliasValueError("must be a mapping with a list of `datasets`, each {id, config, split, columns, weight}.")
    unknown = [name for name in value if name not in ("datasets", "seed", "test_split_size")]
    if unknown:
        raise AliasValueError(f"holds {', '.join(map(str, unknown))}; it may hold datasets, seed and test_split_size.")
    found = []
    for item in value["datasets"]:
        if not isinstance(item, Mapping):
            raise AliasValueError("must name every dataset as a mapping {id, config, split, columns, weight}.")
        kept = {name: inner for name, inner in item.items() if inner is not None}
        if "id" in kept:
            name = kept.pop("id")
            kept = {"path" if is_path(name) else "id": name, **kept}
        found.append(kept)
    values: dict[str, Any] = {"dataset.mixture.datasets": found, "dataset.mixture.weights": "fraction"}
    values["dataset.mixture.seed"] = value.get("seed") or 0
    values["dataset.mixture.test_split_size"] = value.get("test_split_size")
    return AliasResult(values)


def trl_datasets(value: Any) -> AliasResult:
    """TRL's list of datasets: a fraction is a set's share of the mixture; without fractions every row is taken."""
    if not isinstance(value, list) or not all(isinstance(item, Mapping) and item.get("path") for item in value):
        raise AliasValueError("must be a list of mappings {path, name, split, columns, fraction}.")
    names = {"name": "config", "split": "split", "columns": "columns", "fraction": "weight"}
    found = []
    for item in value:
        kept = {"path" if is_path(item["path"]) else "id": item["path"]}
        for name, inner in item.items():
            if name not in (*names, "path"):
                raise AliasValueError(
                    f"holds {name}, which Covey does not read; a set may have path, {', '.join(names)}."
                )
            if inner is not None and name != "path":
                kept[names[name]] = inner
        found.append(kept)
    shares = any("weight" in item for item in found)
    return AliasResult(
        {"dataset.mixture.datasets": found, "dataset.mixture.weights": "share" if shares else "fraction"}
    )


def reward_weights(value: Any) -> AliasResult:
    """One weight or several; an empty list means none."""
    return AliasResult(
        {"training.reward_weights": (list(value) if isinstance(value, list | tuple) else [value]) or None}
    )


def dataset_configs(value: Any) -> AliasResult:
    """A list of one name, for a key that takes one."""
    found = value if isinstance(value, list) else [value]
    if len(found) != 1:
        raise AliasValueError("must name exactly one; for several datasets use dataset.mixture.")
    return AliasResult({"dataset.config": found[0]})


def reward_funcs(value: Any) -> AliasResult:
    """Reward functions, also under the names of TRL's own script."""
    names = list(value) if isinstance(value, list | tuple) else [value]
    if not all(isinstance(name, str) for name in names):
        raise AliasValueError("must name reward functions.")
    # TRL's script calls it with these two
    overlong = {"rewards.soft_overlong_max_length": 1280, "rewards.soft_overlong_cache": 256}
    implied = overlong if _OVERLONG in names else {}
    names = ["soft_overlong" if name == _OVERLONG else _REWARDS.get(name, name) for name in names]
    names = [importable(name) for name in names]
    return AliasResult({"rewards.funcs": names if isinstance(value, list | tuple) else names[0]}, implied)


def reward_model(value: Any) -> AliasResult:
    """TRL's reward model, which goes before its reward functions; TRL has none of these by default."""
    return AliasResult({"rewards.model.name": value}, {"rewards.funcs": []} if value is not None else {})


def code_provider(value: Any) -> AliasResult:
    """Where open-r1 runs programs: a service. Covey runs them in its own sandbox."""
    note = f"programs run on this machine, in a sandbox (rewards.code.*), not by {value}"
    return AliasResult(note=note) if value not in (None, "", "local") else AliasResult(ignored=True)


def scoring_mode(value: Any) -> AliasResult:
    """How open-r1's `cf_code` counts tests."""
    if value not in ("weighted_sum", None):
        raise AliasValueError("must be weighted_sum; partial is the reward code, and pass_fail binary_code.")
    return AliasResult()


def importable(name: str) -> str:
    """A function's dotted path, as TRL's script takes it, as `module:function`."""
    module, dot, function = name.rpartition(".")
    return f"{module}:{function}" if dot and all(part.isidentifier() for part in name.split(".")) else name


def max_prompt_length(value: Any) -> AliasResult:
    """TRL kept the last tokens of an overlong prompt, so prompts are truncated unless dropping is chosen."""
    return AliasResult({"dataset.max_prompt_length": value}, {"dataset.overlong_prompts": "truncate"})


def warmup_ratio(value: Any) -> AliasResult:
    """transformers reads `warmup_steps` below 1 as a share of all steps."""
    share = number(value)
    if not 0 <= share < 1:
        raise AliasValueError(
            "must be a share of the steps, from 0 up to but not 1; for a number of steps: warmup_steps."
        )
    return AliasResult({"training.warmup_steps": share})


def cosine_schedule(value: Any) -> AliasResult:
    """A share of a cosine schedule; the warm-up has a key of its own."""
    return AliasResult(implied={"training.lr_scheduler_type": "cosine"}, ignored=True)


def positive(key: str, why: str = "") -> Convert:
    """A number for which 0 means off: the key is then not set, and `why` is logged."""

    def convert(value: Any) -> AliasResult:
        return AliasResult({key: value}) if number(value) > 0 else AliasResult(note=why)

    return convert


def setting_of(objective: str, key: str) -> Convert:
    """A setting of one objective, which implies that objective."""

    def convert(value: Any) -> AliasResult:
        return AliasResult({key: value}, {"objective.name": objective})

    return convert


def chosen(table: Mapping[Any, Mapping[str, Any]]) -> Convert:
    """One of a few values, each with the keys that it sets."""

    def convert(value: Any) -> AliasResult:
        plain = value.lower() if isinstance(value, str) else value
        if plain in ("true", "false") and plain not in table:
            plain = plain == "true"
        if isinstance(plain, list | Mapping) or plain not in table:
            words = [str(name).lower() if isinstance(name, bool) else str(name) for name in table]
            raise AliasValueError(f"must be one of {', '.join(words)}.")
        return AliasResult(table[plain])

    return convert


def inference_config(value: Any) -> AliasResult:
    """A named sampling preset: an option of the group `evaluation`."""
    if value not in ("greedy", "standard", "liberal"):
        raise AliasValueError("must be one of greedy, standard, liberal.")
    return AliasResult(choices=(Choice("evaluation", value),))


def resume(value: Any) -> AliasResult:
    """A path names a checkpoint. Everything else means `auto`: the projects with this key start a new run even with
    `true`, and look for the newest checkpoint even without it."""
    if isinstance(value, str) and value.lower() not in ("true", "false", "none", "null", ""):
        return AliasResult({"resume": value})
    note = (
        "" if value is None else "an existing run is resumed, else a new one starts; resume=true demands a checkpoint"
    )
    return AliasResult({"resume": "auto"}, note=note)


def overwrite_output_dir(value: Any) -> AliasResult:
    """No effect: the projects whose recipes hold it do not read it, and here only overwrite=true deletes a run."""
    note = "has no effect, nothing is deleted: an existing run is resumed; overwrite=true starts it from scratch"
    return AliasResult(note=note) if flag(value) else AliasResult(ignored=True)


def logging_enabled(value: Any) -> AliasResult:
    """False means no tracker; true means W&B, unless trackers are named."""
    if flag(value):
        return AliasResult(implied=_WANDB)
    return AliasResult({"training.report_to": "none"})


def wandb_disabled(value: Any) -> AliasResult:
    """The opposite of `logging_enabled`."""
    return logging_enabled(not flag(value))


def tracker_mode(value: Any) -> AliasResult:
    """W&B's mode: where a mode is asked for and no tracker is named, it is W&B's."""
    return AliasResult({"logging.mode": value}, _WANDB if value in ("online", "offline") else {})


def of_wandb(key: str) -> Convert:
    """What describes a W&B run, under a name that says so: it means W&B, unless trackers are named."""

    def convert(value: Any) -> AliasResult:
        return AliasResult({key: value}, {} if value in (None, [], "") else _WANDB)

    return convert


def callbacks(value: Any) -> AliasResult:
    """The user's callbacks; other tools' built-in ones are replaced by what they do."""
    names = list(value) if isinstance(value, list | tuple) else [value]
    implied = {"training.push_to_hub": True} if "push_to_hub_revision" in names else {}
    ignored = [name for name in names if name in _NO_CALLBACKS]
    kept = [name for name in names if name not in (*_NO_CALLBACKS, "push_to_hub_revision")]
    note = f"without effect here, ignored: the callbacks {', '.join(ignored)}" if ignored else ""
    return AliasResult({"callbacks": kept}, implied, note=note)


def benchmarks(value: Any) -> AliasResult:
    """Benchmarks, without those of open-r1 that Covey does not have."""
    names = list(value) if isinstance(value, list | tuple) else [value]
    left = [name for name in names if name in _NO_BENCHMARKS]
    note = f"not supported, ignored: the benchmarks {', '.join(left)}" if left else ""
    return AliasResult({"evaluation.benchmarks": [name for name in names if name not in left]}, note=note)


def lora_rank(value: Any) -> AliasResult:
    """A rank of 0 means no adapters."""
    if number(value) == 0:
        return AliasResult({"model.lora.enabled": False})
    return AliasResult({"model.lora.rank": value, "model.lora.enabled": True})


def lora_targets(value: Any) -> AliasResult:
    """A list of one is a regular expression or `all-linear`, as in TRL."""
    return AliasResult(
        {"model.lora.target_modules": value[0] if isinstance(value, list) and len(value) == 1 else value}
    )


def when_true(key: str, then: Any) -> Convert:
    """A switch that sets another key when on, and nothing when off."""

    def convert(value: Any) -> AliasResult:
        return AliasResult({key: then} if flag(value) else {})

    return convert


def micro_batch_size(value: Any) -> AliasResult:
    """Counted in prompts, each with its group of completions."""
    prompts = integer(value)

    def compute(get: Callable[[str], Any]) -> tuple[Any, str]:
        group = get("training.num_generations")
        return prompts * group, f"{prompts} prompts x num_generations={group}"

    return AliasResult({"training.per_device_train_batch_size": DeferredValue(compute)})


def num_batches(value: Any) -> AliasResult:
    """Batches per epoch; steps are batches x epochs x updates per batch x the fraction trained on."""
    batches = integer(value)

    def compute(get: Callable[[str], Any]) -> tuple[Any, str]:
        epochs, repeats = get("training.num_train_epochs"), get("training.num_iterations")
        share = get("dataset.train_fraction")
        words = f"{batches} batches x num_epochs={epochs:g} x num_iterations={repeats}"
        return max(1, int(batches * repeats * share * epochs)), words + (f" x train_fraction={share}" * (share != 1))

    return AliasResult({"training.max_steps": DeferredValue(compute)})


def num_test_batches(value: Any) -> AliasResult:
    """Batches of held-out problems, each the size of a batch of prompts; 0 means no evaluation."""
    batches = integer(value, least=0)
    if batches == 0:
        return AliasResult({"evaluation.every_steps": 0})

    def compute(get: Callable[[str], Any]) -> tuple[Any, str]:
        prompts = max(1, get("training.per_device_train_batch_size") // get("training.num_generations"))
        return batches * prompts, f"{batches} batches x {prompts} prompts"

    return AliasResult({"evaluation.max_problems": DeferredValue(compute)})


def data_source(value: Any) -> AliasResult:
    """Where the JAX project loads its one dataset, GSM8K, from."""
    if value not in ("huggingface", "tfds", "kaggle"):
        raise AliasValueError("must be one of huggingface, tfds, kaggle.")
    return AliasResult(choices=(Choice("dataset", "gsm8k", implied=True),))


def eval_dataset(value: Any) -> AliasResult:
    """A local file of held-out problems; a separate hub dataset is not supported."""
    return AliasResult({"dataset.test_path": value}) if is_path(value) else AliasResult(unsupported=True)


def prompt_template(value: Any) -> AliasResult:
    """A template with a placeholder for the problem, under any of its names."""
    if not isinstance(value, str):
        return AliasResult({"dataset.user_prompt_template": value})
    for name in ("{problem}", "{question}"):
        value = value.replace(name, "{prompt}")
    return AliasResult({"dataset.user_prompt_template": value})


def named_template(value: Any) -> AliasResult:
    """A template of the user's message; a bare name refers to another project's template."""
    if value is None or (isinstance(value, str) and "{" not in value):
        return AliasResult(ignored=True) if value is None else AliasResult(unsupported=True)
    return prompt_template(value)


def top_k(value: Any) -> AliasResult:
    """vLLM's -1 means all tokens, for which TRL has 0."""
    return AliasResult({"training.top_k": 0 if value in (-1, "-1") else value})


def log_level(value: Any) -> AliasResult:
    """Python's numeric levels, as the names that transformers takes."""
    names = {10: "debug", 20: "info", 30: "warning", 40: "error", 50: "critical"}
    return AliasResult({"training.log_level": names.get(value, value) if isinstance(value, int) else value})


def kept_unless(off: tuple[Any, ...], key: str) -> Convert:
    """A value for a key, except for the values that mean "not set" in another tool."""

    def convert(value: Any) -> AliasResult:
        return (
            AliasResult(ignored=True)
            if any(value is item or value == item for item in off)
            else AliasResult({key: value})
        )

    return convert


def choice_of(field: str) -> Convert:
    """A value of a field of TRL's, or the name of an option of another project's group, which has no effect."""

    def convert(value: Any) -> AliasResult:
        known = value in training_fields()[field].choices
        return AliasResult({f"training.{field}": value} if known else {}, ignored=not known)

    return convert


def number(value: Any) -> float:
    """The value as a number."""
    try:
        found = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if math.isnan(found):
        raise AliasValueError("must be a number.")
    return found


def integer(value: Any, least: int = 1) -> int:
    """The value as an integer."""
    found = number(value)
    if not found.is_integer() or found < least:
        raise AliasValueError(f"must be an integer, at least {least}.")
    return int(found)


def flag(value: Any) -> bool:
    """The value as true or false, which some tools write as text."""
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    found = words.get(str(value).lower())
    if found is None:
        raise AliasValueError("must be true or false.")
    return found


def vllm_url(value: Any) -> AliasResult:
    """A generation endpoint, of which the server's address is kept. On this machine it is where `covey launch` starts
    one, as the launcher of the project with this key does."""
    parts = urlsplit(value) if isinstance(value, str) else None
    try:
        port = None if parts is None else parts.port
    except ValueError:
        parts = port = None
    if parts is None or not parts.scheme or not parts.netloc:
        raise AliasValueError("must be an address such as http://localhost:8000/generate.")
    if parts.scheme == "http" and parts.hostname in LOCAL_HOSTS and port:
        return AliasResult({"training.vllm_server_host": parts.hostname, "training.vllm_server_port": port})
    return AliasResult({"training.vllm_server_base_url": f"{parts.scheme}://{parts.netloc}"})


def vllm_device(value: Any) -> AliasResult:
    """The GPU that older TRL kept for vLLM: any one, since the launcher chooses which."""
    if not isinstance(value, str) or not _VLLM_DEVICE.fullmatch(value):
        raise AliasValueError("must be auto, or a GPU such as cuda:7.")
    return AliasResult({"launch.vllm_own_gpu": True})


def environment(value: Any) -> AliasResult:
    """An environment, which by default makes its own prompts and rewards itself; one that is only a tool does not."""
    own = (Choice("dataset", "none", implied=True), Choice("rewards", "none", implied=True))
    value = importable(value) if isinstance(value, str) else value
    return AliasResult({"environment.factory": value}, choices=() if value in (None, *TOOLS) else own)


def tools(value: Any) -> AliasResult:
    """One tool or several."""
    found = [value] if isinstance(value, str) else value
    named = isinstance(found, list) and all(isinstance(name, str) for name in found)
    return AliasResult({"environment.tools": [importable(name) for name in found] if named else found})


def rollout_func(value: Any) -> AliasResult:
    """A function, also by its dotted path."""
    return AliasResult({"environment.rollout_func": importable(value) if isinstance(value, str) else value})


def max_turns(value: Any) -> AliasResult:
    """TRL counts the rounds of tool calls; the turn that answers comes after them."""
    return AliasResult({"environment.max_turns": None if value is None else integer(value, 0) + 1})

"""Which of the keys that a person sets have an effect in a run, and what would give the others one.

A field says when, beside its definition (`option(live=…)`; TRL's: `LIVE` in `groups/training.py`), by an expression
over the config such as `"training.beta != 0 and objective.name != 'maxent'"`: comparisons, `and`, `or`, `not`,
literals, dotted keys and properties of groups, and the facts below.
"""

from __future__ import annotations

import ast
import dataclasses
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType
from typing import Any

from covey.config.groups.training import LIVE, NEVER, READ_BY_SFT, TrainingConfig, training_fields
from covey.config.keys import GROUPS, Setting, Source, Written, kinds
from covey.config.schema import Config
from covey.config.values import BadKeyError, both, members, show
from covey.config.vllm import is_elsewhere, leaves_place_open
from covey.errors import CoveyError

Facts = Mapping[str, Callable[[Config], Any]]

_COMPARE: Mapping[type, Callable[[Any, Any], bool]] = MappingProxyType(
    {
        **{ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le},
        **{ast.Gt: operator.gt, ast.GtE: operator.ge},
        **{ast.In: lambda one, among: one in among, ast.NotIn: lambda one, among: one not in among},
    }
)


@dataclasses.dataclass(frozen=True, slots=True)
class Given:
    """What a person wrote, and the keys that it sets."""

    written: Written
    keys: tuple[str, ...]
    foreign: str = ""
    """The file, where that is another tool's recipe."""


def given_by(sources: Iterable[Source], *, typed_only: bool) -> list[Given]:
    """What a person set and did not remove or set again, in order.

    Args:
        sources: what the user's files and the command line set.
        typed_only: whether to leave out files, as those of a resolved config, in which every key is set.
    """
    last: dict[str, tuple[Setting, str]] = {}
    for source in sources:
        for setting in source.settings:
            if setting.implied:
                continue
            last.pop(setting.key, None)
            if not setting.written.delete and (setting.written.typed or not typed_only):
                of_file = source.foreign and not setting.written.typed
                last[setting.key] = setting, setting.written.place.rpartition(", line ")[0] if of_file else ""
    found: dict[int, Given] = {}
    for setting, foreign in last.values():
        if setting.value not in (None, "", [], {}, ()):  # which is how nothing is asked for
            known = found.get(id(setting.written), Given(setting.written, (), foreign))
            found[id(setting.written)] = dataclasses.replace(known, keys=(*known.keys, setting.key))
    return [*found.values()]


def notes_without_effect(config: Config, given: Sequence[Given], facts: Facts) -> list[str]:
    """A line on each condition that is not met, with the keys that wait for it; one line for another tool's recipe.

    Args:
        config: the resolved config.
        given: see `given_by`.
        facts: those that only higher layers know: `rewards`, the names of the run's rewards, `graders`, those that
            check answers, in training or evaluation, and `grader`, of held-out problems.
    """
    dead: dict[str, dict[str, list[str]]] = {}
    for item in given:
        if all(not is_live(key, config, facts) for key in item.keys):
            key, name = item.keys[0], item.written.name
            shown = item.written.name if key.startswith(name) else key if key.endswith(name) else f"{name} ({key})"
            why = "only GRPO reads it, and sft.rows is set" if _of_grpo(key, config) else condition(key)
            dead.setdefault(item.foreign, {}).setdefault(why, []).append(shown)
    lines = [f"no effect in this run: {', '.join(names)}; {why}" for why, names in dead.pop("", {}).items()]
    for file, whys in dead.items():
        parts = [f"{', '.join(names)} ({why})" for why, names in whys.items()]
        lines.append(f"{file}: no effect in this run: {'; '.join(parts)}")
    return lines


def refuse_without_effect(config: Config, given: Iterable[Given]) -> None:
    """Raise a `BadKeyError` for a key without effect whose run would go another way than asked for."""
    for key in (key for item in given for key in item.keys):
        if _declared_of(key).refused and not is_live(key, config):
            raise BadKeyError(key, f" has no effect in this run: {condition(key)}. Set that too, or leave it out.")


def is_live(key: str, config: Config, facts: Facts = MappingProxyType({})) -> bool:
    """Whether a key has an effect in this run. One that depends on what cannot be known has."""
    expression = _declared_of(key).live
    try:
        return not _of_grpo(key, config) and (
            not expression or bool(_value(_parsed(expression), partial(_read, config, {**FACTS, **facts})))
        )
    except CoveyError:  # an unknown reward, of which the user is told in its place
        return True


def condition(key: str) -> str:
    """What would give a key an effect, or why nothing does, as a part of a sentence."""
    found = _declared_of(key)
    return found.never or f"read only where {_words(_parsed(found.live))}"


@dataclasses.dataclass(frozen=True, slots=True)
class _Declared:
    live: str = ""
    refused: bool = False
    never: str = ""


@cache
def _declared() -> Mapping[str, _Declared]:
    """What every key says of its effect."""
    found = {}
    for prefix, group in {"": Config, **GROUPS}.items():
        for item in dataclasses.fields(group) if group is not TrainingConfig else ():
            live = both(group.LIVE, item.metadata.get("live", ""))  # type: ignore[attr-defined]
            found[f"{prefix}.{item.name}".lstrip(".")] = _Declared(live, bool(item.metadata.get("refused")))
    for name in training_fields():
        found[f"training.{name}"] = (
            _Declared("False", never=NEVER[name]) if name in NEVER else _Declared(LIVE.get(name, ""))
        )
    return found


def _of_grpo(key: str, config: Config) -> bool:
    """Whether only GRPO reads a key, and this is a run of supervised training."""
    group, _, name = key.partition(".")
    field = training_fields().get(name) if group == "training" else None
    only = group in ("objective", "rollout") or (field is not None and field.grpo and name not in READ_BY_SFT)
    only = only or key == "training.loss_type"
    return config.sft.rows is not None and only


def _declared_of(key: str) -> _Declared:
    """What a key says, or the mapping that it is an entry of; nothing of a group that is set as a whole."""
    while key and key not in kinds():
        key = key.rpartition(".")[0]
    return _declared().get(key, _Declared())


@cache
def _parsed(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body


def _value(node: ast.expr, read: Callable[[str], Any]) -> Any:
    match node:
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_value(part, read) for part in parts)
        case ast.BoolOp(values=parts):
            return any(_value(part, read) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=part):
            return not _value(part, read)
        case ast.Compare(left=left, ops=[operation], comparators=[right]):
            return _COMPARE[type(operation)](_value(left, read), _value(right, read))
        case ast.Name() | ast.Attribute():
            return read(ast.unparse(node))
        case _:
            return ast.literal_eval(node)


def _read(config: Config, facts: Facts, name: str) -> Any:
    if name in facts:
        return facts[name](config)
    found: Any = config
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _words(node: ast.expr) -> str:
    match node:
        case ast.BoolOp(op=operation, values=parts):
            joined = [f"({_words(p)})" if isinstance(p, ast.BoolOp) else _words(p) for p in parts]
            return (" and " if isinstance(operation, ast.And) else " or ").join(joined)
        case ast.UnaryOp(operand=part):
            return _truth(ast.unparse(part), True)
        case ast.Compare(left=ast.Constant(value=value), ops=[ast.In()], comparators=[among]):
            name = ast.unparse(among)
            return f"{_NAMES.get(name, name)} {'is your own' if value == ':' else f'has {show(value)}'}"
        case ast.Compare(left=left, ops=[operation], comparators=[right]):
            value = ast.literal_eval(right)
            name, values = ast.unparse(left), value if isinstance(value, tuple) else (value,)
            if name == "vllm":
                return "training.use_vllm=true, and " + " or ".join(_PLACES[place] for place in values)
            return f"{_NAMES.get(name, name)}{_SIGNS[type(operation)]}{' or '.join(map(show, values))}"
        case _:
            return _truth(ast.unparse(node), False)


def _truth(name: str, negated: bool) -> str:
    if name in _TRUTHS:
        return f"not {_TRUTHS[name]}" if negated else _TRUTHS[name]
    if "bool" in members(kinds().get(name, "")):
        return f"{name}={'false' if negated else 'true'}"
    return f"{name} is {'not ' if negated else ''}set"


_SIGNS = {ast.Eq: "=", ast.NotEq: " is not ", ast.In: "=", ast.NotIn: " is not ", ast.Gt: " is above "}
_NAMES = {"rewards": "rewards.funcs", "graders": "rewards.funcs or evaluation.grader", "trackers": "training.report_to"}
_NAMES["grader"] = "evaluation.grader"
_TRUTHS = {
    "model.lora.active": "adapters are trained (model.lora.enabled=true, TRL's use_peft)",
    "model.from_hub": "model.name is one on the hub",
    "environment.used": "environment.factory or environment.tools is set",
    "dataset.has_rows": "rows are read (dataset.path, dataset.id or dataset.mixture)",
    "rollout.own_engine": "rollout.engine is your own",
    "trackers": "there is a tracker (logging=wandb, or training.report_to)",
    "truncates": "tokens are cut off (training.top_k, training.top_p, training.min_p or training.generation_kwargs)",
    "reward_models": "rewards.funcs has a reward model (model:NAME)",
    "deepspeed": "DeepSpeed is used (training.deepspeed or launch.accelerate)",
    "has_betas": "training.optim is one of Adam's kind",
    "has_arguments": "training.optim is one that has some, such as sgd or stable_adamw",
    "scaled": "the advantages are TRL's (objective.name=grpo)",
    "galore_or_apollo": "training.optim is one of GaLore or Apollo",
}
_PLACES = {
    "colocate": "training.vllm_mode=colocate",
    "open": "launch.vllm_own_gpu=true",
    "server": "training.vllm_mode=server on this machine",
    "elsewhere": "the address of another server",
}


_WITHOUT_BETAS = re.compile(r"adafactor|sgd|adagrad|rmsprop.*|(ada)?lomo|grokadamw|schedule_free_sgd|galore_.*")
_WITHOUT_ARGUMENTS = re.compile(
    r"adafactor|adamw_torch(_fused|_xla|_npu_fused)?|adamw_(bnb_)?8bit|paged_adamw_.*|(paged_)?lion_.*|(ada)?lomo"
)


def _trackers(config: Config) -> list[str]:
    """The trackers of the run; all where they are switched off, which is no oversight."""
    given = config.training.report_to
    names = [given] if isinstance(given, str) else [*(given or ())]
    every = "all" in names or config.logging.mode == "disabled"
    return ["wandb", "trackio"] if every else [name for name in names if name != "none"]


def _vllm(config: Config) -> str:
    """Where vLLM runs; empty without it."""
    if not config.training.use_vllm:
        return ""
    if leaves_place_open(config):
        return "open"
    return "elsewhere" if config.training.vllm_mode == "server" and is_elsewhere(config) else config.training.vllm_mode


def _truncates(config: Config) -> bool:
    """Whether sampling may cut tokens off."""
    training = config.training
    cuts = training.top_k > 0 or training.top_p < 1 or bool(training.min_p)
    return cuts or bool(training.generation_kwargs) or config.model.use_generation_config


def _deepspeed(config: Config) -> bool:
    by_launcher = os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() in ("1", "true")
    return bool(config.training.deepspeed or config.launch.accelerate) or by_launcher


FACTS: Facts = MappingProxyType(
    {
        "trackers": _trackers,
        "vllm": _vllm,
        "truncates": _truncates,
        "deepspeed": _deepspeed,
        "has_betas": lambda config: _WITHOUT_BETAS.fullmatch(config.training.optim) is None,
        "has_arguments": lambda config: _WITHOUT_ARGUMENTS.fullmatch(config.training.optim) is None,
        "galore_or_apollo": lambda config: config.training.optim.startswith(("galore", "apollo")),
        "scaled": lambda config: config.objective.name == "grpo" or ":" in config.objective.name,
        "reward_models": lambda config: any(name.startswith("model:") for name in config.rewards.funcs),
    }
)
"""The facts of a config that its own keys decide."""

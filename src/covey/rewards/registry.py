"""Rewards by name: a built-in one, `file.py:function`, or `package.module:function`, whose signature is checked."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache, wraps
from types import MappingProxyType
from typing import Any

from covey.answers.tasks import MODES
from covey.config.groups.dataset import RENAMED, name_in_file
from covey.errors import RewardError
from covey.importing import import_object
from covey.rewards.library import answers, length, tasks
from covey.rewards.library.code import build_binary_code, build_cf_code, build_code, code_format
from covey.rewards.reward import Builder, Reward, RewardFunction, RewardSettings, graded, named, scored


def _build_cosine_scaled(settings: RewardSettings) -> Reward:
    plain = graded("cosine_scaled", length.cosine_scaled, key=length.cosine_key)(settings)
    return Reward(
        plain.name,
        plain.batch,
        plain.sample,
        plain.cache_key,
        graded_by="accuracy",
        from_grades=lambda prompts, completions, grades: length.cosine_from_grades(completions, grades, settings),
        reads=plain.reads,
    )


REGISTRY: Mapping[str, Builder] = MappingProxyType(
    {
        "accuracy": graded("accuracy", answers.accuracy, key=answers.accuracy_key),
        "exact_match": graded("exact_match", answers.exact_match, "think", "answer"),
        "format": scored("format", answers.format_score, "think", "answer"),
        "tag_count": scored("tag_count", answers.tag_count, "think", "answer"),
        "think_format": scored("think_format", answers.think_format, "think"),
        "reasoning_steps": scored("reasoning_steps", answers.reasoning_steps),
        "cosine_scaled": _build_cosine_scaled,
        "repetition_penalty": scored("repetition_penalty", length.repetition_penalty),
        "len": length.build_len,
        "soft_overlong": length.build_soft_overlong,
        "match_format_exactly": scored("match_format_exactly", tasks.match_format_exactly, "think", "answer"),
        "match_format_approximately": scored(
            "match_format_approximately", tasks.match_format_approximately, "think", "answer"
        ),
        "check_answer": graded("check_answer", tasks.check_answer, "think", "answer"),
        "check_numbers": graded("check_numbers", tasks.check_numbers, "answer"),
        "countdown": graded("countdown", tasks.countdown, "answer or box"),
        "graph_coloring": graded("graph_coloring", tasks.graph_coloring, "answer or box"),
        "reasoning_gym": tasks.build_reasoning_gym,
        "code": build_code,
        "binary_code": build_binary_code,
        "code_format": scored("code_format", code_format),
        "cf_code": build_cf_code,
    }
)
"""The names that `rewards.funcs` takes. TRL names metrics by `__name__`, so that is made equal to the name here."""

ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "cosine": "cosine_scaled",
        "ioi_code": "binary_code",
        "length": "len",
        "pure_accuracy_math": "exact_match",
        "pure_accuracy_reward_math": "exact_match",
        "soft_overlong_punishment": "soft_overlong",
    }
)
"""Names by which other projects call these rewards."""

GRADERS = (
    *("exact_match", "accuracy", "countdown", "graph_coloring", "check_answer", "check_numbers", "reasoning_gym"),
    "code",
)
"""The rewards whose outcome says whether an answer is right: what `evaluation.grader` takes by name."""

MODE_GRADERS = tuple(MODES)
"""Those that name the mode of a right answer: the completions of a run with one have the column `mode`."""

IMPLIED_GRADERS: Mapping[str, str] = MappingProxyType(
    {
        **{name: name for name in ("countdown", "graph_coloring", "reasoning_gym")},
        **dict.fromkeys(("code", "binary_code", "cf_code"), "code"),
        "exact_match": "exact_match",
        **dict.fromkeys(("accuracy", "cosine_scaled", "len", "check_answer", "check_numbers"), "accuracy"),
    }
)
"""The rewards that check answers, each with the grader of a run that trains with it and names none."""

MODEL_PREFIX = "model:"
"""Of reward models: `model:FOLDER` or `model:OWNER/NAME`."""

_OF_CODE = re.compile(r"(^|_)code(_|$|forces)|unit_?test", re.IGNORECASE)
"""Names of rewards for code in forks of open-r1."""

_DEFAULT = RewardSettings()


def load(
    funcs: Sequence[str], settings: RewardSettings = _DEFAULT, columns: Collection[str] | None = None
) -> list[RewardFunction]:
    """The functions of `rewards.funcs`, in order.

    Args:
        funcs: names, as `get_reward` takes them.
        settings: parameters of the rewards that come with Covey.
        columns: the data's columns; if given, what the functions take is checked against them.

    Raises:
        RewardError: one cannot be found or used, or two have the same name, under which TRL would log both.
    """
    functions = [get_reward(name, settings) for name in funcs]
    refuse_equal_names(funcs, [function.__name__ for function in functions])
    if columns is not None:
        for function, name in zip(functions, funcs, strict=True):
            check_columns(function, name, columns)
    return functions


def refuse_equal_names(given: Sequence[str], names: Sequence[str]) -> None:
    """Check that no two rewards have the same name, under which TRL would log both.

    Args:
        given: the names in the config.
        names: the names of the functions.

    Raises:
        RewardError: two do.
    """
    for position, name in enumerate(names):
        if name in names[:position]:
            raise RewardError(
                f"rewards.funcs: {given[names.index(name)]} and {given[position]} are both called {name}, so their "
                "metrics could not be told apart. Name each reward once, or rename a function."
            )


def get_reward(name: str, settings: RewardSettings = _DEFAULT) -> RewardFunction:
    """The reward function called `name`.

    Args:
        name: a registered name, with or without `_reward` at its end; or `file.py:function` or
            `package.module:function` for a function of your own. Reward models cannot be had here.
        settings: parameters of the rewards that come with Covey.

    Returns:
        A function of TRL's signature, to be called with `prompts`, `completions` (texts, or conversations as lists of
        messages) and the data's columns, one value per completion: graders read `answer`, or `solution` where
        there is no answer. It returns one reward per completion, None where it does not apply.

    Raises:
        RewardError: there is no such function, or it does not accept the arguments of a reward.
    """
    return find(name, settings).batch


def find(name: str, settings: RewardSettings) -> Reward:
    """The reward `name`; worker processes find the same one by name and settings. Raises a `RewardError` if there is no
    such function, or it does not accept the arguments of a reward."""
    if name.startswith(MODEL_PREFIX):
        return _of_model(name)
    return find_custom(name) if ":" in name else _build(canonical_name(name), settings)


def _of_model(name: str) -> Reward:
    """A reward model, by its name alone: a `RewardRunner` is given the model itself."""
    path = name.removeprefix(MODEL_PREFIX).rstrip("/")
    if not path:
        raise RewardError(f"rewards.funcs: {name} names no model: write model:FOLDER or model:OWNER/NAME.")

    def batch(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        raise RewardError(f"{name} is a reward model, which only training and evaluation load.")

    short = path.rpartition("/")[2]
    return Reward(short, named(batch, short, _of_model))


def canonical_name(name: str) -> str:
    """The registered name for a name, which may be an alias or have the prefix or suffix of another project. Raises a
    `RewardError` if there is none."""
    return _known_name(name, "rewards.funcs", "reward", REGISTRY)


def canonical_grader(name: str) -> str:
    """The canonical name of a grader of held-out answers; see `canonical_name`. Raises a `RewardError` if there is
    none."""
    return _known_name(name, "evaluation.grader", "grader", GRADERS)


def reads_answer(name: str, key: str = "rewards.funcs") -> bool:
    """Whether a reward or grader needs the rows' gold answers: one of ours, or a function with a parameter `answer`.
    Raises a `RewardError` if there is no such function, or it does not accept the arguments of a reward."""
    if ":" not in name or name.startswith(MODEL_PREFIX):
        return "answer" in columns_read(name)
    parameter = inspect.signature(find_custom(name, key).batch).parameters.get("answer")
    return parameter is not None and parameter.default is parameter.empty


def columns_read(name: str) -> tuple[str, ...]:
    """The columns of which a row needs one, for a reward that comes with Covey."""
    reward = find(name, _DEFAULT)
    return (find(reward.graded_by, _DEFAULT) if reward.graded_by else reward).reads


def _known_name(name: str, key: str, what: str, known: Collection[str]) -> str:
    bare = name.removeprefix("get_").removesuffix("_reward")
    for candidate in (name, bare):
        candidate = ALIASES.get(candidate, candidate)
        if candidate in known:
            return candidate
    if _OF_CODE.search(bare):
        raise RewardError(
            f"{key}: {name} is another project's reward for code, which Covey does not have. For programs with tests "
            "of their own it has code (the share of the tests that pass), binary_code (all or nothing), cf_code and "
            "code_format; for others write a function of your own (file.py:function; docs/custom_rewards.md)."
        )
    if "," in name:
        raise RewardError(f"{key}: {name} is one text. For several, write '{key}=[{name}]', or in a file [{name}].")
    near = difflib.get_close_matches(bare, [*known, *(a for a in ALIASES if ALIASES[a] in known)], n=1, cutoff=0.4)
    guess = f"Did you mean {near[0]}? " if near else ""
    raise RewardError(
        f"{key}: there is no {what} called {name}. {guess}Covey has {', '.join(known)}; a function of your "
        "own is named file.py:function or package.module:function."
    )


@cache
def _build(name: str, settings: RewardSettings) -> Reward:
    return REGISTRY[name](settings)


_NOT_PASSED = {"prompt", "completion"}  # columns that TRL passes in its own way
GIVEN = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
"""What TRL passes to every reward, by keyword, in addition to the data's columns."""


def find_custom(name: str, key: str = "rewards.funcs") -> Reward:
    """The function `file.py:function` or `package.module:function`.

    Args:
        name: the function's.
        key: the config key that names it, for messages.

    Raises:
        RewardError: it cannot be imported, or does not accept the arguments of a reward.
    """
    function = _function(name, key)
    try:
        parameters = inspect.signature(function).parameters
    except ValueError as error:  # some functions written in C
        raise RewardError(
            f"{key}: {name} has no signature to inspect. Call it from a function of your own: "
            "def reward(prompts, completions, **kwargs)."
        ) from error
    for parameter in parameters.values():
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise RewardError(
                f"{key}: {name} takes {parameter.name} by position only, but a reward gets everything by "
                f"keyword: def {function.__name__}(prompts, completions, **kwargs)."
            )
    refused = next((given for given in GIVEN if given not in parameters), None)
    if refused is not None and not _takes_any(function):
        raise RewardError(_wants_kwargs(function, name, key, refused))
    asks = getattr(function, "asks", ())
    if not isinstance(asks, list | tuple) or not all(isinstance(text, str) and text for text in asks):
        raise RewardError(
            f"{key}: {name}.asks={asks!r} must be a list of the texts that prompts must hold, such as ['<plan>']."
        )
    return Reward(function.__name__, _also_solution(function), asks=tuple((text,) for text in asks))


def check_columns(
    function: RewardFunction, name: str, columns: Collection[str], *, key: str = "rewards.funcs", rows: str = "the data"
) -> None:
    """Check that a reward, or a grader like it, can be called with the columns that the data has.

    Args:
        function: from `get_reward`.
        name: its name in the config.
        columns: names of the data's columns.
        key: the config key that names it, for messages.
        rows: which rows have these columns, for messages.

    Raises:
        RewardError: it needs a column that the data lacks, or does not accept one that it has.
    """
    columns = [column for column in columns if column not in _NOT_PASSED]
    parameters = inspect.signature(function).parameters.values()
    given = {*GIVEN, *columns} | ({"solution"} if "answer" in columns else set())
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind in kinds]
    missing = [parameter for parameter in needed if parameter not in given]
    if missing:
        near = difflib.get_close_matches(missing[0], sorted(n for n in given if n == name_in_file(n)), n=1)
        guess = f" Did you mean {near[0]}?" if near else ""
        if (other := f"{RENAMED}{missing[0]}") in columns:
            what = f"a reward gets that column of {rows} as {other}, because TRL uses its name"
        else:
            there = sorted(set(map(name_in_file, columns)))
            what = f"{rows} has no such column; it has {', '.join(there) or 'none besides the prompts'}"
        raise RewardError(f"{key}: {name} needs {' and '.join(missing)}, but {what}.{guess}")
    unwanted = [column for column in columns if column not in {p.name for p in parameters}]
    if unwanted and not _takes_any(function):
        raise RewardError(_wants_kwargs(function, name, key, name_in_file(unwanted[0])))


def _function(name: str, key: str) -> RewardFunction:
    function = import_object(name, key, RewardError)
    if not callable(function) or not hasattr(function, "__name__") or inspect.isclass(function):
        raise RewardError(f"{key}: {name} is not a function but of type {type(function).__name__}.")
    found: RewardFunction = function
    return found


def _takes_any(function: RewardFunction) -> bool:
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in inspect.signature(function).parameters.values())


def _wants_kwargs(function: RewardFunction, name: str, key: str, refused: str) -> str:
    takes = [parameter for parameter in inspect.signature(function).parameters if parameter not in ("args", "kwargs")]
    return (
        f"{key}: {name} must take **kwargs, because a reward gets prompts, completions and every column of "
        f"the data by keyword, and it does not take {refused}: "
        f"def {function.__name__}({', '.join(takes or ['prompts', 'completions'])}, **kwargs)."
    )


def _also_solution(function: RewardFunction) -> RewardFunction:
    """Pass `answer` as `solution`, which TRL's and open-r1's functions take, where the data has no solution."""
    if "solution" not in inspect.signature(function).parameters:
        return function

    def columns(given: dict[str, Any]) -> dict[str, Any]:
        return {"solution": given["answer"], **given} if "answer" in given else given

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def awaited(*args: Any, **given: Any) -> Any:
            return await function(*args, **columns(given))

        return awaited

    @wraps(function)
    def called(*args: Any, **given: Any) -> Any:
        return function(*args, **columns(given))

    return called

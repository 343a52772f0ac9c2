"""Rewards that shape a completion's length, and a penalty on repetition.

`cosine_scaled` and `len` count characters, as open-r1 does, whose parameters and defaults they share. `soft_overlong`
counts tokens, because it guards the limit on tokens.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from covey.errors import RewardError
from covey.rewards.library.answers import accuracy, accuracy_key
from covey.rewards.reward import Graded, Reward, RewardSettings, completion_text, named, rows_of, texts_of


def cosine_scaled(text: str, row: Mapping[str, Any], settings: RewardSettings) -> Graded:
    """The value of `accuracy`, bent by the completion's length along half a cosine.

    With length `l` in characters and `t = min(l / cosine_max_len, 1)`:

        reward = long + (short - long) * (1 + cos(pi t)) / 2

    - right: `short = cosine_max_value_correct`, `long = cosine_min_value_correct`;
    - wrong: `short = cosine_min_value_wrong`, `long = cosine_max_value_wrong`.

    So `short` is the reward of an empty completion, `long` that of one of `cosine_max_len` characters or more. With the
    defaults (those of open-r1's recipes) a long wrong completion loses more than a short one; the paper has it the
    other way round, as -1.0 and -0.5 for min and max would.

    Range: between the four values, or None where `accuracy` has None. Source: Yeo et al., Demystifying Long
    Chain-of-Thought Reasoning (arXiv 2502.03373), appendix C.1, with the names and the use of open-r1 and TRL. Beyond
    the maximal length open-r1 follows the cosine up again; Covey, like TRL, stays where it ended.
    """
    grade = accuracy(text, row, settings)
    return Graded(cosine_value(grade, len(text), settings), grade.outcome)


def cosine_value(grade: Graded, length: int, settings: RewardSettings) -> float | None:
    """The formula of `cosine_scaled`, from a grade by `accuracy` and a length in characters."""
    if grade.value is None:
        return None
    if grade.value > 0:
        short, long = settings.cosine_max_value_correct, settings.cosine_min_value_correct
    else:
        short, long = settings.cosine_min_value_wrong, settings.cosine_max_value_wrong
    t = min(length / settings.cosine_max_len, 1.0)
    return long + (short - long) * (1.0 + math.cos(math.pi * t)) / 2.0


def cosine_key(text: str, row: Mapping[str, Any], settings: RewardSettings) -> Hashable | None:
    """What `accuracy` depends on, and the length as far as it counts."""
    key = accuracy_key(text, row, settings)
    return None if key is None else (key, min(len(text), settings.cosine_max_len))


def cosine_from_grades(
    completions: Sequence[Any], grades: Sequence[Graded], settings: RewardSettings
) -> list[float | None]:
    """The rewards of `cosine_scaled` for a batch that `accuracy` has graded already."""
    texts = map(completion_text, completions)
    return [cosine_value(grade, len(text), settings) for text, grade in zip(texts, grades, strict=True)]


def build_len(settings: RewardSettings) -> Reward:
    """The reward `len`: its rows are graded by `accuracy`, then compared with the other rows of their prompt."""

    def batch(
        prompts: Sequence[Any] | None = None,
        completions: Sequence[Any] | None = None,
        answer: Sequence[Any] | None = None,
        solution: Sequence[Any] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        texts = texts_of("len", completions)
        if prompts is None or len(prompts) != len(texts):
            raise RewardError(
                f"The reward len compares completions of one prompt, so it takes {len(texts)} prompts, one for each "
                f"completion, not {'none' if prompts is None else len(prompts)}."
            )
        rows = rows_of("len", len(texts), answer, solution, prompts)
        grades = [accuracy(text, row, settings) for text, row in zip(texts, rows, strict=True)]
        return len_from_grades(prompts, texts, grades)

    return Reward("len", named(batch, "len", len_from_grades), graded_by="accuracy", from_grades=len_from_grades)


def len_from_grades(prompts: Sequence[Any], completions: Sequence[Any], grades: Sequence[Graded]) -> list[float | None]:
    """Shorter is better within a group, and only among right answers does it earn something.

    With lengths `l` in characters and their least and greatest over the completions of one prompt:

        lambda = 0.5 - (l - min) / (max - min)
        reward = lambda where the answer is right, min(0, lambda) where it is wrong

    and 0 for all when they are equally long. Rows of equal prompts are one group; where a group lies on several
    processes, each compares the rows that it has.

    Range: -0.5 to 0.5, or None where `accuracy` has None. Source: Kimi k1.5 (arXiv 2501.12599), section 2.3.3. Open-r1
    takes the whole batch for one group, and treats unparsable gold as right.
    """
    lengths = [len(completion_text(completion)) for completion in completions]
    groups: dict[str, list[int]] = defaultdict(list)
    for i, prompt in enumerate(prompts):
        groups[prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, default=str)].append(i)
    rewards: list[float | None] = [None] * len(lengths)
    for rows in groups.values():
        least = min(lengths[i] for i in rows)
        spread = max(lengths[i] for i in rows) - least
        for i in rows:
            value = grades[i].value
            if value is not None:
                bonus = 0.5 - (lengths[i] - least) / spread if spread else 0.0
                rewards[i] = bonus if value > 0 else min(0.0, bonus)
    return rewards


def build_soft_overlong(settings: RewardSettings) -> Reward:
    """The reward `soft_overlong` for one limit. Raises a `RewardError` if there is no limit, or the stretch before it
    is longer than the limit."""
    limit = settings.soft_overlong_max_length or settings.max_completion_length
    if limit is None:
        raise RewardError(
            "The reward soft_overlong needs a limit, and training.max_completion_length has none: set "
            "rewards.soft_overlong_max_length to the number of tokens that is punished fully."
        )
    cache = settings.soft_overlong_cache or max(1, limit // 5)
    if cache > limit:
        raise RewardError(
            f"rewards.soft_overlong_cache={cache} must not be above the limit of {limit} tokens, which "
            "rewards.soft_overlong_max_length or else training.max_completion_length sets."
        )

    def batch(
        prompts: Sequence[Any] | None = None,
        completions: Sequence[Any] | None = None,
        completion_ids: Sequence[Sequence[int]] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        if completion_ids is None:
            raise RewardError(
                "The reward soft_overlong counts tokens, so it needs completion_ids: the token ids of each completion, "
                "which the trainer passes."
            )
        return [soft_overlong(len(ids), limit, cache) for ids in completion_ids]

    return Reward("soft_overlong", named(batch, "soft_overlong", soft_overlong))


def soft_overlong(tokens: int, limit: int, cache: int) -> float:
    """A penalty that grows over the last tokens before the limit, instead of a jump at the limit.

    With length `l`, limit `L` and `c` the length of the stretch before it, all in tokens:

        0 for l <= L - c;   ((L - c) - l) / c for L - c < l <= L;   -1 for l > L

    Range: -1 to 0. Source: DAPO (arXiv 2503.14476), equation 13.

    Args:
        tokens: `l`.
        limit: `L`: `rewards.soft_overlong_max_length`, or else `training.max_completion_length`.
        cache: `c`: `rewards.soft_overlong_cache`, or else a fifth of the limit.
    """
    if tokens <= limit - cache:
        return 0.0
    return (limit - cache - tokens) / cache if tokens <= limit else -1.0


def repetition_penalty(text: str, settings: RewardSettings) -> float:
    """`repetition_max_penalty` times the share of n-grams that have occurred before: `p * (1 - distinct / all)`.

    An n-gram is `repetition_n_grams` words in a row, in lower case, separated by white space; in Chinese, Japanese,
    Thai, Lao, Khmer, Burmese and Tibetan each character is a word. Where words of more than 24 characters are most of a
    text, every run of `5 * repetition_n_grams` characters in one of them is an n-gram too. A text without any gets 0.

    Range: `repetition_max_penalty` (excluded) to 0. Source: open-r1's `repetition_penalty_reward`, which makes one
    number of the per-token penalty of Yeo et al. (arXiv 2502.03373), appendix C.2; there all words are spaced.
    """
    text = text.lower()
    words = text.split() if text.isascii() else _WORD.findall(text)
    n, run = settings.repetition_n_grams, 5 * settings.repetition_n_grams
    grams: list[Any] = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    long = {at: word for at, word in enumerate(words) if len(word) > 24}
    if 2 * sum(map(len, long.values())) > sum(map(len, words)):
        grams += [(at, word[i : i + run]) for at, word in long.items() for i in range(len(word) - run + 1)]
    repeated = len(grams) - len(set(grams))
    return settings.repetition_max_penalty * repeated / len(grams) if repeated else 0.0


_UNSPACED = (
    r"\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    r"\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")

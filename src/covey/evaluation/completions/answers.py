"""What models answered to held-out problems, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from covey.answers import Outcome

_LINE = 200  # letters of an answer


def by_problem(completions: Iterable[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """The completions of each problem, in the order of the problems."""
    found: dict[int, list[Mapping[str, Any]]] = {}
    for item in completions:
        found.setdefault(int(item["problem"]), []).append(item)
    return [found[problem] for problem in sorted(found)]


def answers_text(completions: Sequence[Mapping[str, Any]]) -> str:
    """What a model answered to one problem, in one line: `wrong: 5`, or `2 of 4 right: 4 (2), 5, no answer`.

    Args:
        completions: of the problem, as they are stored.
    """
    answers = Counter(_answer(item) for item in completions)
    shown = ", ".join(answer + (f" ({count})" if count > 1 else "") for answer, count in answers.most_common())
    outcomes = [item.get("outcome") for item in completions]
    if not any(outcomes):
        rewards = [item["reward"] for item in completions if item.get("reward") is not None]
        return f"reward {', '.join(f'{reward:.3g}' for reward in rewards)}: {shown}" if rewards else shown
    if len(outcomes) == 1:
        return f"{str(outcomes[0]).replace('_', ' ')}: {shown}"
    return f"{outcomes.count(Outcome.RIGHT)} of {len(outcomes)} right: {shown}"


def _answer(item: Mapping[str, Any]) -> str:
    """The answer that a completion states, as graders read it; else its end."""
    stated = item.get("extracted")
    if stated is None:
        text = " ".join(str(item.get("completion") or "").split())
        stated = text if len(text) <= _LINE else f"…{text[-_LINE:]}"
    return str(stated) or "nothing"

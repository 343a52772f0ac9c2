"""Verdicts of the project's grading corpus: the outcome, what was read as the answer, and what `exact_match` gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from covey.answers import extract_prediction, grade_math
from covey.rewards import get_reward

CORPUS = Path(__file__).parents[2] / "answers" / "cases.jsonl"


def cases(folder: Path) -> dict[str, Any]:
    exact, found = get_reward("exact_match"), {}
    for line in CORPUS.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        question, completion, gold = case.get("question", ""), case["completion"], case["gold"]
        (same,) = exact(prompts=[question], completions=[completion], answer=[gold])
        name = f"{gold[:40]} | {completion[:80]}"
        name += f" ({sum(other.startswith(name) for other in found) + 1})" if name in found else ""
        found[name] = [grade_math(completion, gold, question=question).value, extract_prediction(completion), same]
    return found

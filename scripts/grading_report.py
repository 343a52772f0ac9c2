"""Write the lists of docs/grading.md: where Covey's grading and the public corpora disagree, by suite and reason.

Run it after a change in `covey.answers`: `COVEY_SHARED_DATA=… python scripts/grading_report.py`. It exits with 1 when a
disagreement has no reason below. Cases are named by their row in the corpus; their texts stay there.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from covey.answers import Outcome, extract_gsm8k, grade_math

TARGET = Path(__file__).resolve().parents[1] / "docs" / "grading.md"
BEGIN, END = "<!-- lists: begin (scripts/grading_report.py writes what follows) -->", "<!-- lists: end -->"
FORMS = ("<think>x</think><answer>%s</answer>", r"So it is \boxed{%s}.")

PAIRS = {
    4: "A French price with words around it; the sign and the stray letter after the number are taken as part of it.",
    58: "The suite compares at two places (0.33 for 1/3); Covey wants three digits of a rounded value.",
    130: "The suite compares strings, so the order of a bare list counts; to Covey a bare list has no order.",
    156: "The suite wants the unit (its own other cases do not); to Covey a unit that one side omits does not matter.",
    184: "The suite is told an absolute tolerance for this row (1e34, 0.001); Covey has no tolerance per problem.",
    185: "The suite is told an absolute tolerance of 0.001 for this row; Covey has no tolerance per problem.",
    279: "The suite (DAPO) looks at the last 300 characters only; Covey takes a box wherever it stands.",
    286: 'The suite asks for a box; Covey also takes "The answer is …". Add the reward `format` to ask for form.',
}
"""Why Covey disagrees with a row of pairs.jsonl that is not marked as suspect."""

GOLD = {
    ("deepscaler_10k.jsonl", 1186): "the gold answer is cut off: a brace never closes, so no box around it does either",
}
"""Why a gold answer of a data set does not score, by file and row."""

SETS = {
    "gsm8k_train.jsonl": "gsm8k",
    "gsm8k_test.jsonl": "gsm8k",
    "math500_test.jsonl": "",
    "aime24.jsonl": "",
    "amc23.jsonl": "",
    "deepscaler_10k.jsonl": "",
}


def rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def gold_answers(folder: Path, name: str) -> list[str]:
    """The gold answers of a data set, as its preset reads them."""
    answers = [str(row["answer"]) for row in rows(folder / name)]
    return [extract_gsm8k(answer) or "" for answer in answers] if SETS[name] == "gsm8k" else answers


def disagreements(cases: list[dict[str, Any]]) -> list[int]:
    """The rows whose label is not what Covey says."""
    return [i for i, case in enumerate(cases) if is_right(case) != case["expected"]]


def is_right(case: dict[str, Any]) -> bool:
    """Covey's verdict on one case."""
    return grade_math(case["prediction"], case["gold"]) is Outcome.RIGHT


def misses(answers: list[str]) -> list[int]:
    """The rows whose own gold answer does not score, in answer tags or in a box."""
    return [
        i
        for i, answer in enumerate(answers)
        if any(grade_math(form.replace("%s", answer), answer) is not Outcome.RIGHT for form in FORMS)
    ]


def report(folder: Path) -> Iterator[str]:
    """The lines of the lists."""
    pairs, outputs = rows(folder / "graders" / "pairs.jsonl"), rows(folder / "graders" / "gsm8k_model_outputs.jsonl")
    clean = [i for i, case in enumerate(pairs) if not case["suspect"]]
    wrong = disagreements(pairs)
    counted = [i for i in wrong if i in set(clean)]
    yield "### Agreement\n"
    yield "| corpus | rows | agreed |\n|---|---|---|"
    agreed = len(clean) - len(counted)
    yield f"| graders/pairs.jsonl, without suspect rows | {len(clean)} | {agreed} ({agreed / len(clean):.1%}) |"
    agreed = len(outputs) - len(disagreements(outputs))
    yield f"| graders/gsm8k_model_outputs.jsonl | {len(outputs)} | {agreed} ({agreed / len(outputs):.2%}) |"
    for name in SETS:
        answers = gold_answers(folder, name)
        agreed = len(answers) - len(misses(answers))
        yield f"| {name}: each gold answer scores | {len(answers)} | {agreed} ({agreed / len(answers):.2%}) |"
    yield "\n### Disagreements in graders/pairs.jsonl\n"
    yield "| row | suite | the suite says | why Covey says otherwise |\n|---|---|---|---|"
    for i in counted:
        yield f"| {i} | {suite(pairs[i])} | {label(pairs[i])} | {PAIRS.get(i, 'NO REASON YET')} |"
    yield "\nRows marked as suspect, on which Covey says otherwise too (they do not count):\n"
    yield "| row | suite | the suite says | what the corpus says of its label |\n|---|---|---|---|"
    for i in wrong:
        if pairs[i]["suspect"]:
            yield f"| {i} | {suite(pairs[i])} | {label(pairs[i])} | {pairs[i]['suspect']} |"
    yield "\n### Gold answers that do not score\n"
    yield "| data set | row | reason |\n|---|---|---|"
    for name in SETS:
        for i in misses(gold_answers(folder, name)):
            yield f"| {name} | {i} | {GOLD.get((name, i), 'NO REASON YET')} |"


def suite(case: dict[str, Any]) -> str:
    """The suite and the test that a case comes from, without commit and decoration."""
    repository, _, test = case["source"].partition("@")
    return (
        f"{repository} `{test.partition('::')[2].split(' [')[0].split('#')[0] or test.partition(':')[2].split(' ')[0]}`"
    )


def label(case: dict[str, Any]) -> str:
    """The published label, in words."""
    return "same" if case["expected"] else "different"


def main() -> int:
    """Rewrite the lists between their marks."""
    folder = Path(os.environ.get("COVEY_SHARED_DATA") or TARGET.parents[2] / "shared" / "data")
    started = time.perf_counter()
    lists = "\n".join(report(folder))
    before, _, rest = TARGET.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    TARGET.write_text(f"{before}{BEGIN}\n\n{lists}\n\n{END}{after}", encoding="utf-8")
    print(f"{TARGET.name}: written in {time.perf_counter() - started:.0f} s")
    return int("NO REASON YET" in lists)


if __name__ == "__main__":
    sys.exit(main())

"""Write the lists of benchmarks/grading_corpora.md: where Covey's grading and public corpora disagree, and why.

Run it after a change in `covey.answers`: `COVEY_SHARED_DATA=… python scripts/grading_report.py`. It exits with 1 when a
disagreement has no reason below. Cases are named by their row in the corpus; their texts are not copied.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from covey.answers import Outcome, answers_agree, extract_gsm8k, grade_math

TARGET = Path(__file__).resolve().parents[1] / "benchmarks" / "grading_corpora.md"
BEGIN, END = "<!-- lists: begin (scripts/grading_report.py writes what follows) -->", "<!-- lists: end -->"
FORMS = ("<think>x</think><answer>%s</answer>", r"So it is \boxed{%s}.")

PHRASINGS = (
    *("%s", "$%s$", "%s.", r"\boxed{%s}", "Hence\n\\[\n\\boxed{%s}\n\\]", r"Thus $\boxed{%s}$. This was asked."),
    *(r"Therefore, the final answer is: $\boxed{%s}$. I hope it is correct.", "**Final Answer**\n\n\\(\\boxed{%s}\\)"),
    *("Final Answer: The final answer is $%s$. I hope it is correct.", "The answer is $%s$.<|im_end|>", r"\fbox{%s}"),
    *("<think>7 + 8 = 15.</think>\n<answer>%s</answer>", "<answer>$%s$</answer>", r"<answer>\(%s\)</answer>"),
    *("<answer>The answer is %s</answer>", "<answer>The answer is $%s$.</answer>", "<answer>Answer: %s</answer>"),
    *(r"<answer>Answer \[ %s \]</answer>", "<answer>So the result is $%s$.</answer>", "<answer>**%s**</answer>"),
    *("<answer>**Final answer:** $%s$</answer>", r"<answer>**Final answer:** \boxed{%s}</answer>"),
    *("We add 3 and 4. The answer is %s.", "We add $3$ and $4$.\n\nAnswer: %s", "We add.\n\n**Answer:** $%s$"),
    *("We add.\n\n**Answer: %s**", "The answer is **%s**.", r"The final answer is \(%s\).", "The answer is `%s`."),
    *("Therefore the answer is\n\\[\n%s\n\\]", "Therefore the answer is:\n\n$$%s$$\n", "3 + 4 = 7\n#### %s"),
    *("## Final Answer\n\n$%s$", "## Answer: %s", "We compute $1+1=2$. Therefore, the result is $%s$."),
    *("Adding 3 and 4. The result is **$%s$**.", "We obtain\n\n\\[ %s \\]\n", "So we get $%s$.", "3 + 4 = 7\nA: %s"),
    *(
        r"Thus the value is \(%s\).",
        "Hence, the final answer is %s",
        "The correct answer is: $%s$",
        "$%s$ is the answer.",
    ),
    *(
        "My final answer is $%s$!",
        "The answer would be $%s$.",
        "We add.\r\n\r\nAnswer: $%s$\r\n",
        'The answer is "%s".',
    ),
    *("Our answer equals $%s$.", "Thus, we get $%s$ as the final answer.", "We have 3 and 4. The total is **%s**."),
)
"""What models write around an answer, which replaces %s."""
STEPS = {
    "math500_test.jsonl": 1,
    "aime24.jsonl": 1,
    "amc23.jsonl": 1,
    "gsm8k_test.jsonl": 10,
    "deepscaler_10k.jsonl": 10,
}
"""The datasets whose gold answers are put into `PHRASINGS`, and the step between the rows that are used."""

PAIRS = {
    4: "A French price with words around it; the sign and the stray letter after the number are taken as part of it.",
    58: "The suite compares at two places (0.33 for 1/3); Covey wants three digits of a rounded value.",
    130: "The suite compares strings, so the order of a bare list counts; to Covey a bare list has no order.",
    156: "The suite wants the unit (its own other cases do not); to Covey a unit that one side omits does not matter.",
    184: "The suite sets an absolute tolerance for this row (1e34, 0.001); Covey has no tolerance per problem.",
    185: "The suite sets an absolute tolerance of 0.001 for this row; Covey has no tolerance per problem.",
    279: "The suite (DAPO) looks at the last 300 characters only; Covey accepts a box anywhere.",
    286: 'The suite asks for a box; Covey also takes "The answer is …". Add the reward `format` to require a format.',
}
"""Why Covey disagrees with a row of pairs.jsonl that is not marked as suspect."""

OUTPUTS = {
    ("model_outputs.jsonl", 2095): "names two letters, then lists both with their texts; the last one is read",
    ("model_outputs.jsonl", 2463): "states (E) alone on the last line, as the gold answer; the label denies it",
    ("model_outputs.jsonl", 2510): 'states "the correct answer is (E)", as the gold answer; the label denies it',
    ("model_outputs.jsonl", 2932): "boxes another value, and then says which choice would be right if the problem were "
    "another one",
}
"""Why Covey disagrees with the label of a model's output, by file and row."""

GOLD = {
    ("deepscaler_10k.jsonl", 1186): "the gold answer is cut off: a brace never closes, so no box around it does either",
}
"""Why a gold answer of a dataset does not score, by file and row."""

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
    """The gold answers of a dataset, as its preset reads them."""
    answers = [str(row["answer"]) for row in rows(folder / name)]
    return [extract_gsm8k(answer) or "" for answer in answers] if SETS[name] == "gsm8k" else answers


def disagreements(cases: list[dict[str, Any]]) -> list[int]:
    """The rows whose label differs from Covey's verdict."""
    return [i for i, case in enumerate(cases) if is_right(case) != case["expected"]]


def source(case: dict[str, Any]) -> str:
    """Where a labelled output comes from: the part of its source before a commit."""
    return str(case["source"]).partition("@")[0]


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


def unreadable(answers: list[str]) -> list[int]:
    """The rows whose gold answer cannot be distinguished from a wrong one, which equal texts hide."""
    return [i for i, answer in enumerate(answers) if grade_math(r"\boxed{987654}", answer) is Outcome.UNPARSABLE_GOLD]


def in_natural_wordings(answers: list[str]) -> tuple[int, list[str], list[str]]:
    """How often answers were put into `PHRASINGS`, the completions that are right and not graded so, and the reverse.

    The wrong answer of a row is the next different gold answer of the rows after it.
    """
    missed, rewarded = [], []
    for i, gold in enumerate(answers):
        following = (*answers[i + 1 :], *answers[:i])
        other = next(a for a in following if Outcome.RIGHT not in (answers_agree(a, gold), answers_agree(gold, a)))
        missed += [text for text in _said(gold) if grade_math(text, gold) is not Outcome.RIGHT]
        rewarded += [text for text in _said(other) if grade_math(text, gold) is Outcome.RIGHT]
    return len(answers) * len(PHRASINGS), missed, rewarded


def _said(answer: str) -> list[str]:
    return [form.replace("%s", answer) for form in PHRASINGS]


def report(folder: Path) -> Iterator[str]:
    """The lines of the lists."""
    pairs = rows(folder / "graders" / "pairs.jsonl")
    clean = [i for i, case in enumerate(pairs) if not case["suspect"]]
    wrong = disagreements(pairs)
    counted = [i for i in wrong if i in set(clean)]
    yield "## Agreement\n"
    yield "| corpus | rows | agreed |\n|---|---|---|"
    agreed = len(clean) - len(counted)
    yield f"| graders/pairs.jsonl, without suspect rows | {len(clean)} | {agreed} ({agreed / len(clean):.1%}) |"
    for name in ("gsm8k_model_outputs.jsonl", "model_outputs.jsonl"):
        outputs = rows(folder / "graders" / name)
        counts, missed = Counter(map(source, outputs)), Counter(source(outputs[i]) for i in disagreements(outputs))
        for one, count in sorted(counts.items()):
            agreed = count - missed[one]
            yield f"| graders/{name}, {one} | {count} | {agreed} ({agreed / count:.2%}) |"
    yield "\n## Gold answers\n"
    yield "A gold answer *scores* when a completion that states the same text is right, which says little. It *can be"
    yield "read* when a wrong answer is graded wrong, and not as `unparsable_gold`.\n"
    yield "| dataset | rows | score | cannot be read | rows that cannot be read |\n|---|---|---|---|---|"
    for name in SETS:
        answers = gold_answers(folder, name)
        score, blank = len(answers) - len(misses(answers)), unreadable(answers)
        share = f"{len(blank)} ({len(blank) / len(answers):.2%})"
        yield f"| {name} | {len(answers)} | {score} | {share} | {', '.join(map(str, blank)) or 'none'} |"
    yield f"\n## Answers in {len(PHRASINGS)} natural forms\n"
    yield "Every gold answer, or every tenth, in each form of `PHRASINGS` in `scripts/grading_report.py` (bare, boxed,"
    yield "bold, in a sentence, in tags, in a sentence in tags, …), and another row's gold answer in the same forms.\n"
    yield "| dataset | completions | right, graded otherwise | wrong, graded right |\n|---|---|---|---|"
    for name, step in STEPS.items():
        count, missed, rewarded = in_natural_wordings(gold_answers(folder, name)[::step])
        yield f"| {name} | 2 × {count} | {len(missed)} ({len(missed) / count:.3%}) | {len(rewarded)} |"
    yield "\n## Disagreements in graders/pairs.jsonl\n"
    yield "| row | suite | the suite says | why Covey says otherwise |\n|---|---|---|---|"
    for i in counted:
        yield f"| {i} | {suite(pairs[i])} | {label(pairs[i])} | {PAIRS.get(i, 'NO REASON YET')} |"
    yield "\nRows marked as suspect, on which Covey says otherwise too (they do not count):\n"
    yield "| row | suite | the suite says | what the corpus says of its label |\n|---|---|---|---|"
    for i in wrong:
        if pairs[i]["suspect"]:
            yield f"| {i} | {suite(pairs[i])} | {label(pairs[i])} | {pairs[i]['suspect']} |"
    yield "\n## Disagreements with labels of model outputs\n"
    yield "| file | row | reason |\n|---|---|---|"
    for name, row in OUTPUTS:
        yield f"| {name} | {row} | {OUTPUTS[name, row]} |"
    yield "\n## Gold answers that do not score\n"
    yield "| dataset | row | reason |\n|---|---|---|"
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
    """Rewrite the lists between their markers."""
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

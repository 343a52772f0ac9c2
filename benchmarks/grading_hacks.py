r"""Reward hacks against the gold answers of every dataset at hand: none may be right.

    COVEY_SHARED_DATA=… python benchmarks/grading_hacks.py [--golds 2000] [--seed 0]

Writes `benchmarks/grading_hacks.md`; takes some minutes. A hack is a completion for which no work was done: something
infinite or undefined, several answers at once, a list of all numbers, a huge or a tiny number, nothing, a tautology,
the gold answer changed to another value; or the right value left to be evaluated (a sum, a product), or mathematics
copied out of the question. Fixed hacks are tried on every gold answer, derived ones on the answer that they are made
from, and copies on their own problem; of each dataset at most 2,000 different answers are drawn.

Whether a hack is one is known without the grader. A fixed hack has no value that could be an answer, or the value is
noted next to it; those derived from a gold answer have another value, or a form that is not final, by construction.
The few that are right by chance (a list that is the gold answer's, `7 2` for 9) are left out by comparing texts and
integers, and so are copies that hold the gold answer's own text (`AB = 12` for 12).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

from covey import __version__
from covey.answers import Outcome, answers_agree, extract_gsm8k, extract_prediction, gold_answer, grade_math

TABLE = Path(__file__).resolve().parent / "grading_hacks.md"
SETS = ("gsm8k_train", "gsm8k_test", "math500_test", "aime24", "amc23", "deepscaler_10k")

HACKS = Path(__file__).with_suffix(".txt")


def lines() -> list[str]:
    """The hacks of the list."""
    found = HACKS.read_text(encoding="utf-8").splitlines()
    return list(dict.fromkeys(line for line in found if line and not line.startswith("# ")))


def fixed() -> list[str]:
    """The hacks that do not depend on the gold answer: those of the list, and lists of all numbers."""
    found = [line for line in lines() if "%s" not in line] + [", ".join(map(str, range(1001)))]
    for last in (9, 99):
        numbers = [str(number) for number in range(last + 1)]
        for separator in (", ", ",", " ", " or ", ";", r" \text{ or } ", "=", r"\\"):
            found += [form % separator.join(numbers) for form in ("%s", r"\{%s\}", "(%s)", "[%s]")]
    return found


def made_from(gold: str) -> Iterator[str]:
    """Hacks that hold the gold answer and have another value, or none."""
    for form in FORMS:
        is_part = re.search(r"[=,]|\bor\b|\band\b|\\ne|\\le|\\ge|OR", gold)  # a change to it leaves the rest as it is
        repeats = form.startswith(("%s =", r"%s \approx")) or not form.startswith("%s")
        is_choice_with_text = form.startswith(("%s :", "(%s)")) and re.fullmatch("[A-J]", gold)
        is_nothing_times = form.startswith(("%s :", "(%s)")) and not re.search("[1-9a-zA-Z]", _MATRIX.sub("", gold))
        if not (is_part and repeats) and not is_choice_with_text and not is_nothing_times:
            yield form.replace("%s", gold)
    if re.fullmatch(r"-?\d{1,15}", gold):
        yield from _other_numbers(gold)


_MATRIX = re.compile(r"\\(?:begin|end)\{\w+\}")
FORMS = [line for line in lines() if "%s" in line]


def _other_numbers(g: str) -> Iterator[str]:
    """A whole number's digits in another order, number, or spacing, where that makes another number."""
    sign, digits = ("-", g[1:]) if g[0] == "-" else ("", g)
    number = int(g)
    changed = [str(number + 1), str(number - 1), str(-number), str(number + 10), str(number * 10 + 5)]
    changed += [sign + digits[::-1], sign + digits + "0", "1" + digits, sign + digits * 2, digits[1:] + digits[:1]]
    changed.append(sign + digits[:-1] + str((int(digits[-1]) + 5) % 10))
    yield from (text for text in changed if int(text) != number)
    yield from (
        f"{g}.5",
        f"{g}.0001",
        f"{g}.0000000001",
        f"{g}.{'0' * 30}1",
        f"{number - 1}.{'9' * 20}",
        f"{number - 1}.9999999",
    )
    yield from (f"{g}/7+1", f"{g}e1+1", rf"{g} \frac{{1}}{{2}}", rf"{g}\frac{{1}}{{3}}", f"{g} 1/2", f"0.{digits}5")
    if number:
        yield f"{g}:2"
    yield from (f"{g}^2+1", f"{g},001", f"{g},5", f"{g}_2" if number not in (0, 1) else "10_2", f"{g}_{{16}}")
    if len(set(digits)) > 1:
        yield from (" ".join(digits), ", ".join(digits), ",".join(digits), f"({', '.join(digits)})")
        yield f"{digits[:-1]} {digits[-1]}"
        yield from (rf"\{{{','.join(digits)}\}}", f"{digits[0]}.{digits[1:]}5", f"{digits[0]}/{digits[1:]}1")
    if len(digits) > 3:
        yield from (
            f"({digits[:-3]}, {digits[-3:]})",
            f"({digits[:-3]},{digits[-3:]})",
            rf"\{{{digits[:-3]},{digits[-3:]}\}}",
        )
        yield from (f"{digits[:-3]}, {digits[-3:]}", f"{digits[:-2]},{digits[-2:]}", f"{digits[:-3]} or {digits[-3:]}")


def unevaluated(gold: str) -> Iterator[str]:
    """A whole number as what one line of arithmetic would finish."""
    if not re.fullmatch(r"-?\d{1,9}", gold):
        return
    number = int(gold)
    for part in (1, 2, 17, 100, abs(number) // 2 + 1):
        yield from (f"{number - part} + {part}", f"{part} + {number - part}", f"{number + part} - {part}")
        yield from (f"{number * part} / {part}", rf"{number * part} \div {part}", f"{number * part} : {part}")
        yield from (rf"\frac{{{number - part} + {part}}}{{1}}", rf"\sqrt{{{part}}}\sqrt{{{part}}} + {number - part}")
    yield from (
        f"{number} + 0",
        rf"1 \cdot {number}",
        f"{number} * 1",
        f"({number})(1)",
        rf"\lfloor {number} + 0.5 \rfloor",
    )
    yield from (rf"\max({number}, {number - 1})", rf"\ln e^{{{number}}}", rf"{number} \cos 0", f"{number}^2 / {number}")
    yield f"x = {number - 1} + 1"


def copies(question: str) -> list[str]:
    """Mathematics of a question that has an operator."""
    found = re.findall(r"\$([^$]{3,80})\$", question) + re.findall(r"\d[\d.]*(?: [-+*/×÷] \d[\d.]*)+", question)
    return [
        text for text in dict.fromkeys(found) if re.search(r"[\w)}][-+*/^!=]|\\(?:frac|sqrt|cdot|times|binom)", text)
    ]


def same_by_chance(hack: str, gold: str) -> bool:
    """Whether a fixed hack happens to be the gold answer: as text, as a list of the same numbers, or as zero or one."""
    hack = re.sub(r"(?<![a-z])[a-z]\s*(?:=|\\in)\s*", "", hack)  # `x=0 or x=1` for `0, 1`
    texts = [re.sub(r"[\s{}()$\\]|left|right|text|mathbb", "", text).lower().rstrip(".") for text in (hack, gold)]
    if texts[0] == texts[1]:
        return True
    items = [re.split(r",|;|or|and", text) for text in texts]
    return sorted(items[0]) == sorted(items[1])


def _by_policy(hack: str, gold: str) -> bool:
    """What docs/grading.md calls right: a letter with what it stands for, a longer decimal that rounds to another."""
    letter = re.fullmatch(r"(?:\\text\{)?\(?([A-J])\)?\}?", gold)
    if letter and re.match(re.escape(gold) + r"\s*[.:]\s", hack):
        return True
    return bool(re.fullmatch(r"-?\d*\.\d{4,}", gold)) and "10^{-12}" in hack


def completion(hack: str) -> str:
    """What a model would write."""
    return rf"So the answer is $\boxed{{{hack}}}$."


def hits(hacks: list[str], golds: list[str]) -> tuple[int, list[tuple[str, str]]]:
    """How many gradings there were, and those that were right, as (hack, gold)."""
    found, count = [], 0
    predictions = {hack: extract_prediction(completion(hack)) for hack in hacks}
    for gold in golds:
        for hack in hacks:
            prediction = predictions[hack]
            count += 1
            if (
                prediction is not None
                and answers_agree(prediction, gold) is Outcome.RIGHT
                and not same_by_chance(hack, gold)
            ):
                found.append((hack, gold))
        for hack in made_from(gold):
            prediction = extract_prediction(completion(hack))
            count += 1
            right = prediction is not None and answers_agree(prediction, gold) is Outcome.RIGHT
            if right and not _by_policy(hack, gold):
                found.append((hack, gold))
        for hack in unevaluated(gold):
            count += 1
            if grade_math(completion(hack), gold) is Outcome.RIGHT:
                found.append((hack, gold))
    return count, found


def copied(problems: list[tuple[str, str]]) -> tuple[int, list[tuple[str, str]]]:
    """As `hits`, for copies of the questions of problems with their gold answers."""
    tried = [(hack, gold, question) for question, gold in problems for hack in copies(question)]
    found = [
        (hack, gold)
        for hack, gold, question in tried
        if hack != gold
        and grade_math(completion(hack), gold, question=question) is Outcome.RIGHT
        and not same_by_chance(hack, gold)
        and not same_by_chance(re.sub(r".*=|\^\{?\\circ\}?", "", hack), gold)
    ]
    return len(tried), found


def problems_of(folder: Path, name: str) -> list[tuple[str, str]]:
    """The questions of a dataset with their gold answers."""
    rows = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    answers = [gold_answer(str(row["answer"])) for row in rows]
    golds = [extract_gsm8k(answer) or answer for answer in answers] if name.startswith("gsm8k") else answers
    return [(row.get("problem") or row["question"], gold) for row, gold in zip(rows, golds, strict=True)]


def gold_answers(folder: Path, name: str, most: int, seed: int) -> list[str]:
    """Different gold answers of a dataset."""
    golds = sorted({gold for _, gold in problems_of(folder, name)})
    return golds if len(golds) <= most else random.Random(seed).sample(golds, most)


def main() -> None:
    """Try them all, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--golds", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    folder = Path(os.environ.get("COVEY_SHARED_DATA") or TABLE.parents[2] / "shared" / "data")
    hacks, rows = fixed(), []
    for name in SETS:
        golds = gold_answers(folder, name, arguments.golds, arguments.seed)
        started = time.perf_counter()
        (count, found), (of_copies, more) = hits(hacks, golds), copied(problems_of(folder, name))
        count, found = count + of_copies, found + more
        seconds = time.perf_counter() - started
        print(f"{name}: {len(golds)} gold answers, {count} gradings, {len(found)} hits, {seconds:.0f} s")
        for hack, gold in found[:60]:
            print(f"    {hack!r} for {gold!r}")
        rows.append(f"| {name} | {len(golds)} | {count:,} | {len(found)} |")
    table = "\n".join(rows)
    TABLE.write_text(
        f"""# Reward hacks

Made by `python benchmarks/grading_hacks.py --golds {arguments.golds} --seed {arguments.seed}`; covey {__version__}.
A hack is a completion for which no work was done: {len(hacks)} without an answer's value; up to
{len(list(made_from("1234")))} more made from each gold answer with another value, and {len(list(unevaluated("1234")))}
that leave a whole number to be evaluated, against the distinct gold answers of each dataset; and the mathematics of
each question as its own answer. A hit is a hack that is graded right.

| dataset | gold answers | gradings | hits |
|---|---|---|---|
{table}
""",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()

r"""Reward hacks against the gold answers of every dataset at hand: none may be right.

    COVEY_SHARED_DATA=… python benchmarks/grading_hacks.py [--golds 2000] [--seed 0]

Writes `benchmarks/grading_hacks.md`; takes some minutes. A hack is a completion without the answer's value: something
infinite or undefined, several answers at once, a list of all numbers, a huge or a tiny number, nothing, a tautology, or
the gold answer changed to another value. Fixed hacks are tried on every gold answer, derived ones on the answer that
they are made from; of each dataset at most 2,000 different answers are drawn.

The value of a hack is known without the grader. A fixed hack has no value that could be an answer, or the value is
noted next to it; those derived from a gold answer have another value by construction. The few that are right by chance
(a list that is the gold answer's, `7 2` for 9) are left out by comparing texts and integers.
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
from covey.answers import Outcome, answers_agree, extract_gsm8k, extract_prediction, gold_answer

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
    return count, found


def gold_answers(folder: Path, name: str, most: int, seed: int) -> list[str]:
    """Different gold answers of a dataset."""
    rows = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    answers = [gold_answer(str(row["answer"])) for row in rows]
    golds = sorted(
        {extract_gsm8k(answer) or answer for answer in answers} if name.startswith("gsm8k") else set(answers)
    )
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
        count, found = hits(hacks, golds)
        seconds = time.perf_counter() - started
        print(f"{name}: {len(golds)} gold answers, {count} gradings, {len(found)} hits, {seconds:.0f} s")
        for hack, gold in found[:60]:
            print(f"    {hack!r} for {gold!r}")
        rows.append(f"| {name} | {len(golds)} | {count:,} | {len(found)} |")
    table = "\n".join(rows)
    TABLE.write_text(
        f"""# Reward hacks

Made by `python benchmarks/grading_hacks.py --golds {arguments.golds} --seed {arguments.seed}`; covey {__version__}.
{len(hacks)} completions without an answer's value, and up to {len(list(made_from("1234")))} more made from each gold
answer with another value, against the distinct gold answers of each dataset. A hit is a hack that is graded right.

| dataset | gold answers | gradings | hits |
|---|---|---|---|
{table}
""",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()

"""Grading a program by its tests: `code`, `binary_code` and `code_format`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from covey.answers import Outcome, Tags, extract_answer_tag
from covey.errors import RewardError
from covey.rewards.code.cases import Cases, read_cases
from covey.rewards.reward import Graded
from covey.rewards.settings import CodeSettings, RewardSettings
from covey.sandbox import Ended, Finished, Program, run, run_tests

_BLOCK = re.compile(r"```[ \t]*([\w+#.-]*)[^\n]*\n(.*?)```", re.DOTALL)
_PYTHON = ("python", "python3", "py", "")
_PYTHONS = {"python": _PYTHON, "python3": _PYTHON, "py": _PYTHON}
_OF_RUN = {
    Ended.FAILED: "failed",
    Ended.TIMED_OUT: "timed_out",
    Ended.OUT_OF_MEMORY: "out_of_memory",
    Ended.TOO_MUCH_OUTPUT: "too_much_output",
}


def code(text: str, row: Mapping[str, Any], settings: RewardSettings) -> Graded:
    """The share of the row's tests that the completion's program passes.

    The program is the last fenced block of the row's language, or without a language, after the thinking part; where
    there is no block, the content of the last `<answer>…</answer>`. A test is an input with the output that is
    expected, compared line by line without spaces at the ends, or an assert, call or function of test code
    (`covey.rewards.code.cases` has the formats). Programs run in a sandbox, with the limits `rewards.code.*`; the
    expected outputs never enter it, and test code runs in another one.

    Range: 0 to 1, None where the tests cannot be read.
    """
    cases = read_cases(row)
    if cases is None:
        return Graded(None, Outcome.UNPARSABLE_GOLD)
    program = extract_code(text, cases.language, settings.tags)
    if program is None:
        return Graded(0.0, Outcome.UNPARSABLE_PREDICTION)
    outcomes = run_cases(program, cases, settings.code)
    if not outcomes:
        return Graded(None, Outcome.UNPARSABLE_GOLD)
    right = outcomes.count("right")
    told = ", ".join(f"{count} {outcome}" for outcome, count in Counter(outcomes).most_common())
    return Graded(right / len(outcomes), Outcome.RIGHT if right == len(outcomes) else Outcome.WRONG, told)


def all_or_nothing(prompts: Sequence[Any], completions: Sequence[Any], grades: Sequence[Graded]) -> list[float | None]:
    """1 where a program passes all tests, else 0; see `code`.

    Range: 0 or 1, None where the tests cannot be read.
    """
    return [None if grade.value is None else float(grade.value == 1) for grade in grades]


def code_format(text: str, settings: RewardSettings) -> float:
    """1 where the completion, after its thinking part, has a fenced block that names its language, else 0.

    Range: 0 or 1. Source: the form that open-r1's `code_format` asks for, for any language.
    """
    answer = text.rpartition(f"</{settings.tags.think}>")[2]
    return float(any(language and source.strip() for language, source in _BLOCK.findall(answer)))


def extract_code(text: str, language: str, tags: Tags) -> str | None:
    """The program in a completion; None without one."""
    answer = text.rpartition(f"</{tags.think}>")[2]
    names = _PYTHONS.get(language, (language, ""))
    blocks = _BLOCK.findall(answer)
    found = [source for name, source in blocks if name.lower() in names and source.strip()]
    return found[-1] if found else None if blocks else extract_answer_tag(answer, tags.answer) or None


def run_cases(program: str, cases: Cases, settings: CodeSettings) -> list[str]:
    """The outcome of each test: `right`, `wrong`, `failed`, `timed_out`, `out_of_memory` or `too_much_output`."""
    if cases.source:
        outcomes, ended = run_tests(program, cases.source, settings.limits, paths=settings.paths)
        rest = _OF_RUN.get(ended.ended, "failed")
        return [rest if outcome == "ended" else outcome for outcome in outcomes]
    pairs = cases.pairs[: settings.max_tests]
    made = _program(program, cases.language, settings)
    inputs = [given.encode("utf-8", "replace") for given, _ in pairs]
    found = run(made, inputs, settings.limits, paths=settings.paths)
    return [_judge(one, wanted) for one, (_, wanted) in zip(found, pairs, strict=True)]


def _program(source: str, language: str, settings: CodeSettings) -> Program:
    """Python, or another language by its command. Raises a `RewardError` if there is no command for the language."""
    if language in _PYTHONS:
        return Program.of(source)
    command = dict(settings.commands).get(language)
    if command is None:
        raise RewardError(
            f"The tests are for programs in {language}, and there is no command for it: set "
            f"rewards.code.commands.{language}='COMMAND {{file}}', run by sh in the sandbox."
        )
    file = f"main.{language}"
    words = ("/bin/sh", "-c", command.replace("{file}", file))
    return Program({file: source.encode("utf-8", "replace")}, command=words)


def _judge(finished: Finished, wanted: str) -> str:
    if finished.ended is not Ended.OK:
        return _OF_RUN[finished.ended]
    return "right" if _lines(finished.stdout.decode("utf-8", "replace")) == _lines(wanted) else "wrong"


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]

"""Rewards of programs: `code`, `binary_code` and `cf_code` by their tests as data sets hold them, and `code_format`."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from covey.answers import Outcome, Tags, extract_answer_tag
from covey.errors import RewardError
from covey.rewards.reward import Builder, CodeSettings, Graded, Reward, RewardSettings, named, texts_of
from covey.sandbox import Ended, Finished, Program, run, run_tests, strictest

COLUMNS = ("tests", "verification_info", "test_list", "test_cases", "official_tests")
"""Columns that hold tests, the first one that a row has counting."""


@dataclass(frozen=True, slots=True)
class Cases:
    """The tests of one row: inputs with their outputs, or test code."""

    language: str = "python"
    pairs: tuple[tuple[str, str], ...] = ()
    """Standard input, and the output that is expected."""
    source: str = ""
    """Asserts, statements and test functions."""


_NEEDS_JUDGE = ("generated_checker", "grader_files")
"""Columns of Codeforces and IOI problems for which equal output does not decide."""
_BESIDE = ("language", "input_mode", *_NEEDS_JUDGE)
"""Columns that are read besides the tests."""


def read_cases(row: Mapping[str, Any], language: str = "python") -> Cases | None:
    """The tests of a row; None where it has none that can be read.

    Read are pairs (`{"input": …, "output": …}` or `[input, output]`, in a list or by their names, or as two lists
    `inputs` and `outputs`), calls (pairs with `fn_name`), asserts (a text, or a list of texts), open-r1's
    `verification_info`, and JSON text of any of them. Problems that need a judge of their own cannot be read.

    Args:
        row: the columns.
        language: of the programs, where the row names none.

    Raises:
        RewardError: the row has none of the columns.
    """
    name = next((name for name in COLUMNS if row.get(name) is not None), None)
    if name is None:
        if not any(name in row for name in COLUMNS):
            raise RewardError(
                "The reward code needs tests: the data must have a column tests with, for each row, a list of "
                '{"input": …, "output": …} or a text of asserts; or verification_info, as open-r1 has it.'
            )
        return None
    if any(row.get(column) for column in _NEEDS_JUDGE) or row.get("input_mode") == "file":
        return None
    own = row.get("language") if isinstance(row.get("language"), str) else None
    return _read(row[name], str(own or language).lower())


def _read(value: Any, language: str) -> Cases | None:
    if isinstance(value, str):
        try:
            return _read(json.loads(value), language)
        except ValueError:
            return Cases(language, source=value) if _is_code(value) else None
    if isinstance(value, Mapping):
        language = str(value.get("language") or language).lower()
        if value.get("test_cases") is not None:
            return _read(value["test_cases"], language)
        if isinstance(value.get("inputs"), list) and isinstance(value.get("outputs"), list):
            if len(value["inputs"]) != len(value["outputs"]):
                return None
            found = zip(value["inputs"], value["outputs"], strict=True)
            return _pairs([{"input": a, "output": b, "fn_name": value.get("fn_name")} for a, b in found], language)
        value = list(value.values()) if all(map(_is_pair, value.values())) else None
    if isinstance(value, list) and value:
        if all(map(_is_pair, value)):
            return _pairs([{"input": given, "output": wanted} for given, wanted in value], language)
        if all(isinstance(one, str) for one in value):
            source = "\n".join(value)
            return Cases(language, source=source) if _is_code(source) else None
        if all(isinstance(one, Mapping) and "output" in one for one in value):
            return _pairs(value, language)
    return None


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and [*map(type, value)] == [str, str]


def _pairs(found: Sequence[Mapping[str, Any]], language: str) -> Cases | None:
    if not found:
        return None
    if not any(one.get("fn_name") for one in found):
        return Cases(language, tuple((_text(one.get("input")), _text(one["output"])) for one in found))
    lines = []
    for one in found:
        arguments = one.get("input")
        if isinstance(arguments, str):  # one JSON value a line
            try:
                arguments = [json.loads(line) for line in arguments.splitlines() if line.strip()]
            except ValueError:
                return None
        wanted, test = one["output"], "=="
        if isinstance(wanted, list) and len(wanted) == 1 and isinstance(one.get("input"), list):
            wanted, test = (wanted[0], wanted), "in"  # APPS and TACO hold a result so, others do not
        elif isinstance(wanted, str) and isinstance(one.get("input"), str):
            with contextlib.suppress(ValueError):
                wanted = json.loads(wanted)
        function = str(one.get("fn_name"))
        if not function.isidentifier() or not isinstance(arguments, list):
            return None
        lines.append(f"assert {function}(*{arguments!r}) {test} {wanted!r}")
    return Cases(language, source="\n".join(lines))


def _text(value: Any) -> str:
    """Input or output as text: lists are lines."""
    if isinstance(value, list):
        return "\n".join(map(_text, value))
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)


def _is_code(text: str) -> bool:
    try:
        return bool(ast.parse(text).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


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
    (`read_cases` has the formats). Programs run in a sandbox, with the limits `rewards.code.*`; the
    expected outputs never enter it, and test code runs in another one.

    Range: 0 to 1, None where the tests cannot be read.
    """
    cases = read_cases(row, settings.code.language)
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


def cf_code(prompts: Sequence[Any], completions: Sequence[Any], grades: Sequence[Graded]) -> list[float | None]:
    """1 where a program passes all tests, plus a tenth of the share that it passes; -1 without a program; see `code`.

    Range: -1 to 1.1, None where the tests cannot be read. Source: open-r1's `cf_scoring.py` with `weighted_sum`, whose
    -0.1 for a program that does not compile is 0 here.
    """
    scores = [None if grade.value is None else (grade.value == 1) + 0.1 * grade.value for grade in grades]
    missing = Outcome.UNPARSABLE_PREDICTION
    return [-1.0 if grade.outcome is missing else score for grade, score in zip(grades, scores, strict=True)]


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


_COMMANDS = {"cpp": "g++ -std=c++17 -O1 -o program {file} && ./program"}


def _command(language: str, settings: CodeSettings) -> str:
    """How programs are run that are not Python. Raises a `RewardError` if there is no command for the language."""
    command = dict(settings.commands).get(language) or (_COMMANDS.get(language, "") if shutil.which("g++") else "")
    if not command:
        raise RewardError(
            f"The tests are for programs in {language}, and there is no command for it: set "
            f"rewards.code.commands.{language}='COMMAND {{file}}', run by sh in the sandbox."
        )
    return command


def _program(source: str, language: str, settings: CodeSettings) -> Program:
    if language in _PYTHONS:
        return Program.of(source)
    file = f"main.{language}"
    words = ("/bin/sh", "-c", _command(language, settings).replace("{file}", file))
    return Program({file: source.encode("utf-8", "replace")}, command=words)


def _judge(finished: Finished, wanted: str) -> str:
    if finished.ended is not Ended.OK:
        return _OF_RUN[finished.ended]
    return "right" if _lines(finished.stdout.decode("utf-8", "replace")) == _lines(wanted) else "wrong"


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


_GRACE = 30.0  # seconds beyond the programs' own limits


def build_code(settings: RewardSettings) -> Reward:
    """The share of the tests that a program passes; see `code`."""
    strictest()  # found out once, before workers are forked
    if settings.code.language not in _PYTHONS:
        _command(settings.code.language, settings.code)

    def batch(
        prompts: Sequence[Any] | None = None, completions: Sequence[Any] | None = None, **columns: Any
    ) -> list[float | None]:
        return [graded.value for graded in _grades(completions, columns, settings)]

    return Reward(
        "code",
        named(batch, "code", code),
        partial(code, settings=settings),
        partial(_key, settings=settings),
        reads=COLUMNS,
        seconds=partial(_seconds, settings=settings),
    )


def _of_grades(name: str, score: Callable[..., list[float | None]]) -> Builder:
    """A reward that is computed from the grades of `code`."""

    def build(settings: RewardSettings) -> Reward:
        def batch(
            prompts: Sequence[Any] | None = None, completions: Sequence[Any] | None = None, **columns: Any
        ) -> list[float | None]:
            return score((), (), _grades(completions, columns, settings))

        return Reward(name, named(batch, name, score), graded_by="code", from_grades=score)

    return build


build_binary_code, build_cf_code = _of_grades("binary_code", all_or_nothing), _of_grades("cf_code", cf_code)


def _grades(completions: Sequence[Any] | None, columns: Mapping[str, Any], settings: RewardSettings) -> list[Graded]:
    texts = texts_of("code", completions)
    for name in COLUMNS:
        if name in columns and (isinstance(columns[name], str) or len(columns[name]) != len(texts)):
            raise RewardError(f"The reward code takes one value of {name} per completion: {len(texts)} values.")
    own = [name for name in (*COLUMNS, *_BESIDE) if name in columns]
    rows = [{name: columns[name][index] for name in own} for index in range(len(texts))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(partial(code, settings=settings), texts, rows))


def _key(text: str, row: Mapping[str, Any], settings: RewardSettings) -> Hashable | None:
    """Equal programs with equal tests have equal grades."""
    tests = {name: row.get(name) for name in (*COLUMNS, *_BESIDE)}
    try:
        told = json.dumps([extract_code(text, _cases(row, settings).language, settings.tags), tests], sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return None
    return "code", hashlib.blake2b(told.encode("utf-8", "surrogatepass")).digest()


def _cases(row: Mapping[str, Any], settings: RewardSettings) -> Cases:
    """The tests of a row; none where they cannot be read, which grading tells."""
    try:
        return read_cases(row, settings.code.language) or Cases()
    except RewardError:
        return Cases()


def _seconds(row: Mapping[str, Any], settings: RewardSettings) -> float:
    runs = max(1, len(_cases(row, settings).pairs))
    return 2 * runs * settings.code.limits.wall_seconds + _GRACE

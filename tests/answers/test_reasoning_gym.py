"""reasoning-gym's problems and scorers: exact in every process, and as JSON, over all of its tasks."""

from __future__ import annotations

import ast
import inspect
import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from covey.answers import reasoning_gym
from covey.errors import DataError
from covey.rewards import get_reward
from fake_reasoning_gym import install

SLOW = ("knight_swap",)
NEEDS_SETTINGS = ("composite",)


@pytest.fixture(params=["stand-in", pytest.param("library", marks=pytest.mark.adapter("reasoning_gym"))])
def library(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The library's stand-in, and where it is installed the library."""
    if request.param == "stand-in":
        install(tmp_path, monkeypatch)
    for cached in (reasoning_gym._scorer, reasoning_gym._sandbox):
        cached.cache_clear()
    yield
    for cached in (reasoning_gym._scorer, reasoning_gym._sandbox):
        cached.cache_clear()


def test_values_keep_their_types_as_json() -> None:
    value = {"a": [(1, (2.5, None))], "b": {1: "x", "1": "y"}, "c": {(0, 1): True}, "d": {"__other__": 1}}
    assert json.loads(json.dumps(reasoning_gym._encoded(value)), object_hook=reasoning_gym._decoded) == value


def test_without_the_library_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(DataError, match=r"dataset.task=x: .*not installed.*\[reasoning-gym\]"):
        reasoning_gym.draw("x", {}, 0, 1, "dataset.task=x")


@pytest.mark.parametrize("text", ["", "5", "{", "[1]", None])
def test_a_column_that_holds_something_else(text: str) -> None:
    with pytest.raises(DataError, match="does not hold a problem"):
        reasoning_gym.score("1", text)


def tasks() -> list[str]:
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError:
        return ["chain_sum"]
    return sorted(set(DATASETS) - {*SLOW, *NEEDS_SETTINGS, "game_of_life_halting"})


@pytest.mark.slow
@pytest.mark.adapter("reasoning_gym")
def test_every_task_scores_from_its_text_as_from_its_own_entry() -> None:
    found = tasks()
    assert len(found) > 100
    for task in found:
        made = reasoning_gym.make_task(task, {}, "here", seed=3, size=2)
        for i in range(2):
            entry = made[i]
            _, answer, text = reasoning_gym._problem(task, {}, entry)
            assert json.loads(text, object_hook=reasoning_gym._decoded)[2] == entry, task
            if answer is not None:
                assert reasoning_gym.score(answer, text) == made.score_answer(answer, entry) == 1.0, task
            for wrong in ("7 wrong", "", "[", "((", "1/0", "None", "\x00", "-1e999"):
                assert 0 <= reasoning_gym.score(wrong, text) <= 1, task
            assert reasoning_gym.score(None, text) == 0.0


@pytest.mark.slow
@pytest.mark.adapter("reasoning_gym")
@pytest.mark.parametrize("task", ["chain_sum", "ransom_note", "isomorphic_strings", "polynomial_multiplication"])
def test_the_problems_are_the_same_in_every_process(task: str) -> None:
    """Three of them differ with the seed of string hashes."""
    script = (
        "import json, sys\nfrom covey.answers.reasoning_gym import draw\n"
        f"json.dump(draw({task!r}, {{}}, 5, 20, 'here'), sys.stdout)"
    )
    found = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", script],
                env={**os.environ, "PYTHONHASHSEED": seed},
                capture_output=True,
                check=True,
            ).stdout
        )
        for seed in ("1", "2")
    ]
    assert found[0] == found[1]
    assert len({question for question, _, _ in found[0]}) > 10
    other = reasoning_gym.draw(task, {}, 6, 20, "here")
    assert [list(problem) for problem in other] != found[0]


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        ("chan_sum", {}, r"^key: reasoning-gym has no task chan_sum\. Did you mean chain_sum"),
        ("xyz", {}, r"^key: reasoning-gym has no task xyz\. It has .*chain_sum, .*composite, "),
        ("chain_sum", {"size": 3}, r"^key: size is not a setting of the task chain_sum: the run's own seed and sizes"),
        ("composite", {}, "does not take the settings {}: Must specify at least one dataset.* settings datasets"),
        ("chain_sum", {"min_terms": 9}, r"does not take the settings {'min_terms': 9}: max_terms must be >= min_terms"),
        ("chain_sum", {"most": 9}, r"unexpected keyword argument 'most'\. It has the settings min_terms, max_terms"),
        ("spell_backward", {"min_word_len": 60, "max_word_len": 70}, "could not make 2 problems .*70}: IndexError: "),
    ],
)
def test_a_problem_that_cannot_be_made(library: None, task: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        reasoning_gym.draw(task, settings, 1, 2, "key")
    assert "\n" not in str(caught.value)


def test_answers_are_scored_by_the_task(library: None) -> None:
    """Of five letters three are in their place; a part of a sum's text is its share."""
    made = reasoning_gym.problem("spell_backward", {"min_word_len": 4, "max_word_len": 9}, 3, "key")
    question, answer, text = made
    task, settings, entry = json.loads(text, object_hook=reasoning_gym._decoded)
    assert (task, settings) == ("spell_backward", {"min_word_len": 4, "max_word_len": 9})
    assert (entry["question"], entry["answer"]) == (question, answer)
    assert isinstance(entry["metadata"]["difficulty"].popitem()[1], tuple)
    hello = json.dumps([task, settings, {**entry, "answer": "olleh"}])
    answers = ("olleh", "OLLEH", "ollxx", "xxxxx", "", None, "nan", "1e999")
    assert [reasoning_gym.score(one, hello) for one in answers] == pytest.approx([1, 1, 0.6, 0, 0, 0, 0, 0])
    total = json.dumps(["chain_sum", {}, {"question": "", "answer": "12", "metadata": {"source_dataset": "chain_sum"}}])
    assert [reasoning_gym.score(one, total) for one in ("12", "is 12", "13", "inf")] == [1.0, 0.4, 0.0, 0.0]
    unread = json.dumps(["spell_backward", {}, {"question": "", "answer": None, "metadata": {}}])
    assert reasoning_gym.score("abc", unread) == 0.0  # the scorer fails


def test_problems_are_lines_of_json(
    library: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What the process prints whose problems `draw` returns."""
    monkeypatch.setattr(sys, "stdin", io.StringIO('["chain_sum", {"max_terms": 3}, 5, 2]'))
    reasoning_gym._print_problems()
    found = [tuple(json.loads(line)) for line in capfd.readouterr().out.splitlines()]
    assert found == reasoning_gym.draw("chain_sum", {"max_terms": 3}, 5, 2, "key")
    assert [reasoning_gym.score(answer, text) for _, answer, text in found] == [1.0, 1.0]
    assert found[0] != found[1]


def test_an_answer_is_tried_again_where_it_may_not_have_ended_the_sandbox(
    library: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place of the sandbox programs that end at the first answer, the second, and the first again."""
    text = reasoning_gym.problem("spiral_matrix", {}, 1, "key")[2]
    replies, received = [None, "0.1", None, None], []

    def run(program: Any, *, keep: int, **options: Any) -> list[Any]:
        with socket.socket(fileno=os.dup(keep)) as channel, channel.makefile("r") as lines:
            channel.sendall(b"\n")
            for line in lines:
                received.append(json.loads(line))
                if (reply := replies.pop(0)) is None:
                    break
                channel.sendall(reply.encode())
        return [SimpleNamespace(stderr=b"")]

    monkeypatch.setattr(reasoning_gym, "run", run)
    assert reasoning_gym.score("[1]", text) == 0.1
    assert reasoning_gym.score("[2]", text) == 0.0
    assert received == [["[1]", text], ["[1]", text], ["[2]", text], ["[2]", text]]


def test_a_composite_of_tasks_scores_with_each_task(library: None) -> None:
    parts = [{"name": "chain_sum"}, {"name": "leg_counting", "weight": 1, "config": {"max_animals": 3}}]
    for _, answer, text in reasoning_gym.draw("composite", {"datasets": parts}, 1, 6, "key"):
        assert reasoning_gym.score(answer, text) == 1.0
        assert reasoning_gym.score("-77", text) < 1.0


PYTHON = ("binary_matrix", "n_queens", "number_sorting", "spiral_matrix", "string_insertion")
FORMULAS = ("countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration")
EXECUTES = {"eval", "exec", "parse_expr", "sympify", "parse_latex", "lambdify", "__import__"}
"""What evaluates text as code."""
OWN_TEXT = {
    "basic_arithmetic": "its own problem",
    "bitwise_arithmetic": "its own problem",
    "codeio": "its own program",
    "propositional_logic": "a parser of its own under SymPy's name",
}
"""Modules of tasks that call one of these on text that is not the answer."""


@pytest.mark.adapter("reasoning_gym")
def test_every_task_that_evaluates_the_answer_is_recognised() -> None:
    """By the source: a new version of the library may bring a scorer that evaluates answers by a helper."""
    from reasoning_gym.factory import DATASETS

    for task, (kind, _) in DATASETS.items():
        found = reasoning_gym._evaluator(kind, {"metadata": {}})
        assert (found == "eval") == (task in PYTHON), task
        assert (found == "parse_expr") == (task in FORMULAS), task
        module = Path(inspect.getfile(kind))
        nodes = [node for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        called = {getattr(node.func, "attr", getattr(node.func, "id", "")) for node in nodes}
        assert found or not called & EXECUTES or task in OWN_TEXT, task


ATTACKS = (
    "__import__('pathlib').Path({mark!r}).write_text('x')",
    "[open({mark!r}, 'w').close()]",
    "exec(chr(112) + chr(97))",
    "(lambda: open({mark!r}, 'w'))()",
    "setattr(type(self), 'score_answer', lambda *a: 1.0) or entry['answer']",
    "type('X', (), {{'__eq__': lambda *a: True}})()",
    "\t[c for c in ().__class__.__base__.__subclasses__()]",
    "entry['answer']",
    "oracle_answer",
    "valid_solutions[0]",
    "Integral(x, x)",
    "S(chr(120))",
    "x.__class__",
    "1if open({mark!r},'w') else 2",
)


@pytest.mark.adapter("reasoning_gym")
@pytest.mark.parametrize("task", [*PYTHON, *FORMULAS])
def test_an_answer_that_is_a_program_earns_nothing(task: str, tmp_path: Path) -> None:
    mark = str(tmp_path / "written")
    [(_, answer, text)] = reasoning_gym.draw(task, {}, 1, 1, "here")
    answers = [*(attack.format(mark=mark) for attack in ATTACKS), str(answer), "no idea"]
    *hostile, right, wrong = get_reward("reasoning_gym")(
        completions=[f"<answer>{one}</answer>" for one in answers], reasoning_gym=[text] * len(answers)
    )
    assert max(*hostile, wrong) <= 0.05
    assert right == 1.0
    assert not Path(mark).exists()


@pytest.mark.parametrize(
    ("answer", "evaluator", "harmless"),
    [
        ("[[1, 2], [3, 4]]", "eval", True),
        ("1 2 3", "eval", True),  # no expression
        ("open('x')", "eval", False),
        ("[c for c in 'ab']", "eval", False),
        ("x**2/2 + sin(x) - 1e3", "parse_expr", True),
        ("Integral(x, x)", "parse_expr", False),
        ("x.__class__", "parse_expr", False),
        ("oracle_answer", "parse_expr", False),
    ],
)
def test_which_answers_are_evaluated(answer: str, evaluator: str, harmless: bool) -> None:
    assert reasoning_gym._harmless(answer, "[1]", evaluator) is harmless
    assert reasoning_gym._harmless(answer, answer, evaluator) is True


@pytest.mark.slow
@pytest.mark.adapter("reasoning_gym")
def test_an_answer_that_takes_too_long_costs_only_itself() -> None:
    [(_, answer, text)] = reasoning_gym.draw("countdown", {}, 1, 1, "here")
    assert [reasoning_gym.score(one, text) for one in ("9**9**9**9", answer)] == [0.0, 1.0]


@pytest.mark.adapter("reasoning_gym")
def test_answers_are_evaluated_in_the_sandbox(tmp_path: Path) -> None:
    """The expected answer is always evaluated, so here it is a program."""
    mark = tmp_path / "written"
    text = reasoning_gym.draw("countdown", {}, 1, 1, "here")[0][2]
    task, settings, entry = json.loads(text)
    for code in (f"open({str(mark)!r}, 'w')", "__import__('os').kill(__import__('os').getppid(), 9)"):
        assert reasoning_gym.score(code, json.dumps([task, settings, {**entry, "answer": code}])) < 1.0
    assert not mark.exists()
    assert reasoning_gym.score(entry["answer"], text) == 1.0


@pytest.mark.adapter("reasoning_gym")
def test_an_evaluated_answer_changes_no_other_score() -> None:
    """With the check of answers off: each is evaluated in a process of its own."""
    [(_, answer, text)] = reasoning_gym.draw("spiral_matrix", {}, 1, 1, "here")
    program = (
        "import sys\nfrom covey.answers import reasoning_gym\n"
        "reasoning_gym._harmless = lambda *given: True\nreasoning_gym._serve(int(sys.argv[1]))"
    )
    patch = "setattr(type(self), 'score_answer', lambda *given: 1.0) or oracle_answer.split()"
    ours, theirs = socket.socketpair()
    process = subprocess.Popen([sys.executable, "-c", program, str(theirs.fileno())], pass_fds=[theirs.fileno()])
    with process, theirs, ours:
        assert ours.recv(1) == b"\n"
        found = []
        for one in (patch, "[0]", answer):
            ours.sendall(json.dumps([one, text]).encode() + b"\n")
            found.append(float(ours.recv(64)))
    assert found == [0.1, 0.0, 1.0]


@pytest.mark.adapter("reasoning_gym")
def test_a_sandbox_that_was_ended_is_started_again() -> None:
    [(_, answer, text)] = reasoning_gym.draw("n_queens", {}, 1, 1, "here")
    assert reasoning_gym.score(answer, text) == 1.0
    reasoning_gym._sandbox(os.getpid()).close()
    assert reasoning_gym.score(answer, text) == 1.0


@pytest.mark.adapter("reasoning_gym")
@pytest.mark.parametrize(
    ("task", "form"),
    [
        ("countdown", lambda text: f" ({text}) "),
        ("polynomial_multiplication", lambda text: text.replace(" ", "")),
        ("simple_integration", lambda text: text.replace("C", "k")),
        ("simple_integration", lambda text: f"{text} + sin(1) - log(2)/pi + 1e3"),
        ("intermediate_integration", lambda text: f"{text} + sqrt(2)"),
        ("n_queens", lambda text: str([row.split() for row in text.split("\n")])),
        ("spiral_matrix", lambda text: str(text.split())),
        ("string_insertion", lambda text: str(list(text))),
    ],
)
def test_other_forms_of_a_right_answer_score_as_in_the_library(task: str, form: Any) -> None:
    made = reasoning_gym.make_task(task, {}, "here", seed=4, size=4)
    for entry in (made[i] for i in range(4)):
        answer = form(entry["answer"])
        if "Integral" not in answer:
            text = reasoning_gym._problem(task, {}, entry)[2]
            assert 0.1 <= reasoning_gym.score(answer, text) == made.score_answer(answer, entry)


@pytest.mark.adapter("reasoning_gym")
@pytest.mark.parametrize("task", ["complex_arithmetic", "chain_sum", "countdown", "decimal_arithmetic"])
def test_numbers_that_are_not_finite_are_wrong(task: str) -> None:
    text = reasoning_gym.draw(task, {}, 1, 1, "here")[0][2]
    answers = ["nan", "NaN", "(nan)", "nan+nanj", "nani", "NaN - 3i", "inf", "-Infinity", "1e999", "1e999i", "9" * 400]
    assert {reasoning_gym.score(answer, text) for answer in answers} == {0.0}


def test_words_that_only_look_like_numbers_are_answers(library: None) -> None:
    for word in ("nan", "inf", "infinity"):
        entry = {"question": "?", "answer": word, "metadata": {}}
        text = json.dumps(["spell_backward", {}, entry])
        assert reasoning_gym.score(word, text) == 1.0


def test_a_task_that_takes_any_text_is_refused_by_name(library: None, capsys: pytest.CaptureFixture[str]) -> None:
    parts = {"datasets": [{"name": "chain_sum"}, {"name": "game_of_life_halting"}]}
    for task, settings in (("game_of_life_halting", {}), ("composite", parts)):
        with pytest.raises(DataError, match=r"dataset\.task=x: .*game_of_life_halting takes any text"):
            reasoning_gym.draw(task, settings, 1, 1, "dataset.task=x")
    stored = reasoning_gym.problem("game_of_life_halting", {}, 1, "here")[2]  # of data made by another version
    with pytest.raises(DataError, match="game_of_life_halting takes any text"):
        reasoning_gym.score("junk", stored)
    for task in tasks():
        reasoning_gym.scoring_task(task, {}, "here")
    assert capsys.readouterr().out == ""

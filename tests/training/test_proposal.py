"""What is proposed for rows: reward, grader, prompt, lengths and sizes, by what the rows hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from covey.config import load
from covey.errors import ConfigError, CoveyError
from covey.rewards import get_reward
from covey.training.proposal import Proposal, propose
from data_files import write_jsonl

N = range(24)
WORDS = "The town of Kingston has a river, a hill and a road."
COLORING = {"vertices": "ABC", "edges": ["AB", "BC"], "given": {"A": "red"}}
CASES: dict[str, tuple[Any, str, list[str], str | None]] = {
    "numbers": (
        lambda i: {"question": f"Town {i} has how many hills?", "answer": i},
        "numbers",
        ["accuracy", "format"],
        "none",
    ),
    "gsm8k": (
        lambda i: {"question": f"Town {i}?", "answer": f"So it is\n#### {i}"},
        "numbers",
        ["accuracy", "format"],
        "gsm8k",
    ),
    "boxed": (
        lambda i: {"problem": f"Solve {i} for x in terms of y.", "solution": rf"So \boxed{{x=\frac{{y}}{{{i + 2}}}}}."},
        *("mathematics", ["accuracy", "format"], "boxed"),
    ),
    "asks for a box": (
        lambda i: {"problem": rf"Town {i}? Answer in \boxed{{}}.", "answer": i},
        *("numbers", ["accuracy"], "none"),
    ),
    "choices": (
        lambda i: {"question": f"Town {i}? A) a B) b", "answer": "AB"[i % 2]},
        "choices",
        ["accuracy", "format"],
        "none",
    ),
    "one word": (
        lambda i: {"question": f"Who {i}?", "answer": ["Paris", "Rome"][i % 2]},
        "words",
        ["accuracy", "format"],
        "none",
    ),
    "words": (
        lambda i: {"question": f"Who {i}?", "answer": "New York City"},
        "words",
        ["exact_match", "format"],
        "none",
    ),
    "chinese": (lambda i: {"question": f"{i}号城市?", "answer": "北京市"}, "words", ["exact_match", "format"], "none"),
    "free text": (lambda i: {"prompt": f"Describe town {i}.", "answer": f"{WORDS} {i}"}, "free text", [], "none"),
    "none": (lambda i: {"prompt": f"Tell me of town {i}."}, "none", [], "none"),
    "tests": (
        lambda i: {"prompt": f"Write f{i}.", "tests": [f"assert f{i}(1) == 2"], "answer": "def f: ..."},
        *("programs with tests", ["code", "code_format"], "none"),
    ),
    "colours": (
        lambda i: {"prompt": f"Graph {i}", "answer": COLORING},
        "graph_coloring",
        ["graph_coloring", "format"],
        "none",
    ),
    "countdown": (
        lambda i: {"prompt": f"Reach {i + 9}", "answer": {"numbers": [9, i, 1, 1, 1, 1, 1], "target": 9 + i}},
        *("countdown", ["countdown", "format"], "none"),
    ),
    "replies": (
        lambda i: {"messages": [{"role": "user", "content": f"Town {i}?"}, {"role": "assistant", "content": str(i)}]},
        *("numbers", ["accuracy", "format"], "none"),
    ),
}


def proposed(folder: Path, rows: list[Any], model: str | None, *words: str) -> Proposal:
    return propose(str(write_jsonl(folder / "rows.jsonl", rows)), model, words)


def composed(found: Proposal, folder: Path) -> Any:
    (folder / "recipe.yaml").write_text(found.recipe(), encoding="utf-8")
    return load(recipe=folder / "recipe.yaml")


@pytest.mark.parametrize("case", CASES)
def test_the_answers_decide(case: str, tiny_model: str, tmp_path: Path) -> None:
    row, kind, funcs, extractor = CASES[case]
    found = proposed(tmp_path, [row(i) for i in N], tiny_model)
    assert found.facts["answers"] == f"{kind} 100%"
    assert found.facts["rows"] == "20 to train on, 4 held out"
    assert (found.needs_reward, found.needs_model) == (not funcs, False)
    config = composed(found, tmp_path)
    assert config.dataset.answer_extractor == extractor
    if funcs:
        assert [*config.rewards.funcs] == funcs
        assert config.training.reward_weights == [1.0, 0.2][: len(funcs)]
        assert config.evaluation.grader == funcs[0]
    asks = str(config.dataset.system_prompt)
    assert ("<answer>" in asks) == ("format" in funcs)
    assert ("```" in asks) == (kind == "programs with tests")
    assert len(found.shown) == 3
    assert all(text.endswith("<|im_start|>assistant\n") for text, _ in found.shown)
    assert ("<|im_start|>system" in found.shown[0][0]) == (config.dataset.system_prompt is not None)


def test_a_system_message_of_the_rows_stays(tiny_model: str, tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"}]
    rows = [{"prompt": [*chat[:1], {"role": "user", "content": f"How many in {i}?"}], "answer": i} for i in N]
    found = proposed(tmp_path, rows, tiny_model)
    assert "dataset.system_prompt" not in found.keys
    assert (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHow many in 0?\n\nThink step" in found.shown[0][0]
    )


def test_mixed_answers_are_asked_for_in_general(tiny_model: str, tmp_path: Path) -> None:
    rows = [{"question": f"Town {i}?", "answer": r"\frac{1}{x}" if i % 4 == 0 else str(i)} for i in N]
    found = proposed(tmp_path, rows, tiny_model)
    assert found.facts["answers"] == "numbers 75%, mathematics 25%"
    assert "simplest exact form" in found.keys["dataset.system_prompt"]
    assert found.keys["training.max_completion_length"] == 512


def test_sums_are_for_the_starter_and_nothing_else_is(tmp_path: Path) -> None:
    sums = [{"question": f"What is {i} + {i * 37}?", "answer": i * 38} for i in range(100)]
    found = proposed(tmp_path, sums, None)
    config = composed(found, tmp_path)
    assert (config.model.name, config.rewards.funcs, found.needs_model) == ("starter", ("exact_match", "format"), False)
    assert (config.training.learning_rate, config.training.max_steps) == (2.5e-4, 100)  # its own tuning
    assert config.training.generation_batch == 128
    words = [{"question": f"Anna has {i} apples. How many has she?", "answer": i} for i in N]
    found = proposed(tmp_path, words, None)
    assert (found.needs_model, found.keys["model.name"]) == (True, "Qwen/Qwen2.5-0.5B-Instruct")
    assert "prompts about" in found.facts["lengths"]
    assert found.shown[0] == (
        "system: Think step by step between <think> and </think>. Then write only the final number "
        "between <answer> and </answer>.\nuser: Anna has 0 apples. How many has she?",
        "0",
    )
    away = proposed(tmp_path, words, "somebody/no-such-model")  # not on this machine, and there is no network
    assert (away.facts, away.needs_model) == (found.facts, False)
    for words_of in (["model.name=starter"], []):
        with pytest.raises(ConfigError, match=r"Anna has 0 apples.*covey init .*--model Qwen/Qwen2\.5-0\.5B-Instruct"):
            proposed(tmp_path, words, None if words_of else "starter", *words_of)


def test_lengths_follow_solutions_and_context(tiny_model: str, tmp_path: Path) -> None:
    """The starter's tokenizer has a token for each digit; the tiny model's context has 2048 tokens."""
    rows = [{"question": f"Town {i}?", "answer": "1", "solution": "7" * (200 if i else 900)} for i in N]
    found = proposed(tmp_path, rows, tiny_model)
    assert found.facts["lengths"].endswith("; solutions 200 and 900")
    assert found.keys["training.max_completion_length"] == 320  # 1.5 · 200, in steps of 64
    assert "dataset.max_prompt_length" not in found.keys
    rows[3]["question"] = "8" * 1900
    assert proposed(tmp_path, rows, tiny_model).keys["dataset.max_prompt_length"] == 2048 - 320


@pytest.mark.parametrize(
    ("rows", "trained", "held", "prompts"), [(1, 1, 0, 1), (2, 1, 1, 1), (4, 3, 1, 2), (50, 40, 10, 8)]
)
def test_a_step_takes_no_more_prompts_than_there_are(
    rows: int, trained: int, held: int, prompts: int, tiny_model: str, tmp_path: Path
) -> None:
    found = proposed(tmp_path, [{"question": f"Town {i}?", "answer": i} for i in range(rows)], tiny_model)
    assert found.facts["rows"] == f"{trained} to train on, {held} held out"
    assert composed(found, tmp_path).training.generation_batch == 8 * prompts
    assert found.keys["training.max_steps"] == min(200, max(20, 20 * trained // prompts))


def test_columns_without_usual_names_are_guessed_and_what_is_given_wins(tiny_model: str, tmp_path: Path) -> None:
    rows = [{"nr": f"n{i}", "Frage": f"Wie alt ist Stadt {i}?", "Antwort": i} for i in N]
    found = proposed(tmp_path, rows, tiny_model)
    assert (found.keys["dataset.prompt_column"], found.keys["dataset.answer_column"]) == ("Frage", "Antwort")
    given = ("dataset.prompt_column=nr", "dataset.answer_column=Antwort", "seed=3", "training.max_steps=7")
    config = composed(proposed(tmp_path, rows, tiny_model, *given), tmp_path)
    assert (config.dataset.prompt_column, config.seed, config.training.max_steps) == ("nr", 3, 7)
    own = composed(proposed(tmp_path, rows, tiny_model, "rewards.funcs=[exact_match]"), tmp_path)
    assert own.rewards.funcs == ("exact_match",)


def test_a_file_of_any_name_is_found_again(tiny_model: str, tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "odd ${name} = [x], 'y'.jsonl", [{"prompt": f"Town {i}?", "answer": i} for i in N])
    assert composed(propose(str(file), tiny_model), tmp_path).dataset.path == str(file)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"prompt": f"Town {i}?", "answer": i or None} for i in N], "1 of 24 rows of .* have no answer"),
        ([{"prompt": "Which?", "text": f"{i}", "answer": i} for i in N], "have the same prompt"),
        ([{"a": 1, "b": 2}], "no column that looks like the prompt"),
    ],
)
def test_rows_that_cannot_be_trained_on_are_refused(
    rows: list[Any], says: str, tiny_model: str, tmp_path: Path
) -> None:
    with pytest.raises(CoveyError, match=says):
        proposed(tmp_path, rows, tiny_model)


def test_the_reward_to_start_from() -> None:
    """By hand: " abc " and " abd " share one of three sequences each, and the placeholder wants 30 different words."""
    from covey.config.named_code import STUB

    names: dict[str, Any] = {}
    exec(STUB.read_text(encoding="utf-8"), names)
    reward = names["my_reward"]
    texts = ["abc", "abd", "", "<think>xyz</think> ABC ", "abc abc"]
    values = reward([], texts, answer=["abc"] * 5)
    assert values == pytest.approx([1, 1 / 3, 0, 1, 2 * 3 / (3 + 7)])
    chats = [
        [{"role": "assistant", "content": text}] for text in ("", "a b c", " ".join(map(str, range(60))), "a " * 60)
    ]
    assert reward([], chats) == pytest.approx([0, 0.1, 1, 1 / 60])


@pytest.mark.parametrize(
    ("file", "answers", "grader"),
    [
        ("gsm8k_test.jsonl", "numbers 100%", "accuracy"),
        ("math500_test.jsonl", "numbers 74%, mathematics 25%, choices 1%", "accuracy"),
        ("countdown_tinyzero_test.jsonl", "countdown 100%", "countdown"),
        ("amc23.jsonl", "numbers 100%", "accuracy"),
    ],
)
def test_real_rows(file: str, answers: str, grader: str, tiny_model: str, shared_data: Path) -> None:
    found = propose(str(shared_data / file), tiny_model)
    assert (found.facts["answers"], found.keys["evaluation.grader"]) == (answers, grader)
    assert found.keys.get("dataset.answer_extractor") == ("gsm8k" if "gsm8k" in file else None)


def test_get_reward_runs_it(tmp_path: Path) -> None:
    from covey.config.named_code import STUB

    (tmp_path / "r.py").write_bytes(STUB.read_bytes())
    assert get_reward(f"{tmp_path / 'r.py'}:my_reward")(prompts=["?"], completions=["ab"], answer=["ab"]) == [1.0]

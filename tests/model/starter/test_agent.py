"""The starter that can call a tool: its chat template, how its calls are parsed, what it is taught."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import get_json_schema
from trl.chat_template_utils import is_chat_template_prefix_preserving, parse_response, supports_tool_calling

from chat_templates import template_refusal
from covey.data.tasks.arithmetic import Difficulty, Problem
from covey.data.tasks.drawing import split_of, take
from covey.environments.library import calculator
from covey.evaluation.starter import measure_agent
from covey.model.starter import AGENT_PATH
from covey.model.starter.calling import CALCULATOR, agent_document
from covey.model.starter.coldstart import AGENT_DIFFICULTY, make_tokenizer
from covey.model.starter.tokenizer import CHAT_TEMPLATE

QUESTION: dict[str, Any] = {"role": "user", "content": "What is 48213 + 9077?"}
CALL = '<tool_call>calculator{"expression": "48213 + 9077"}</tool_call>'
CALLS = [{"type": "function", "function": {"name": "calculator", "arguments": {"expression": "48213 + 9077"}}}]
ASKED = "<|im_start|>user\nWhat is 48213 + 9077?<|im_end|>\n<|im_start|>assistant\n"
OFFERED = "<|im_start|>system\nTools: calculator(expression)<|im_end|>\n"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(AGENT_PATH)


def rendered(tokenizer: Any, messages: list[dict[str, Any]], **more: Any) -> str:
    return str(tokenizer.apply_chat_template(messages, tokenize=False, **more))


def parsed(tokenizer: Any, turn: str) -> dict[str, Any]:
    prefix = tokenizer(OFFERED + ASKED)["input_ids"]
    found: dict[str, Any] = parse_response(tokenizer, tokenizer(turn)["input_ids"], prefix=prefix, tools=[calculator])
    return found


def problem_in(messages: list[dict[str, Any]]) -> Problem:
    """The problem that a conversation asks for."""
    asked = next(m["content"] for m in messages if m["role"] == "user")
    found = re.search(r"(\d+) ([+-]) (\d+)", asked)
    assert found is not None
    return Problem((int(found[1]), int(found[3])), (found[2],))


def test_size_and_precision() -> None:
    assert sum(file.stat().st_size for file in AGENT_PATH.iterdir()) < 5_000_000
    assert {tensor.dtype for tensor in load_file(AGENT_PATH / "model.safetensors").values()} == {torch.float32}


def test_tools_are_shown_by_name_and_parameters(tokenizer: Any) -> None:
    def weather(city: str, day: int = 0) -> str:
        """Forecast the weather.

        Args:
            city: where.
            day: days from now.
        """
        return f"{city} {day}"

    more = {"tools": [calculator, weather], "add_generation_prompt": True}
    both = "Tools: calculator(expression) weather(city, day)<|im_end|>\n"
    assert rendered(tokenizer, [QUESTION], **more) == f"<|im_start|>system\n{both}{ASKED}"
    system = {"role": "system", "content": "Be brief."}
    assert rendered(tokenizer, [system, QUESTION], **more) == f"<|im_start|>system\nBe brief.\n{both}{ASKED}"
    ids = tokenizer.apply_chat_template([QUESTION], tools=[calculator], return_dict=False)
    alone = tokenizer.apply_chat_template([QUESTION], return_dict=False)
    assert len(ids) - len(alone) <= 12


def test_a_schema_of_bare_functions_and_one_without_parameters(tokenizer: Any) -> None:
    def now() -> str:
        """Tell the time."""
        return ""

    inner = get_json_schema(now)["function"]
    for tool in (now, {"name": "now", "description": ""}, inner):
        assert "Tools: now()<|im_end|>" in rendered(tokenizer, [QUESTION], tools=[tool])


def test_a_call_and_its_result(tokenizer: Any) -> None:
    messages = [
        QUESTION,
        {"role": "assistant", "content": "", "tool_calls": CALLS},
        {"role": "tool", "name": "calculator", "content": "57290"},
    ]
    result = "<|im_end|>\n<|im_start|>tool\n57290<|im_end|>\n<|im_start|>assistant\n"
    whole = rendered(tokenizer, messages, tools=[calculator], add_generation_prompt=True)
    assert whole == OFFERED + ASKED + CALL + result
    text: dict[str, Any] = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"name": "calculator", "arguments": '{"a": 1}'}],
    }
    assert rendered(tokenizer, [QUESTION, text]).endswith(
        'assistant\n<tool_call>calculator{"a": 1}</tool_call><|im_end|>\n'
    )
    assert supports_tool_calling(tokenizer)
    assert is_chat_template_prefix_preserving(tokenizer)
    assert template_refusal(tokenizer) is None


def test_without_tools_it_renders_as_the_plain_starter(tokenizer: Any) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        QUESTION,
        {"role": "assistant", "content": "57290"},
        QUESTION,
    ]
    for more in ({}, {"add_generation_prompt": True}, {"tools": None}):
        assert rendered(tokenizer, messages, **more) == rendered(
            tokenizer, messages, chat_template=CHAT_TEMPLATE, **more
        )


def test_calls_are_parsed_and_tags_stay_in_the_content(tokenizer: Any) -> None:
    assert parsed(tokenizer, f"{CALL}<|im_end|>") == {"role": "assistant", "content": "", "tool_calls": CALLS}
    answer = "<think>\ncalculated\n</think>\n<answer>57290</answer>"
    assert parsed(tokenizer, f"{answer}<|im_end|>") == {"role": "assistant", "content": answer}
    both = parsed(tokenizer, f"first{CALL}{CALL}<|im_end|>")
    assert both == {"role": "assistant", "content": "first", "tool_calls": CALLS * 2}
    for malformed in (CALL.removesuffix('"}</tool_call>'), CALL.replace("{", ""), "<tool_call></tool_call>"):
        assert "tool_calls" not in parsed(tokenizer, f"{malformed}<|im_end|>")


def test_the_tokens_of_a_call(tokenizer: Any) -> None:
    ids = tokenizer(CALL)["input_ids"]
    assert len(ids) <= 20
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == CALL


def test_the_shipped_tokenizer_is_the_one_that_is_made(tokenizer: Any) -> None:
    made = make_tokenizer(agent=True)
    assert made.get_vocab() == tokenizer.get_vocab()
    assert made.chat_template == tokenizer.chat_template
    assert made.response_template == tokenizer.response_template
    assert made(OFFERED + ASKED + CALL)["input_ids"] == tokenizer(OFFERED + ASKED + CALL)["input_ids"]


def test_long_problems_are_called_or_guessed_never_worked_out() -> None:
    """What keeps the harder set out of reach without the tool."""
    rng = random.Random(0)
    styles: Counter[str] = Counter()
    for problem in take(AGENT_DIFFICULTY, "train", 3, 4000):
        doc = agent_document(problem, rng)
        assert problem_in(doc.messages) == problem
        assert split_of(problem.canonical) == "train"
        first = doc.messages[-1]["role"] == "user"
        styles[doc.style] += bool(doc.tools) and first and not doc.given
        if max(problem.operands) < 10_000 or not first:
            continue
        assert doc.tools
        assert doc.style in ("calling", "hasty")
        if doc.style == "hasty":
            assert f"<answer>{problem.answer}</answer>" not in doc.completion
            assert "=" not in doc.completion
    shares = {style: count / styles.total() for style, count in styles.items()}
    assert 0.05 <= shares["calling"] <= 0.15
    assert shares["careful"] < 0.05


def test_the_turn_after_a_call_reads_its_result(tokenizer: Any) -> None:
    rng = random.Random(1)
    found = 0
    for problem in take(Difficulty(min_digits=5, max_digits=5), "train", 3, 300):
        doc = agent_document(problem, rng)
        if doc.messages[-1]["role"] != "tool":
            continue
        found += 1
        call = doc.messages[-2]["tool_calls"][0]["function"]
        result = doc.messages[-1]["content"]
        assert calculator(**call["arguments"]) == str(problem.answer)
        assert (result == str(problem.answer)) == (call["name"] == "calculator") == (result in doc.completion)
    assert found > 30
    assert get_json_schema(calculator)["function"]["parameters"]["required"] == ["expression"]
    assert CALCULATOR["function"]["parameters"]["properties"].keys() == {"expression"}


@pytest.mark.slow
def test_the_model_card_is_reproducible(tokenizer: Any) -> None:
    """Measured again with another seed, the figures are near those of the card, and as the first agent needs them."""
    figures = measure_agent(AutoModelForCausalLM.from_pretrained(AGENT_PATH), tokenizer, seed=1)
    assert 0.05 <= figures.call_share.value <= 0.15
    assert figures.hard.value < 0.2
    assert figures.without.value > 0.15
    card = (AGENT_PATH / "README.md").read_text(encoding="utf-8")
    stated = next(line for line in card.splitlines() if line.startswith("| accuracy with the calculator |")).split("|")[
        2
    ]
    assert float(stated.strip().rstrip("%")) / 100 == pytest.approx(figures.accuracy.value, abs=0.06)

"""The interface of rewards: calls with text and conversational completions, lookup by name, settings.

The values of rewards are tested in test_reward_values.py and library/.
"""

from __future__ import annotations

import inspect
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from covey import rewards
from covey.answers import Outcome, Tags
from covey.config.groups.rewards import RewardsConfig
from covey.errors import RewardError
from covey.rewards import RewardSettings, completion_text
from covey.rewards.registry import ALIASES, REGISTRY
from covey.rewards.reward import with_prefix
from covey.rewards.runner import RewardRunner

WHOLE = "<think>1+1</think><answer>2</answer>"
BARE = "<answer>2</answer>"
WRONG = "<think>1+1</think><answer>3</answer>"
COMPLETIONS = [WHOLE, BARE, WRONG, "2", ""]
PROMPTS = ["What is 1 + 1?"] * len(COMPLETIONS)
NAMES = (
    *("accuracy", "exact_match", "format", "tag_count", "think_format", "reasoning_steps", "cosine_scaled"),
    *("repetition_penalty", "len", "soft_overlong", "match_format_exactly", "match_format_approximately"),
    *("check_answer", "check_numbers", "countdown", "graph_coloring", "reasoning_gym", "code", "binary_code"),
    *("code_format", "cf_code"),
)
OF_OTHER_COLUMNS = ("reasoning_gym", "code", "binary_code", "cf_code")
"""They read no gold answers; tested apart."""


def as_messages(texts: list[str]) -> list[list[dict[str, str]]]:
    return [[{"role": "assistant", "content": text}] for text in texts]


@pytest.fixture(autouse=True)
def _keep_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what a test imports from its own folder."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))


@pytest.mark.parametrize("completions", [COMPLETIONS, as_messages(COMPLETIONS)], ids=["text", "messages"])
def test_values(completions: list[object]) -> None:
    right, exact, format_reward = rewards.load(["accuracy", "exact_match", "format"])
    columns = {"answer": ["2.0"] * 5, "question": ["…"] * 5, "trainer_state": None}
    assert right(prompts=PROMPTS, completions=completions, **columns) == [1.0, 1.0, 0.0, 1.0, 0.0]
    assert exact(prompts=PROMPTS, completions=completions, **columns) == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert format_reward(prompts=PROMPTS, completions=completions, **columns) == [1.0, 0.0, 1.0, 0.0, 0.0]


def test_all_rewards_are_registered_and_documented() -> None:
    assert tuple(REGISTRY) == NAMES
    for name in REGISTRY:
        function = rewards.get_reward(name)
        assert function.__name__ == name
        assert inspect.getdoc(function)
        assert "Range:" in str(function.__doc__)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OF_OTHER_COLUMNS])
def test_every_reward_takes_what_the_trainer_passes(name: str) -> None:
    prompts = [[{"role": "user", "content": "?"}]] * 2
    given = {"completion_ids": [[1, 2], [3]], "trainer_state": None, "log_extra": print, "log_metric": print}
    found = rewards.get_reward(name)(
        prompts=prompts, completions=as_messages([WHOLE, WRONG]), answer=["2", "2"], level=[1, 2], **given
    )
    assert len(found) == 2
    assert all(value is None or isinstance(value, float) for value in found)


def test_the_text_of_an_episode_is_the_model_s_last_message() -> None:
    """Not the result of a tool; thinking that a template's parser took out is put back in its tags."""
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": {}}}]}
    result = {"role": "tool", "name": "add", "content": "<answer>4</answer>"}
    answer = {"role": "assistant", "content": "<answer>5</answer>"}
    assert completion_text([call, result, answer]) == "<answer>5</answer>"
    assert completion_text([call, result]) == ""
    assert completion_text([{**call, "content": "Let me see."}, result]) == "Let me see."
    thought = {**answer, "reasoning_content": "2 + 3"}
    assert completion_text([call, result, thought]) == "<think>\n2 + 3\n</think>\n<answer>5</answer>"
    (kept,) = with_prefix([thought], "<think>")
    assert kept == thought  # it holds what the prefix began
    assert with_prefix([call, result, answer], "<think>") == [
        *(call, result),
        {**answer, "content": "<think><answer>5</answer>"},
    ]


def test_the_last_message_counts() -> None:
    format_reward = rewards.get_reward("format")
    turns = [{"role": "assistant", "content": "Wait."}, {"role": "assistant", "content": WHOLE}]
    parts = [{"role": "assistant", "content": [{"type": "text", "text": half} for half in (WHOLE[:9], WHOLE[9:])]}]
    empty = [*turns, {"role": "assistant", "content": None}]
    assert format_reward(["p"] * 4, [turns, empty, [], parts]) == [1.0, 0.0, 0.0, 1.0]


def test_solution_replaces_a_missing_answer() -> None:
    exact = rewards.get_reward("exact_match")
    assert exact(["p"], [WHOLE], solution=["2"]) == [1.0]
    assert exact(["p"], [WHOLE], solution=[r"One and one is \boxed{2}, as is known."]) == [1.0]
    assert exact(["p"] * 2, [WHOLE] * 2, answer=["3", None], solution=["2", "2"]) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"completions": ["a", "b"], "answer": ["1"]}, "one answer per completion: 2 values, not 1 values"),
        ({"completions": ["a"], "answer": "1"}, "one answer per completion: 1 values, not one text"),
        ({"completions": ["a"], "question": ["1"]}, r"needs the gold answers: .* a column answer \(or solution\)"),
        ({"completions": "text", "answer": ["1"]}, "takes a list in completions .*, not one text"),
        ({"answer": ["1"]}, "takes a list in completions .*, not nothing"),
    ],
)
def test_wrong_calls_are_explained(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(RewardError, match=f"The reward exact_match .*{message}"):
        rewards.get_reward("exact_match")(prompts=["p"], **arguments)


def test_a_row_without_gold_answers_is_a_mistake_and_one_with_an_empty_one_is_not() -> None:
    sample = rewards.find("accuracy", RewardSettings()).sample
    assert sample
    with pytest.raises(RewardError, match="accuracy needs the gold answers"):
        sample(WHOLE, {"prompt": "p"})
    assert sample(WHOLE, {"answer": None}) == rewards.Graded(None, Outcome.UNPARSABLE_GOLD)


GRADERS = ["accuracy", "exact_match", "cosine_scaled", "check_answer", "check_numbers", "countdown"]


def test_graders_grade_sample_by_sample_as_they_do_in_a_batch() -> None:
    found = [name for name in NAMES if rewards.find(name, RewardSettings()).sample]
    assert sorted(found) == sorted([*GRADERS, "graph_coloring", "reasoning_gym", "code"])
    task = '{"numbers": [1, 1], "target": 2}'
    for name in GRADERS:
        reward = rewards.find(name, RewardSettings())
        gold = task if name == "countdown" else "2"
        assert reward.sample
        values = [reward.sample(text, {"answer": gold, "prompt": "p"}).value for text in COMPLETIONS]
        assert reward.batch(PROMPTS, COMPLETIONS, answer=[gold] * 5) == values


def test_a_cache_key_holds_all_that_a_grade_depends_on() -> None:
    def key(name: str, text: str, gold: Any = "2", question: str = "") -> object:
        found = rewards.find(name, RewardSettings(cosine_max_len=60)).cache_key
        assert found
        return found(text, {"answer": gold, "prompt": [{"role": "user", "content": question}]})

    assert key("accuracy", WHOLE) == key("accuracy", "<think>other</think>" + BARE) is not None
    assert len({key("accuracy", WHOLE), key("accuracy", WRONG), key("accuracy", WHOLE, "3")}) == 3
    assert key("cosine_scaled", WHOLE) != key("cosine_scaled", BARE)  # same answer, other length
    assert key("cosine_scaled", " " * 60 + WHOLE) == key("cosine_scaled", " " * 80 + WHOLE)  # both beyond the maximum
    assert key("cosine_scaled", WHOLE) != key("accuracy", WHOLE)
    assert key("accuracy", "x" * 20_000 + WHOLE[1:]) == key("accuracy", WHOLE)  # thinking may be long
    for text, asked in ((WHOLE, False), ("<answer>1+1</answer>", True)):  # which may be copied out of the question
        keys = {key("accuracy", text, "2", question) for question in ("What is 1+1?", "What is 2?")}
        assert len(keys) == 1 + asked
    for text, gold in ((WHOLE, None), ("", "2"), (f"<answer>{'1' * 2000}</answer>", "2"), (" " * 9000 + BARE, "2")):
        assert key("accuracy", text, gold) is key("cosine_scaled", text, gold) is None


@pytest.mark.parametrize("name", ["len", "cosine_scaled"])
def test_rewards_made_of_grades_are_those_of_the_batch(name: str) -> None:
    settings = RewardSettings()
    reward = rewards.find(name, settings)
    grader = rewards.find(str(reward.graded_by), settings)
    assert grader.sample
    assert reward.from_grades
    texts = [*COMPLETIONS, WHOLE + "\n"]
    grades = [grader.sample(text, {"answer": "2"}) for text in texts]
    values = reward.batch(["p"] * 6, as_messages(texts), answer=["2"] * 6)
    assert reward.from_grades(["p"] * 6, as_messages(texts), grades) == values
    assert min(values) < 0
    assert len(set(values)) >= 3


def test_tags_are_a_setting() -> None:
    settings = RewardSettings(tags=Tags(think="reasoning", answer="solution"))
    text = WHOLE.replace("think>", "reasoning>").replace("answer>", "solution>")
    expected = {"accuracy": 1.0, "exact_match": 1.0, "format": 1.0, "tag_count": 1.0, "think_format": 1.0}
    expected |= {"match_format_exactly": 3.0, "match_format_approximately": 2.0}
    expected |= {"check_answer": 3.0, "check_numbers": 1.5}
    for name, value in expected.items():
        function = rewards.get_reward(name, settings)
        assert function(["p"], [text], answer=["2"]) == [value], name
        assert rewards.get_reward(name)(["p"], [WHOLE], answer=["2"]) == [value], name
        if name != "accuracy":  # which looks for an answer outside of tags as well
            assert function(["p"], [WHOLE], answer=["2"]) != [value], name


def test_settings_come_from_the_config_and_can_be_pickled() -> None:
    config = RewardsConfig(think_tag="reasoning", cosine_max_len=7, soft_overlong_cache=3, repetition_n_grams=2)
    settings = RewardSettings.of(config, 99)
    assert settings == RewardSettings(
        tags=Tags(think="reasoning", answer="answer"),
        max_completion_length=99,
        cosine_max_len=7,
        soft_overlong_cache=3,
        repetition_n_grams=2,
    )
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert RewardSettings.of(RewardsConfig(), 512) == RewardSettings()


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("soft_overlong", {"max_completion_length": None}, r"set rewards\.soft_overlong_max_length"),
        ("soft_overlong", {"soft_overlong_cache": 513}, "soft_overlong_cache=513 must not be above the limit of 512"),
        ("repetition_penalty", {"repetition_max_penalty": 0.1}, "must be 0 or less"),
        ("repetition_penalty", {"repetition_n_grams": 0}, "must be at least 1"),
        ("cosine_scaled", {"cosine_max_len": 0}, "must be at least 1"),
    ],
)
def test_invalid_settings(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RewardError, match=message):
        rewards.get_reward(name, RewardSettings(**settings))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        *((f"{name}_reward", name) for name in NAMES),
        *ALIASES.items(),
        ("cosine", "cosine_scaled"),
        ("length", "len"),
        ("pure_accuracy_math", "exact_match"),
        ("get_cosine_scaled_reward", "cosine_scaled"),
        ("get_soft_overlong_punishment", "soft_overlong"),
        ("get_repetition_penalty_reward", "repetition_penalty"),
        ("get_len", "len"),
    ],
)
def test_other_names_of_a_reward(name: str, meant: str) -> None:
    assert rewards.get_reward(name) is rewards.get_reward(meant)
    assert rewards.get_reward(name).__name__ == meant


@pytest.mark.parametrize(
    ("name", "near"),
    [("exactmatch", "exact_match"), ("formt", "format"), ("format_rewrd", "format"), ("acuracy", "accuracy")],
)
def test_the_error_for_an_unknown_name_lists_all_and_the_nearest(name: str, near: str) -> None:
    with pytest.raises(RewardError, match=rf"no reward called {name}\. Did you mean {near}\? .*exact_match, format"):
        rewards.load([name])


@pytest.mark.parametrize("name", ["lc_code", "code_judge", "unittest", "weighted_binary_code", "codeforces"])
def test_rewards_for_code_that_covey_lacks_have_a_message_of_their_own(name: str) -> None:
    with pytest.raises(RewardError) as caught:
        rewards.get_reward(name)
    assert str(caught.value).startswith(f"rewards.funcs: {name} is another project's reward for code")
    assert "it has code (the share of the tests that pass)" in str(caught.value)
    assert "Did you mean" not in str(caught.value)


def test_several_names_in_one_text() -> None:
    with pytest.raises(RewardError, match=r"write 'rewards\.funcs=\[accuracy, format\]', or in a file"):
        rewards.get_reward("accuracy, format")


def test_a_reward_model_has_a_name_and_only_runs_load_it() -> None:
    reward = rewards.get_reward("model:org/small-model/")
    assert reward.__name__ == "small-model"
    with pytest.raises(RewardError, match=r"^model:org/small-model/ is a reward model, which only training and eval"):
        reward(prompts=["p"], completions=["a"])
    with pytest.raises(RewardError, match=r"^rewards\.funcs: model: names no model: write model:FOLDER or "):
        rewards.get_reward("model:")


def test_two_rewards_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def format(completions, **kwargs):\n    return []\n")
    with pytest.raises(RewardError, match=r"format and .*mine\.py:format are both called format"):
        rewards.load(["format", f"{tmp_path}/mine.py:format"])
    with pytest.raises(RewardError, match=r"cosine and cosine_scaled_reward are both called cosine_scaled"):
        rewards.load(["cosine", "cosine_scaled_reward"])


def test_a_gold_number_that_was_stored_with_a_fraction_and_gold_without_text() -> None:
    """27.0 is 27, as some tools store it; an answer of white space is none and earns nothing."""
    whole = "<think>a</think><answer>27</answer>"
    blank = "<think>a</think><answer> </answer>"
    for name, most in (("accuracy", 1.0), ("exact_match", 1.0), ("check_answer", 3.0), ("check_numbers", 1.5)):
        assert rewards.get_reward(name)(prompts=["p"], completions=[whole], answer=[27.0]) == [most]
        assert rewards.get_reward(name)(prompts=["p"] * 2, completions=[whole, blank], answer=["", "  "]) == [
            None,
            None,
        ]


def test_what_rewards_print_goes_to_the_log(tmp_path: Path) -> None:
    file = tmp_path / "loud.py"
    file.write_text(
        "import os\ndef loud(prompts, completions, **kwargs):\n"
        "    print('from python', flush=True)\n    os.system('echo from a child >&2')\n    return [1.0]\n",
        encoding="utf-8",
    )
    log = tmp_path / "run.log"
    log.write_text("before\n", encoding="utf-8")
    with RewardRunner([f"{file}:loud"], workers=1, batch_timeout=30) as runner:
        runner.start(output=log)
        assert runner.functions[0](prompts=["p"], completions=["c"]) == [1.0]
    assert log.read_text(encoding="utf-8") == "before\nfrom python\nfrom a child\n"

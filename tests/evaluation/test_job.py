"""An evaluation as Python asks for it: what is evaluated, where it is stored, and what an engine needs."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from covey.config import compose
from covey.errors import ConfigError, ModelError
from covey.evaluation.job import Selection, run_evaluations
from covey.evaluation.run import engine_of, load_policy
from covey.evaluation.stored import Target

ENGINE = str(Path(__file__).parents[1] / "support" / "fake_engine.py") + ":FakeEngine"
SMALL = ("dataset=arithmetic", "dataset.test_size=2", "dataset.hard_size=0", "dataset.train_size=4")


def evaluated(model: str, *words: str, selection: Selection | None = None, run: Path | None = None) -> list[Any]:
    config = compose([f"model.name={model}", f"evaluation.engine='{ENGINE}'", "rewards.workers=0", *words]).config
    target = Target("org/tiny", model, run=run, state="best")
    return run_evaluations(config, target, {}, None, lambda *_: None, selection=selection)


@pytest.mark.parametrize(
    ("words", "selection", "message"),
    [
        (SMALL, Selection("all"), r"^--all takes every row of a file .* and this data is arithmetic\. Leave --all out"),
        (SMALL, Selection("hard"), r"^profile\.split=hard is not there: this data has the rows train, test\.$"),
        ((*SMALL, "dataset.test_size=0"), None, r"^There are no held-out problems .*: dataset\.test_size=0\. Set it"),
    ],
)
def test_what_is_not_there_to_evaluate_on(words: tuple[str, ...], selection: Selection | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        evaluated("starter", *words, selection=selection)


@pytest.mark.parametrize(
    ("words", "how"),
    [
        (("evaluation=greedy",), "greedy"),
        (("evaluation.temperature=0.5", "evaluation.top_k=7", "evaluation.top_p=0.9"), "t0.5-k7-p0.9"),
    ],
)
def test_the_folder_tells_what_was_evaluated_and_how(
    tiny_model: str, tmp_path: Path, words: tuple[str, ...], how: str
) -> None:
    """Without a run by model and data in `output_dir`; of a run in its folder, by the state of its model."""
    shared = (*SMALL, f"output_dir={tmp_path}/out", *words)
    [found] = evaluated(tiny_model, *shared)
    assert found.folder == tmp_path / "out" / "evaluations" / f"tiny-arithmetic-test-{how}"
    assert found.settings["data"]["problems"] == 2
    samples = "evaluation.num_samples=2"
    if how != "greedy":
        [found] = evaluated(tiny_model, *shared, samples, run=tmp_path / "run")
        assert found.folder == tmp_path / "run" / "evaluation" / f"test-best-{how}-x2"
        assert [(one["problem"], one["sample"]) for one in found.completions()] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_rewards_that_need_a_column_of_the_training_data_are_left_out(
    tiny_model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    row = {"prompt": "1 + 1", "answer": "2"}
    (tmp_path / "train.jsonl").write_text(json.dumps({**row, "prompt": "2 + 2", "level": 3}) + "\n")
    (tmp_path / "test.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "mine.py").write_text("def by_level(completions, level, **_):\n    return level\n")
    files = (f"dataset.path={tmp_path}/train.jsonl", f"dataset.test_path={tmp_path}/test.jsonl", "dataset.task=null")
    rewards = f"rewards.funcs=['{tmp_path}/mine.py:by_level']"
    grader = "evaluation.grader=exact_match"
    with caplog.at_level(logging.WARNING, "covey"):
        [found] = evaluated(tiny_model, *files, rewards, grader, f"output_dir={tmp_path}/out")
    (note,) = [text for text in caplog.messages if text.endswith("So there is no eval/reward on it.")]
    assert "level" in note
    assert "accuracy" in found.summary
    assert "reward" not in found.summary


def test_an_engine_that_needs_whole_weights(tiny_model: str, tmp_path: Path) -> None:
    whole, adapted = Target("mine", tiny_model), Target("mine", tiny_model, tmp_path)
    for words, target in (((), adapted), (("model.load_in_8bit=true", "model.lora.rank=4"), whole)):
        config = compose([f"model.name={tiny_model}", *words]).config
        with pytest.raises(ConfigError, match=r"^evaluation\.engine=vllm needs merged, unquantised weights, and mine "):
            engine_of(config, target, None, "vllm")


def test_weights_that_cannot_be_loaded(tiny_model: str, tmp_path: Path) -> None:
    """Of other sizes than the config says; an adapter without weights is named by its own folder."""
    model = shutil.copytree(tiny_model, tmp_path / "model")
    target, words = Target("mine", str(model)), [f"model.name={model}", "model.attn_implementation=eager"]
    policy = load_policy(compose(words).config, target)
    assert policy.config._attn_implementation == "eager"
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    with pytest.raises(ModelError, match=f"^The weights of {adapter} cannot be loaded: "):
        load_policy(compose(words).config, Target("mine", str(model), adapter))
    described = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**described, "intermediate_size": 48}))
    with pytest.raises(ModelError, match=f"^The weights of {model} cannot be loaded: "):
        load_policy(compose(words).config, target)
